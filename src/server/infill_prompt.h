// server/infill_prompt.h: a prompt for code between two texts (fill in the middle), in a model's own tokens.
// Idea:       the layout that Qwen2.5-Coder, StarCoder2 and others were trained with: the repository's name, each further
//             file with its name, then prefix, suffix and the token that asks for the middle (arXiv 2409.12186, 3.1.2).
//             The tokens are found by their texts in the vocabulary, all of one family; a family may have the suffix
//             first. Each further file is tokenised by itself and is a marked part, so it is found again in any order and
//             whatever file is edited.
// Invariants: the client's own text never becomes a control token.
// Threads:    immutable; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvilt/engine.h"

namespace kvilt::server {

struct InfillFile {
  std::string name, text;
};

struct InfillText {
  std::string prefix, suffix;
  std::string prompt;  // goes on from the prefix: the line before the cursor
  std::vector<InfillFile> extra;
};

struct InfillTokens {
  int32_t prefix = 0, suffix = 0;
  std::optional<int32_t> middle = {};           // none: the answer goes on from the prefix, which comes last
  bool suffix_first = false;                    // the suffix and its text stand before the prefix
  std::optional<int32_t> repo = {}, file = {};  // repository's name, file separator
  std::vector<int32_t> ends = {};               // where they come up in an answer, it is over

  // kUnsupported: the vocabulary has none.
  static Result<InfillTokens> find(const Engine& engine);
};

struct InfillPrompt {
  Prompt prompt;
  int left_out = 0;  // further files, from the first, that did not fit
};

// most: tokens that the prompt may have; further files are left out for it, the text itself is not cut.
Result<InfillPrompt> infill_prompt(const Engine& engine, const InfillTokens& tokens, const InfillText& text, int most);

}  // namespace kvilt::server
