#include "server/first_difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

namespace kvilt::server {
namespace {

constexpr int32_t kAround = 12;  // tokens either side that are made text

size_t hash_of(std::span<const int32_t> ids) {
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(ids.data()), ids.size_bytes()});
}

std::string text_around(const std::vector<int32_t>& ids, int32_t at, const Engine& engine) {
  const auto size = static_cast<int32_t>(ids.size());
  const int32_t begin = std::max(0, at - kAround), end = std::min(size, at + kAround);
  std::string out;
  for (int32_t i = begin; i < end; ++i) out += engine.token_text(ids[static_cast<size_t>(i)]);
  return out;
}

bool digit(char c) { return c >= '0' && c <= '9'; }
bool hex(char c) { return digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

bool in_word(char c) {
  return digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == ':' || c == '-' || c == '.' || c == '/' ||
         c == '_';
}

// The word of digits, letters and what dates, times and ids are written with that holds byte `at`.
std::string_view word_at(std::string_view text, size_t at) {
  size_t begin = std::min(at, text.size()), end = begin;
  while (begin > 0 && in_word(text[begin - 1])) --begin;
  while (end < text.size() && in_word(text[end])) ++end;
  return text.substr(begin, end - begin);
}

// The word before `word`, which is of `text`, or the one behind it; empty: something else than a blank or a comma stands
// between them.
std::string_view neighbour(std::string_view text, std::string_view word, bool before) {
  const auto between = [](char c) { return c == ' ' || c == ','; };
  const auto begin = static_cast<size_t>(word.data() - text.data());
  if (!before) {
    size_t at = begin + word.size();
    while (at < text.size() && between(text[at])) ++at;
    return word_at(text, at);
  }
  size_t at = begin;
  while (at > 0 && between(text[at - 1])) --at;
  return at == begin || at == 0 ? std::string_view() : word_at(text, at - 1);
}

std::string lower(std::string_view word) {
  std::string out(word);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

// "nov", "Nov." and "NOVEMBER" are `name`.
bool is_name(std::string_view word, std::string_view name) {
  while (word.ends_with('.')) word.remove_suffix(1);
  const std::string small = lower(word);
  return small == name || (small.size() == 3 && name.starts_with(small)) || (small == "sept" && name == "september");
}

bool is_month(std::string_view word) {
  constexpr std::string_view kMonths[] = {"january", "february", "march",     "april",   "may",      "june",
                                          "july",    "august",   "september", "october", "november", "december"};
  return std::ranges::any_of(kMonths, [&](std::string_view name) { return is_name(word, name); });
}

bool is_weekday(std::string_view word) {
  constexpr std::string_view kDays[] = {"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"};
  return std::ranges::any_of(kDays, [&](std::string_view name) { return is_name(word, name); });
}

// "pm", "P.M.": by itself, or at the end of a time.
std::string_view without_noon(std::string_view word) {
  for (const size_t size : {size_t{2}, size_t{3}, size_t{4}}) {
    if (word.size() < size) break;
    std::string end = lower(word.substr(word.size() - size));
    std::erase(end, '.');
    const bool whole = size == word.size() || digit(word[word.size() - size - 1]);
    if (whole && (end == "am" || end == "pm")) return word.substr(0, word.size() - size);
  }
  return word;
}

// 24, 24th, 2026.
bool is_count(std::string_view word) {
  for (const std::string_view ordinal : {"st", "nd", "rd", "th"}) {
    if (word.ends_with(ordinal)) word.remove_suffix(ordinal.size());
  }
  while (word.ends_with('.')) word.remove_suffix(1);
  return !word.empty() && word.size() <= 4 && std::ranges::all_of(word, digit);
}

// A weekday, a month, or a number beside one that has both other parts of a date: "Nov 24, 2026", "24 November".
bool is_in_date(std::string_view text, std::string_view word) {
  if (word.empty()) return false;
  if (is_month(word) || is_weekday(word) || without_noon(word).empty()) return true;
  if (!is_count(word)) return false;
  const std::string_view before = neighbour(text, word, true), after = neighbour(text, word, false);
  const auto is_date = [](std::string_view name) { return is_month(name) && name[0] >= 'A' && name[0] <= 'Z'; };
  if (is_date(before) || is_date(after)) return true;
  return is_count(before) && is_date(neighbour(text, before, true));  // the year
}

// 10:31, 10:31PM, 2026-11-24, 24.11.2026, 10 or 13 digits (seconds or milliseconds since 1970), 11/24/2026.
bool is_clock(std::string_view word) {
  word = without_noon(word);
  size_t digits = 0, signs = 0, others = 0;
  for (size_t i = 0; i < word.size(); ++i) {
    const bool between = i > 0 && i + 1 < word.size() && digit(word[i - 1]) && digit(word[i + 1]);
    if (digit(word[i])) {
      ++digits;
    } else if (between && (word[i] == ':' || word[i] == '-' || word[i] == '.' || word[i] == '/')) {
      ++signs;
    } else if (word[i] != 'T' && word[i] != 'Z') {
      ++others;
    }
  }
  if (others > 0) return false;
  const bool stamp = signs == 0 && (digits == 10 || digits == 13);
  return stamp || (digits >= 3 && signs >= 1 && word.find(':') != std::string_view::npos) ||
         (digits >= 6 && signs >= 2);
}

// A run of digits and letters, both, of six or more: hexadecimal digits, UUIDs, "call_x7Gh2".
bool looks_like_id(std::string_view word) {
  const auto digits = std::ranges::count_if(word, digit), hexes = std::ranges::count_if(word, hex);
  const auto signs = std::ranges::count_if(word, [](char c) { return c == '-' || c == '_'; });
  const bool hexadecimal = hexes + signs == std::ssize(word) && hexes >= 6;
  return hexadecimal || (word.size() >= 6 && digits >= 2 && digits < std::ssize(word));
}

// The changed words of both texts; what they begin with in common is before them.
std::string kind_of_text(std::string_view before, std::string_view after) {
  const size_t at = static_cast<size_t>(std::ranges::mismatch(before, after).in1 - before.begin());
  const std::string_view was = word_at(before, at), is = word_at(after, at);
  if (is_clock(was) && is_clock(is)) return "clock";
  if (is_in_date(before, was) && is_in_date(after, is)) return "clock";
  if (looks_like_id(was) && looks_like_id(is)) return "id";
  return "edit";
}

std::string path_of(const PromptPart& part) {
  std::string out = fmt::format("{}[{}]", part.of == PromptPart::Of::kDocument ? "documents" : "messages", part.index);
  if (part.of == PromptPart::Of::kMessage) out += part.part < 0 ? ".content" : fmt::format(".content[{}]", part.part);
  return out;
}

// From what stands at the first difference in both lists.
std::string kind_of_lists(const std::vector<size_t>& older, const std::vector<size_t>& newer, size_t at) {
  const auto later = [at](const std::vector<size_t>& list, size_t what) {
    return std::find(list.begin() + static_cast<ptrdiff_t>(std::min(at + 1, list.size())), list.end(), what) !=
           list.end();
  };
  if (at >= older.size()) return "new";
  if (at >= newer.size()) return "removal";
  const bool old_comes = later(newer, older[at]), new_came = later(older, newer[at]);
  if (old_comes && new_came) return "order";
  if (old_comes) return "new";
  if (new_came) return "removal";
  return "";
}

size_t first_unequal(const std::vector<size_t>& a, const std::vector<size_t>& b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

ComparedPrompt compared(const Prompt& prompt) {
  ComparedPrompt out{prompt.ids, prompt.parts, {}, {}, 0};
  for (const PromptPart& part : prompt.parts) {
    const auto begin = static_cast<size_t>(part.begin), size = static_cast<size_t>(part.end - part.begin);
    out.of_parts.push_back(hash_of(std::span(prompt.ids).subspan(begin, size)));
  }
  return out;
}

std::vector<size_t> hashes_of(const Json& list) {
  std::vector<size_t> out;
  for (const Json& one : list) out.push_back(std::hash<std::string>()(dump_unmarked(one)));
  return out;
}

int32_t common_tokens(const ComparedPrompt& a, const ComparedPrompt& b) {
  return static_cast<int32_t>(std::ranges::mismatch(a.ids, b.ids).in1 - a.ids.begin());
}

FirstDifference first_difference(const ComparedPrompt& older, const ComparedPrompt& newer, const Engine& engine) {
  FirstDifference out;
  out.common = common_tokens(older, newer);
  out.before = text_around(older.ids, out.common, engine);
  out.after = text_around(newer.ids, out.common, engine);
  const bool ended = out.common == std::ssize(newer.ids);
  const auto written = older.parts.empty() ? std::ssize(older.ids) : ptrdiff_t{older.parts.back().end};
  out.went_on = out.common >= written;
  if (ended && newer.ids.size() == older.ids.size()) {
    out.kind = "none";
    return out;
  }
  const auto part = std::ranges::find_if(newer.parts, [&](const PromptPart& p) { return out.common < p.end; });
  const bool inside = part != newer.parts.end() && part->begin <= out.common;
  // Templates have the tools before the system's text or behind it, but before what anybody else says.
  const auto turn = std::ranges::find_if(
      newer.parts, [&](const PromptPart& p) { return p.of == PromptPart::Of::kMessage && p.index >= newer.systems; });
  const auto within = [&](const PromptPart& p) { return p.begin <= out.common && out.common < p.end; };
  const bool behind_system =
      !inside && std::ranges::none_of(older.parts, within) && (turn == newer.parts.end() || out.common < turn->begin);
  const bool head = newer.parts.empty() || out.common < newer.parts.front().begin || behind_system;
  if (head && newer.tools != older.tools) {
    const size_t at = first_unequal(older.tools, newer.tools);
    out.path = fmt::format("tools[{}]", at);
    out.offset = out.common;
    out.kind = kind_of_lists(older.tools, newer.tools, at);
    if (out.kind.empty()) out.kind = "edit";
    return out;
  }
  out.path = inside ? path_of(*part) : "template";
  out.offset = inside ? out.common - part->begin : out.common;
  const size_t at = first_unequal(older.of_parts, newer.of_parts);
  // The beginning of an answer's turn stands where the next message does.
  if (at >= older.of_parts.size() && at < newer.of_parts.size() && !inside) out.path = path_of(newer.parts[at]);
  const bool chats = !older.of_parts.empty() && !newer.of_parts.empty();
  if (chats) out.kind = kind_of_lists(older.of_parts, newer.of_parts, at);
  if (out.common == std::ssize(older.ids)) out.kind = "new";
  if (out.kind.empty()) out.kind = kind_of_text(out.before, out.after);
  return out;
}

}  // namespace kvilt::server
