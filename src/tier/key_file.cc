#include "tier/key_file.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "base/error.h"
#include "base/open_file.h"

namespace kvilt {
namespace {

constexpr size_t kKeyBytes = 32;

// What is read of the file, and no longer there when it goes.
struct KeyText {
  std::array<char, 128> bytes;  // more is no key
  size_t size = 0;
  ~KeyText() { sodium_memzero(bytes.data(), bytes.size()); }
};

Status read_text(int fd, const std::string& path, KeyText& out) {
  struct stat about {};
  if (::fstat(fd, &about) != 0) return system_error(path);
  if (!S_ISREG(about.st_mode)) return error(Code::kInvalidArgument, "{}: not a file", path);
  if ((about.st_mode & 037) != 0)  // a group may read: containers mount secrets so
    return error(Code::kInvalidArgument, "{}: a key that others may read or write is none: chmod 600 it", path);
  while (out.size < out.bytes.size()) {
    const ssize_t n = ::read(fd, out.bytes.data() + out.size, out.bytes.size() - out.size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error(path);
    if (n == 0) break;
    out.size += static_cast<size_t>(n);
  }
  return {};
}

std::optional<HashSecret> secret_of_digits(std::string_view text) {
  if (text.size() != 2 * kKeyBytes) return std::nullopt;
  std::array<char, kKeyBytes> bytes{};
  size_t got = 0;
  const int bad = sodium_hex2bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(), text.size(),
                                 nullptr, &got, nullptr);
  std::optional<HashSecret> out;
  if (bad == 0 && got == bytes.size()) out = HashSecret::of({bytes.data(), bytes.size()});
  sodium_memzero(bytes.data(), bytes.size());
  return out;
}

}  // namespace

Result<HashSecret> key_of(std::string_view text, const std::string& name) {
  if (const auto secret = HashSecret::of(text)) return *secret;
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  if (const auto secret = secret_of_digits(text)) return *secret;
  return error(Code::kInvalidArgument, "{}: no key of 32 bytes or 64 hexadecimal digits (openssl rand -hex 32)", name);
}

Result<HashSecret> read_key_file(const std::string& path) {
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe would wait for its writer
  if (file.fd() < 0) return error(errno == ENOENT ? Code::kNotFound : Code::kIo, "{}: {}", path, std::strerror(errno));
  KeyText text;
  KVILT_TRY(read_text(file.fd(), path, text));
  return key_of({text.bytes.data(), text.size}, path);
}

Result<std::optional<HashSecret>> given_key(const std::string& path, std::string_view text, const std::string& name) {
  std::optional<HashSecret> out;
  if (!path.empty()) {
    KVILT_ASSIGN(out, read_key_file(path));
  } else if (!text.empty()) {
    KVILT_ASSIGN(out, key_of(text, name));
  }
  return out;
}

}  // namespace kvilt
