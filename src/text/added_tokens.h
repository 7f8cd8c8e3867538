// text/added_tokens.h: finds special and user-defined tokens in a text, which cut it before it is normalised and split.
// Idea:    a trie over the tokens' texts. It finds the leftmost token, and of these the longest that the caller trusts.
// Source:  the flags lstrip, rstrip, single_word and normalized are those of Hugging Face's added tokens. Unlike there,
//          tokens with `normalized` are searched in the text as given, after the others, and not in the normalised
//          text.
// Threads: immutable after create().
// Cost:    linear in the text times the longest token.
#pragma once

#include <bitset>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace kvilt {

struct TextPart {
  ByteRange range;
  int32_t id = -1;  // -1: ordinary text
};

class AddedTokens {
 public:
  static Result<AddedTokens> create(const TokenizerSpec& spec, const Vocabulary& vocabulary);

  // Cuts the text into tokens and non-empty text between them. If `everywhere` is false, tokens that are not plain text
  // are only found inside `trusted`, which is sorted and does not overlap.
  std::vector<TextPart> cut(std::string_view text, bool everywhere, std::span<const ByteRange> trusted) const;

 private:
  struct Entry {
    AddedToken token;
    bool is_text = false;  // found in any text
  };
  struct Trie {                                    // the tokens of one pass
    std::unordered_map<uint64_t, uint32_t> edges;  // node << 8 | byte -> node
    std::vector<int32_t> entry_at{-1};             // node -> index into entries_
    std::bitset<256> first;
    bool has_text = false;  // some token is found in any text
  };
  struct Scope {
    bool everywhere;
    std::span<const ByteRange> trusted;
  };
  void add(Trie& trie, std::string_view text, int32_t entry);
  void pass(const Trie& trie, std::string_view text, const Scope& scope, ByteRange within,
            std::vector<TextPart>& out) const;
  // The longest allowed token at `at`; -1 if none.
  int32_t longest(const Trie& trie, std::string_view text, size_t at, size_t limit, size_t trusted_end,
                  size_t& size) const;

  std::vector<Entry> entries_;
  Trie first_, second_;
};

}  // namespace kvilt
