// text/unicode.cc: see unicode.h.
#include "text/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace kvilt {
namespace {

// The range of the second byte depends on the first (table 3-7): no overlong form, surrogate or value above 10FFFF.
struct LeadByte {
  int size;
  uint8_t low, high;
};
LeadByte lead_of(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

bool prints(int byte) {  // the bytes that GPT-2's spelling does not change (Latin-1)
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct Spelling {
  std::array<uint16_t, 256> of_byte{};
  std::array<int16_t, 0x180> byte_of{};
};
const Spelling& spelling() {
  static const Spelling table = [] {
    Spelling t;
    t.byte_of.fill(-1);
    int next = 0x100;
    for (int b = 0; b < 256; ++b) {
      t.of_byte[b] = static_cast<uint16_t>(prints(b) ? b : next++);
      t.byte_of[t.of_byte[b]] = static_cast<int16_t>(b);
    }
    return t;
  }();
  return table;
}

// A longer run of marks is put in order here. Text in UAX 15's stream-safe format has no longer one.
constexpr int kLongRun = 30;

// Appends `text`, decomposed and in canonical order.
void append_ordered(std::string_view text, const icu::Normalizer2& decomposer, std::string& out) {
  std::vector<uint32_t> marks;  // since the last starter: combining class << 24 | code point
  const auto flush = [&] {
    std::ranges::stable_sort(marks, {}, [](uint32_t mark) { return mark >> 24; });
    for (const uint32_t mark : marks) append_utf8(out, static_cast<int32_t>(mark & 0xFFFFFF));
    marks.clear();
  };
  const auto add = [&](int32_t c) {
    const uint32_t combining_class = decomposer.getCombiningClass(c);
    if (combining_class != 0) return marks.push_back(combining_class << 24 | static_cast<uint32_t>(c));
    flush();
    append_utf8(out, c);
  };
  icu::UnicodeString parts;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    if (decomposer.getDecomposition(c.value, parts)) {
      for (int32_t k = 0; k < parts.length(); k = parts.moveIndex32(k, 1)) add(parts.char32At(k));
    } else {
      add(c.value);
    }
    i += c.size;
  }
  flush();
}

// ICU walks back over a run of marks to the place of each: quadratic. So long runs come to it in order, which changes no
// form of the text. Returns false, and leaves `out` alone, if there is none. decomposer: the form's, NFD or NFKD.
bool order_long_runs(std::string_view text, const icu::Normalizer2& decomposer, std::string& out) {
  constexpr int32_t kFirstMark = 0x300;
  constexpr uint8_t kFirstMarkLead = 0xCC;  // no character below kFirstMark has this byte or a greater one
  if (std::ranges::all_of(text, [](char byte) { return static_cast<uint8_t>(byte) < kFirstMarkLead; })) return false;
  size_t done = 0, begin = 0;  // `out` has the text up to done; the run's character begins at begin
  int marks = 0;
  for (size_t i = 0;;) {
    const CodePoint c = i < text.size() ? first_code_point(text.substr(i)) : CodePoint{};
    if (c.value < kFirstMark || decomposer.hasBoundaryBefore(c.value)) {
      if (marks > kLongRun) {
        out.append(text.substr(done, begin - done));
        append_ordered(text.substr(begin, i - begin), decomposer, out);
        done = i;
      }
      if (i == text.size()) break;
      begin = i;
      marks = 0;
    } else {
      ++marks;
    }
    i += c.size;
  }
  if (done > 0) out.append(text.substr(done));
  return done > 0;
}

}  // namespace

CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1, false};
  const LeadByte lead = lead_of(byte(0));
  if (lead.size == 0) return {-1, 1, false};
  int32_t value = byte(0) & (0x7F >> lead.size);
  for (int i = 1; i < lead.size; ++i) {
    if (static_cast<size_t>(i) >= text.size()) return {-1, i, true};
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {-1, i, false};
    value = value << 6 | (byte(i) & 0x3F);
  }
  return {value, lead.size, false};
}

void append_utf8(std::string& out, int32_t c) {
  const auto put = [&](int32_t b) { out.push_back(static_cast<char>(b)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xE0 | c >> 12);
    } else {
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3F));
    }
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

bool is_ascii(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080ull) return false;
  }
  for (; i < text.size(); ++i) {
    if (static_cast<uint8_t>(text[i]) >= 0x80) return false;
  }
  return true;
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const CodePoint c = first_code_point(text.substr(i));
    if (c.value < 0) return false;
    i += c.size;
  }
  return true;
}

void append_repaired(std::string& out, std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const CodePoint c = first_code_point(bytes.substr(i));
    out.append(c.value < 0 ? kReplacementCharacter : bytes.substr(i, c.size));
    i += c.size;
  }
}

Result<std::string> to_normal_form(std::string_view text, NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const icu::Normalizer2* const decomposer =
      compatible ? icu::Normalizer2::getNFKDInstance(status) : icu::Normalizer2::getNFDInstance(status);
  const icu::Normalizer2* normalizer = decomposer;
  if (form == NormalForm::kNfc) normalizer = icu::Normalizer2::getNFCInstance(status);
  if (form == NormalForm::kNfkc) normalizer = icu::Normalizer2::getNFKCInstance(status);
  std::string out;
  if (U_SUCCESS(status)) {
    std::string ordered;
    if (order_long_runs(text, *decomposer, ordered)) text = ordered;
    out.reserve(text.size());
    icu::StringByteSink<std::string> sink(&out);
    const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
    normalizer->normalizeUTF8(0, piece, sink, nullptr, status);
  }
  if (U_FAILURE(status)) return error(Code::kInternal, "Unicode normalisation failed: {}", u_errorName(status));
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    if (c.value == 0x130) {
      out.append("i\xCC\x87");  // the one character whose full lower case is two
    } else {
      append_utf8(out, c.value < 0 ? 0xFFFD : u_tolower(c.value));
    }
    i += c.size;
  }
  return out;
}

bool is_white_space(int32_t c) { return u_hasBinaryProperty(c, UCHAR_WHITE_SPACE); }

bool is_word_character(int32_t c) {
  return u_hasBinaryProperty(c, UCHAR_ALPHABETIC) || u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) ||
         (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char b : bytes) append_utf8(out, spelling().of_byte[static_cast<uint8_t>(b)]);
  return out;
}

bool unspell_bytes(std::string_view text, std::string& bytes) {
  bytes.clear();
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    if (c.value < 0 || c.value >= 0x180 || spelling().byte_of[c.value] < 0) return false;
    bytes.push_back(static_cast<char>(spelling().byte_of[c.value]));
    i += c.size;
  }
  return true;
}

std::string for_terminal(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    const std::string_view bytes = text.substr(i, static_cast<size_t>(c.size));
    if (c.value < 0) {
      for (const char byte : bytes) out += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
    } else if (U_GET_GC_MASK(c.value) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_ZL_MASK | U_GC_ZP_MASK)) {
      out += fmt::format("\\u{:04x}", c.value);
    } else {
      out.append(bytes);
    }
    i += bytes.size();
  }
  return out;
}

}  // namespace kvilt
