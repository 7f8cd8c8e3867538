// server/knowledge_seal.h: lines of a knowledge base's file, sealed with a key (docs/formats/knowledge.md#with-a-key).
// Idea:       every file has a salt and so a key of its own, and a line is sealed for its place: what is in another file,
//             or elsewhere in this one, is nothing there.
// Not here:   that lines are gone, or that the file, or single lines of it, are as they were some time ago.
// Threads:    any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/keyed_hash.h"
#include "base/sealer.h"

namespace kvilt::server {

class KnowledgeSeal {
 public:
  static KnowledgeSeal fresh(const HashSecret& key);
  // salt: as a file has it, 64 hexadecimal digits. Nothing: it is none.
  static std::optional<KnowledgeSeal> of(const HashSecret& key, std::string_view salt);
  // 32 hexadecimal digits; whoever has no key cannot try out guesses of tenant and base on it.
  static std::string name_of(const HashSecret& key, std::string_view tenant, std::string_view base);

  const std::string& salt() const { return salt_; }
  // The line that begins at this byte of the file: base64, without the line's end.
  std::string seal(std::string_view text, int64_t at) const;
  // Nothing: it was not sealed so.
  std::optional<std::string> open(std::string_view line, int64_t at) const;

 private:
  KnowledgeSeal(std::string salt, Sealer sealer) : salt_(std::move(salt)), sealer_(std::move(sealer)) {}
  std::string salt_;
  Sealer sealer_;
};

}  // namespace kvilt::server
