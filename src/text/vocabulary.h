// text/vocabulary.h: the tokens of a tokenizer: pieces to ids, ids to bytes.
// Invariants: a control, unknown or byte token is never found as a piece, so no user's text is segmented into one.
// Threads:    immutable after create().
// Cost:       one hash look-up a piece; 30 bytes a token besides its text.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kvilt/result.h"
#include "text/text_index.h"
#include "text/tokenizer_spec.h"

namespace kvilt {

class Vocabulary {
 public:
  // Checks the spec's tokens and kinds.
  static Result<Vocabulary> create(const TokenizerSpec& spec, bool byte_level);

  int size() const { return static_cast<int>(kinds_.size()); }
  bool contains(int32_t id) const { return id >= 0 && id < size(); }
  TokenKind kind(int32_t id) const { return kinds_[id]; }
  // What any text may contain: no control, unknown or byte token, and no user-defined token that looks like a marker.
  bool is_text(int32_t id) const { return is_text_[id]; }
  // As segmentation sees it: raw bytes if byte-level, else the vocabulary's spelling ("▁the").
  std::string_view piece(int32_t id) const { return slice(pieces_, piece_at_, id); }
  // As decoding gives it in mid-text.
  std::string_view decoded(int32_t id) const {
    return decoded_at_.empty() ? piece(id) : slice(decoded_, decoded_at_, id);
  }
  int32_t find_piece(std::string_view piece) const;               // -1: none
  int32_t find_any(std::string_view text) const;                  // also control tokens
  int32_t of_byte(uint8_t byte) const { return of_byte_[byte]; }  // -1: none
  size_t longest_piece() const { return longest_piece_; }

 private:
  static std::string_view slice(const std::string& arena, const std::vector<uint32_t>& at, int32_t id) {
    return std::string_view(arena).substr(at[id], at[id + 1] - at[id]);
  }
  void find_bytes(const TokenizerSpec& spec, bool byte_level);
  Status decode_all(const TokenizerSpec& spec, bool byte_level);
  void index(bool user_defined_is_text, bool html_is_text);

  std::string pieces_, decoded_;
  std::vector<uint32_t> piece_at_, decoded_at_;  // size() + 1 each; decoded_at_ is empty if it is the same
  std::vector<TokenKind> kinds_;
  std::vector<bool> is_text_;
  TextIndex by_piece_, others_;  // what segmentation may make, and the rest
  std::array<int32_t, 256> of_byte_{};
  size_t longest_piece_ = 0;
};

// The byte of "<0x41>", or -1.
int byte_of_spelling(std::string_view token);

}  // namespace kvilt
