#include "tier/redis_address.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"

namespace kvilt {
namespace {

// All of `text` as a number from low to high.
std::optional<int> number(std::string_view text, int low, int high) {
  int out = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), out);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || out < low || out > high) return {};
  return out;
}

// %40 and the like in users and passwords.
std::optional<std::string> unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    int code = 0;
    const char* begin = text.data() + i + 1;
    if (i + 2 >= text.size() || std::from_chars(begin, begin + 2, code, 16).ptr != begin + 2) return {};
    out += static_cast<char>(code);
    i += 2;
  }
  return out;
}

Error wrong(std::string_view what) {
  return error(Code::kInvalidArgument,
               "the address of Redis: {}; it is HOST:PORT, redis://[[USER]:PASSWORD@]HOST[:PORT][/DB] or unix:PATH, or "
               "several of these with commas between them",
               what);
}

Status read_login(std::string_view login, RedisAddress& out) {
  const size_t colon = login.find(':');
  const auto user = unescaped(login.substr(0, colon));
  const auto password = colon == std::string_view::npos ? std::nullopt : unescaped(login.substr(colon + 1));
  if (!user || !password) return wrong("what stands before @ is no USER:PASSWORD (with % as %25, @ as %40)");
  if (password->empty()) return wrong("the password is empty");
  out.user = *user;
  out.password = *password;
  return {};
}

Status read_host(std::string_view text, RedisAddress& out) {
  std::string_view port;
  if (text.starts_with('[')) {  // IPv6
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return wrong("[ without ]");
    out.host = text.substr(1, end - 1);
    port = text.substr(end + 1);
  } else {
    const size_t colon = text.find(':');
    if (colon != std::string_view::npos && text.find(':', colon + 1) != std::string_view::npos)
      return wrong("several colons; an IPv6 address stands in brackets: [::1]:6379");
    out.host = text.substr(0, colon);
    port = colon == std::string_view::npos ? "" : text.substr(colon);
  }
  if (out.host.empty()) return wrong("no host");
  if (out.host.find_first_of(" \t\r\n/@") != std::string::npos) return wrong("the host has a space, / or @");
  if (port.empty()) return {};
  const auto value = port.front() == ':' ? number(port.substr(1), 1, 65535) : std::nullopt;
  if (!value) return wrong("what follows the host is no port from 1 to 65535");
  out.port = *value;
  return {};
}

}  // namespace

std::string RedisAddress::shown() const {
  if (host.empty()) return fmt::format("unix:{}", socket);
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

Result<RedisAddress> parse_redis_address(std::string_view text) {
  RedisAddress out;
  if (text.starts_with("unix:")) {
    text.remove_prefix(5);
    if (text.starts_with("//")) text.remove_prefix(2);
    if (!text.starts_with('/')) return wrong("a socket's path begins with /");
    out.socket = text;
    return out;
  }
  if (text.starts_with("rediss:")) return wrong("rediss: is TLS, which is not spoken; put a tunnel in front");
  if (const size_t scheme = text.find("://"); scheme != std::string_view::npos) {
    if (!text.starts_with("redis://")) return wrong("it begins with another word than redis://");
    text.remove_prefix(8);
  }
  if (const size_t at = text.rfind('@'); at != std::string_view::npos) {
    KVILT_TRY(read_login(text.substr(0, at), out));
    text.remove_prefix(at + 1);
  }
  if (const size_t slash = text.find('/'); slash != std::string_view::npos) {
    const std::string_view db = text.substr(slash + 1);
    const auto value = db.empty() ? 0 : number(db, 0, 1 << 20);
    if (!value) return wrong("what follows / is no number of a database");
    out.db = *value;
    text = text.substr(0, slash);
  }
  KVILT_TRY(read_host(text, out));
  return out;
}

Result<std::vector<RedisAddress>> parse_redis_addresses(std::string_view text) {
  std::vector<RedisAddress> out;
  for (;;) {
    const size_t comma = text.find(',');
    KVILT_ASSIGN(RedisAddress address, parse_redis_address(text.substr(0, comma)));
    const auto same = [&](const RedisAddress& other) {
      return other.host == address.host && other.port == address.port && other.socket == address.socket;
    };
    if (std::ranges::any_of(out, same)) return wrong(fmt::format("{} is named twice", address.shown()));
    out.push_back(std::move(address));
    if (comma == std::string_view::npos) return out;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace kvilt
