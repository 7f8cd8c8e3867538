// hub/content_hash.h: the hash by which the hub names a file's contents: SHA-256 (64 hex digits, large files) or git's
// SHA-1 of a blob (40). The name says which. By OpenSSL, which uses the CPU's instructions for them.
// Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace kvilt {

class ContentHash {
 public:
  static bool is_name(std::string_view text);  // 40 or 64 lower-case hex digits

  // REQUIRES: is_name(name). size: of the whole contents, which git's hash begins with.
  ContentHash(std::string_view name, int64_t size);
  ~ContentHash();
  void add(std::span<const std::byte> bytes);
  std::string hex();  // once, at the end

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvilt
