// text/unicode.h: UTF-8 and Unicode as the tokenizers need them.
// Role:    checks and repairs UTF-8, normalises (ICU), and spells bytes as GPT-2's byte-level vocabularies do.
// Source:  Unicode 15, table 3-7 (well-formed UTF-8) and the "maximal subpart" rule for replacement.
// Threads: pure; any thread.
// Cost:    linear; n log n in a run of n combining marks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvilt/result.h"

namespace kvilt {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

struct CodePoint {
  int32_t value = -1;  // -1: the `size` bytes are not UTF-8
  int size = 1;        // at least 1
  bool cut = false;    // not UTF-8 yet, but more bytes could make it so
};
// REQUIRES: !text.empty().
CodePoint first_code_point(std::string_view text);
void append_utf8(std::string& out, int32_t code_point);

bool is_ascii(std::string_view text);
bool is_utf8(std::string_view text);
// Appends `bytes`, each maximal ill-formed part as U+FFFD.
void append_repaired(std::string& out, std::string_view bytes);

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };
// REQUIRES: is_utf8(text).
Result<std::string> to_normal_form(std::string_view text, NormalForm form);
std::string to_lower(std::string_view text);
bool is_white_space(int32_t code_point);
bool is_word_character(int32_t code_point);
// For a terminal: control characters (ESC, new lines, those that turn the direction of text) as \u001b, bytes that are
// not UTF-8 as \xff.
std::string for_terminal(std::string_view text);

// GPT-2's printable spelling: one character per byte, bytes that do not print are U+0100 and up.
std::string spell_bytes(std::string_view bytes);
// Its inverse; false if `spelling` holds a character that spells no byte.
bool unspell_bytes(std::string_view spelling, std::string& bytes);

}  // namespace kvilt
