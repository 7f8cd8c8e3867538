// text/tokenizer_spec.h: a tokenizer as plain data.
// Role:     what model/ fills from GGUF metadata and tokenizer_hf.h from a tokenizer.json; Tokenizer::create() checks
//           all of it.
// Idea:     a tokenizer normalises, pre-splits, segments into vocabulary pieces, and decodes. Each is a short list of
//           steps, so that a new vocabulary is a new list and not a new class.
// Not here: file formats (model/, tokenizer_hf.cc), named pre-tokenizers (pre_names.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvilt {

// GGUF's tokenizer.ggml.token_type is the value plus one.
enum class TokenKind : uint8_t { kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct NormalizeStep {
  enum class Kind : uint8_t { kNfc, kNfd, kNfkc, kNfkd, kLowercase, kReplace, kPrepend, kStrip };
  Kind kind = Kind::kNfc;
  std::string pattern = {};  // kReplace: a regular expression, or a plain string if `literal`
  std::string content = {};  // kReplace, kPrepend
  bool literal = true;
  bool left = true, right = true;  // kStrip
};

struct SplitStep {
  enum class Kind : uint8_t {
    kSplit,        // at the matches of `pattern`
    kMetaspace,    // space -> `replacement`; may prepend one, may split before each
    kPrefixSpace,  // a space before every piece that does not begin with one
    kByteSpell,    // the later steps see GPT-2's printable spelling of the bytes
  };
  enum class Behavior : uint8_t { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prepend : uint8_t { kAlways, kFirst, kNever };
  Kind kind = Kind::kSplit;
  std::string pattern = {};
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;
  std::string replacement = {};
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

// How one token is found in text besides the segmentation.
struct AddedToken {
  int32_t id = 0;
  bool lstrip = false, rstrip = false;  // includes the white space before or after it
  bool single_word = false;             // only where no word character touches it
  bool normalized = false;              // searched after the tokens that are not
};

struct TextReplacement {
  std::string from, to;
};

struct TokenizerSpec {
  std::string model;                // "bpe", "spm" or "wordlevel"; GGUF's "gpt2" and "llama" mean the first two
  std::string pre;                  // a name of GGUF's tokenizer.ggml.pre; empty: `normalize` and `split` say it
  std::vector<std::string> tokens;  // by id; an unused id is an empty string
  std::vector<float> scores;        // spm: one per token
  std::vector<TokenKind> kinds;     // one per token; empty: all normal
  std::vector<std::string> merges;  // bpe: "left right", best first
  std::vector<std::pair<int32_t, int32_t>> merge_ids;  // bpe: the same as ids, if `merges` is empty

  std::vector<NormalizeStep> normalize;
  std::vector<SplitStep> split;

  std::vector<AddedToken> added;  // empty: every control, unknown and user-defined token, without flags
  // User-defined tokens are plain text to some vocabularies (runs of spaces, HTML tags) and markers to others
  // (<tool_call>). false: those that look like a marker, <...> or [...], count as special and need parse_special or
  // trust; but in vocabularies over characters HTML's elements (<table>, gemma's) are text.
  bool user_defined_is_text = false;

  bool byte_level = true;            // bpe: over bytes, tokens in GPT-2's printable spelling; false: over characters
  bool byte_fallback = false;        // characters outside the vocabulary become <0xXX> tokens
  bool fuse_unknown = false;         // neighbouring unknown characters become one unknown token
  bool ignore_merges = false;        // bpe: a piece that is a token is taken whole
  bool strict_merges = false;        // a merge that names no token is an error and not skipped
  bool add_space_prefix = false;     // spm: as SentencePiece's add_dummy_prefix; bpe: a space before the text
  bool remove_extra_spaces = false;  // spm
  bool add_bos = false, add_eos = false;
  std::vector<int32_t> prefix, suffix;  // what add_special puts around a text, if not BOS and EOS

  std::optional<int32_t> bos, eos, unknown, eot;
  std::vector<int32_t> more_ends;  // other ids that end a generation, besides the well-known names

  // Decoding of pieces over characters; byte-level needs none. create() fills these for spm if they are empty.
  std::vector<TextReplacement> decode_replace;
  int strip_start = 0;           // leading spaces that a decoded text loses
  bool join_with_space = false;  // a space between every two tokens (vocabularies of whole words)
};

}  // namespace kvilt
