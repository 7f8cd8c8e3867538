// text/tokenizer.h: text to token ids and back. Start here for src/text.
// Role:       one Tokenizer per model, shared by all threads; a Detokenizer per stream of generated tokens.
// Idea:       byte-level BPE as GPT-2's, SentencePiece's BPE, whole words; merge.h names the sources.
// Invariants: immutable after construction; the same text, options and vocabulary give the same ids; text becomes a
//             special token only where EncodeOptions says so.
// Threads:    any, without locks.
// Cost:       O(n log n) in the text, whatever the text; about 0.04 us a byte of English (Qwen2.5).
// Not here:   chat templates (src/template), file formats other than Hugging Face's JSON (tokenizer_hf.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvilt/result.h"
#include "text/tokenizer_spec.h"

namespace kvilt {

struct ByteRange {
  size_t begin = 0, end = 0;
};

struct EncodeOptions {
  bool add_special = false;    // BOS and EOS as the model wants them
  bool parse_special = false;  // recognise special tokens everywhere
  // The text continues one that was encoded before (a marked part of a prompt): no space is put before it.
  bool continues = false;
  // The text comes after a special token that was encoded before: it begins as it would behind that in one text.
  bool after_special = false;
  // If not empty: special tokens are recognised inside these ranges, each wholly in one, and nowhere else.
  std::span<const ByteRange> trusted = {};
};

class Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> create(TokenizerSpec spec);
  // The texts of a tokenizer.json and, if there is one, of its tokenizer_config.json.
  static Result<std::unique_ptr<Tokenizer>> from_hf(std::string_view tokenizer_json,
                                                    std::string_view tokenizer_config_json);
  ~Tokenizer();

  // Bytes that are not UTF-8 count as U+FFFD. Fails only if the text is too long or a vocabulary's own pattern exceeds
  // its limits.
  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Always UTF-8: other bytes become U+FFFD. Ids outside the vocabulary give nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  // The bytes of one token in mid-text: " the", or half a character; empty for an id outside the vocabulary.
  std::string_view token_bytes(int32_t id) const;

  // A text of more bytes has more than `tokens` tokens; nullopt where that is not known, since steps or tokens of the
  // vocabulary may take any amount of text.
  std::optional<int64_t> most_bytes(int64_t tokens) const;

  int vocab_size() const;
  bool is_special(int32_t id) const;  // a control or unknown token, which is not part of an answer's text
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  // Every id that ends a generation: EOS, end of turn, <|im_end|> and the like; ascending.
  std::span<const int32_t> end_ids() const;
  // The token of this text: as its bytes, or as the vocabulary spells it.
  std::optional<int32_t> id_of(std::string_view token) const;
  // Spaces that decode() takes from the start of a text, because encode() put them there.
  int strip_start() const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

struct DetokenizeOptions {
  bool skip_special = false;
  std::vector<int32_t> shown = {};  // special ones that are not skipped
  bool at_start = false;            // true: the stream begins a text, so the space that encode() adds is dropped
};

// Makes text of a stream of ids as soon as it is certain. Never emits half a UTF-8 sequence.
// REQUIRES: the tokenizer outlives it. One thread at a time.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, DetokenizeOptions options = {});
  std::string push(int32_t id);
  void push(int32_t id, std::string& text);  // appends
  std::string finish();                      // what is left, U+FFFD for a cut character; then ready for a new stream

 private:
  const Tokenizer* tokenizer_;
  DetokenizeOptions options_;
  int strip_;            // spaces still to take from the start
  std::string pending_;  // at most 3 bytes: the start of a character
};

}  // namespace kvilt
