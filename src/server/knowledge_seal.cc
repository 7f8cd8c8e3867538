#include "server/knowledge_seal.h"

#include <sodium.h>

#include <array>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/hex.h"

namespace kvilt::server {
namespace {

constexpr int kBase64 = sodium_base64_VARIANT_ORIGINAL_NO_PADDING;
using Salt = std::array<unsigned char, 32>;

Sealer line_sealer(const HashSecret& key, const Salt& salt) {
  return Sealer(derived_key(key, "kvilt.knowledge.lines", salt));
}

Sealer::Place line_at(int64_t at) { return {Sealer::What::kLine, 0, at}; }

}  // namespace

KnowledgeSeal KnowledgeSeal::fresh(const HashSecret& key) {
  CHECK(sodium_init() >= 0);
  Salt salt;
  randombytes_buf(salt.data(), salt.size());
  return {hex_text(salt), line_sealer(key, salt)};
}

std::optional<KnowledgeSeal> KnowledgeSeal::of(const HashSecret& key, std::string_view digits) {
  Salt salt;
  size_t bytes = 0;
  const int bad = sodium_hex2bin(salt.data(), salt.size(), digits.data(), digits.size(), nullptr, &bytes, nullptr);
  if (bad != 0 || bytes != salt.size() || digits.size() != 2 * salt.size()) return std::nullopt;
  return KnowledgeSeal(std::string(digits), line_sealer(key, salt));
}

std::string KnowledgeSeal::name_of(const HashSecret& key, std::string_view tenant, std::string_view base) {
  KeyedHash hash(derived_key(key, "kvilt.knowledge.names"), "kvilt.knowledge.name");
  return hex_text(hash.add(tenant).add(base).finish());
}

std::string KnowledgeSeal::seal(std::string_view text, int64_t at) const {
  const auto sealed = sealer_.sealed(line_at(at), std::as_bytes(std::span(text)));
  std::string out(sodium_base64_encoded_len(sealed.size(), kBase64), '\0');  // with a zero at its end
  sodium_bin2base64(out.data(), out.size(), reinterpret_cast<const unsigned char*>(sealed.data()), sealed.size(),
                    kBase64);
  out.pop_back();
  return out;
}

std::optional<std::string> KnowledgeSeal::open(std::string_view line, int64_t at) const {
  std::vector<std::byte> bytes(line.size() / 4 * 3 + 3);
  size_t size = 0;
  const int bad = sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), line.data(),
                                    line.size(), nullptr, &size, nullptr, kBase64);
  if (bad != 0) return std::nullopt;
  bytes.resize(size);
  if (!sealer_.open(line_at(at), bytes)) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace kvilt::server
