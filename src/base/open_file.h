// base/open_file.h: an open file, or a lock that ends with it.
#pragma once

#include <unistd.h>

#include <utility>

namespace kvilt {

class OpenFile {
 public:
  explicit OpenFile(int fd = -1) : fd_(fd) {}  // below 0: none, as open() says it
  OpenFile(OpenFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OpenFile() { close(); }
  int fd() const { return fd_; }
  // False, with errno: the system could not keep what was written.
  bool close() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0;
  }

 private:
  int fd_;
};

}  // namespace kvilt
