// hub/fake_hub_for_test.h: a hub on loopback that answers as the real one does, and lies where a test says so.
// Invariants: every answer is a string of bytes that a test may change; the connection is closed behind it.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "hub/content_hash.h"
#include "hub/pull.h"

namespace kvilt {

inline std::string hash_for_test(const std::string& contents, bool large) {
  ContentHash hash(std::string(large ? 64 : 40, '0'), static_cast<int64_t>(contents.size()));
  hash.add(std::as_bytes(std::span(contents)));
  return hash.hex();
}

inline std::string bytes_for_test(size_t count, unsigned seed) {
  std::string out(count, '\0');
  for (char& c : out) c = static_cast<char>((seed = seed * 1664525 + 1013904223) >> 24);
  return out;
}

class FakeHub {
 public:
  struct Asked {
    std::string path, host, token;
    int64_t from = 0;
    bool file() const { return path.find("/resolve/") != std::string::npos; }
  };
  struct Answer {
    std::string bytes;
    bool hold = false;  // the connection stays open and silent
  };
  using Handler = std::function<Answer(const Asked&)>;

  static constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

  FakeHub() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 64), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    listing_["sha"] = kCommit;
    listing_["siblings"] = nlohmann::json::array();
    accepting_ = std::thread([this] { accept_all(); });
  }
  ~FakeHub() {
    ending_ = true;
    accepting_.join();
    for (std::thread& connection : connections_) connection.join();
    ::close(listener_);
  }

  void add(const std::string& path, const std::string& contents, bool large = true) {
    nlohmann::json file = {{"rfilename", path}, {"size", contents.size()}};
    file["blobId"] = hash_for_test(contents, false);
    if (large)
      file["lfs"] = {{"sha256", hash_for_test(contents, true)}, {"size", contents.size()}, {"pointerSize", 130}};
    const std::lock_guard lock(mutex_);
    listing_["siblings"].push_back(file);
    contents_[path] = contents;
  }
  void change_listing(const std::function<void(nlohmann::json&)>& change) {
    const std::lock_guard lock(mutex_);
    change(listing_);
  }

  std::string url(const std::string& host = "127.0.0.1") const {
    return "http://" + host + ":" + std::to_string(port_);
  }
  void answer(Handler handler) {
    const std::lock_guard lock(mutex_);
    handler_ = std::move(handler);
  }
  std::vector<Asked> asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  std::vector<Asked> asked_files() const {
    std::vector<Asked> out = asked();
    std::erase_if(out, [](const Asked& one) { return !one.file(); });
    return out;
  }

  static std::string head(const std::string& status, const std::string& more = "") {
    return "HTTP/1.1 " + status + "\r\nConnection: close\r\n" + more + "\r\n";
  }
  static Answer whole(const std::string& status, const std::string& body, const std::string& more = "") {
    return {head(status, "Content-Length: " + std::to_string(body.size()) + "\r\n" + more) + body};
  }

  // As the real one answers.
  Answer usual(const Asked& asked) const {
    const std::lock_guard lock(mutex_);
    if (asked.path.starts_with("/api/models/org/name/revision/")) return whole("200 OK", listing_.dump());
    const std::string prefix = std::string("/org/name/resolve/") + kCommit + "/";
    const auto file =
        asked.path.starts_with(prefix) ? contents_.find(asked.path.substr(prefix.size())) : contents_.end();
    return file == contents_.end() ? whole("404 Not Found", "no") : part_of(file->second, asked.from);
  }
  static Answer part_of(const std::string& all, int64_t from) {
    if (from == 0) return whole("200 OK", all);
    if (from >= static_cast<int64_t>(all.size())) return whole("416 Range Not Satisfiable", "");
    const std::string range = "Content-Range: bytes " + std::to_string(from) + "-" + std::to_string(all.size() - 1) +
                              "/" + std::to_string(all.size()) + "\r\n";
    return whole("206 Partial Content", all.substr(static_cast<size_t>(from)), range);
  }

 private:
  void accept_all() {
    while (!ending_) {
      pollfd poller{listener_, POLLIN, 0};
      if (::poll(&poller, 1, 20) <= 0) continue;
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) connections_.emplace_back([this, fd] { serve(fd); });
    }
  }
  void serve(int fd) {
    std::string text;
    char block[4096];
    while (!ending_ && text.find("\r\n\r\n") == std::string::npos) {
      pollfd poller{fd, POLLIN, 0};
      if (::poll(&poller, 1, 20) <= 0) continue;
      const ssize_t n = ::recv(fd, block, sizeof block, 0);
      if (n <= 0) break;
      text.append(block, static_cast<size_t>(n));
    }
    const Asked asked = parse(text);
    Handler handler;
    {
      const std::lock_guard lock(mutex_);
      asked_.push_back(asked);
      handler = handler_;
    }
    const Answer out = handler ? handler(asked) : usual(asked);
    std::string_view rest = out.bytes;
    while (!ending_ && !rest.empty()) {
      const ssize_t n = ::send(fd, rest.data(), std::min<size_t>(rest.size(), 1 << 16), MSG_NOSIGNAL);
      if (n <= 0) break;
      rest.remove_prefix(static_cast<size_t>(n));
    }
    while (out.hold && !ending_) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ::close(fd);
  }
  static std::string field(const std::string& text, const std::string& name) {
    const size_t at = text.find("\r\n" + name + ": ");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 4;
    return text.substr(begin, text.find("\r\n", begin) - begin);
  }
  static Asked parse(const std::string& text) {
    Asked out;
    const size_t begin = text.find(' ') + 1;
    out.path = text.substr(begin, text.find(' ', begin) - begin);
    out.host = field(text, "Host");
    out.token = field(text, "Authorization");
    const std::string range = field(text, "Range");
    if (range.starts_with("bytes=")) out.from = std::stoll(range.substr(6));
    return out;
  }

  const int listener_;
  int port_ = 0;
  mutable std::mutex mutex_;
  nlohmann::json listing_;
  std::map<std::string, std::string> contents_;
  Handler handler_;
  std::vector<Asked> asked_;
  std::atomic<bool> ending_{false};
  std::thread accepting_;
  std::vector<std::thread> connections_;  // of the accepting thread
};

inline std::string slurp_for_test(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// A cache folder of the test's own.
class HubFolderTest : public ::testing::Test {
 protected:
  HubFolderTest() {
    std::string name = (std::filesystem::temp_directory_path() / "kvilt_pull_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    ::setenv("no_proxy", "127.0.0.1,localhost", 1);  // whatever this machine's environment says
  }
  ~HubFolderTest() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path model() const { return folder_ / "models--org--name"; }
  std::filesystem::path snapshot() const { return model() / "snapshots" / FakeHub::kCommit; }

  std::filesystem::path folder_;
};

}  // namespace kvilt
