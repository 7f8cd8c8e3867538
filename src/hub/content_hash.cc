#include "hub/content_hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <new>

#include "base/check.h"
#include "base/hex.h"

namespace kvilt {

struct ContentHash::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

bool ContentHash::is_name(std::string_view text) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return (text.size() == 40 || text.size() == 64) && std::ranges::all_of(text, is_hex);
}

ContentHash::ContentHash(std::string_view name, int64_t size) : state_(std::make_unique<State>()) {
  CHECK(is_name(name));
  if (state_->context == nullptr) throw std::bad_alloc();
  const bool git = name.size() == 40;
  CHECK(EVP_DigestInit_ex(state_->context, git ? EVP_sha1() : EVP_sha256(), nullptr) == 1);
  if (git) {
    const std::string head = fmt::format("blob {}", size);
    add(std::as_bytes(std::span(head.c_str(), head.size() + 1)));  // with its zero
  }
}

ContentHash::~ContentHash() = default;

void ContentHash::add(std::span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

std::string ContentHash::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  CHECK(EVP_DigestFinal_ex(state_->context, digest, &size) == 1);
  return hex_text(std::span(digest).first(size));
}

}  // namespace kvilt
