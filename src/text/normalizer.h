// text/normalizer.h: the steps a text goes through before it is split: Unicode forms, replacements, prefixes.
// Role:       applied to every text between special tokens.
// Threads:    immutable after create().
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"
#include "text/tokenizer_spec.h"

namespace kvilt {

class Normalizer {
 public:
  static Result<Normalizer> create(std::vector<NormalizeStep> steps);
  // Returns true and fills `out` if it changes `text`; else `out` is unspecified. REQUIRES: text is UTF-8.
  // prepend: false skips the steps that put text before it.
  Result<bool> run(std::string_view text, bool prepend, std::string& out) const;

 private:
  Result<bool> apply(size_t step, std::string_view text, size_t limit, std::string& out) const;
  std::vector<NormalizeStep> steps_;
  std::vector<std::optional<Regex>> regexes_;  // of kReplace steps that are not literal
};

}  // namespace kvilt
