#include "server/input_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/json_fields.h"

namespace kvilt::server {
namespace {

bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// `\uD8..` to `\uDB..`: the second half of the character follows.
bool is_first_half(std::string_view escape) {
  const auto is = [&](size_t i, std::string_view any) { return any.find(escape[i]) != std::string_view::npos; };
  return is(2, "dD") && is(3, "89abAB");
}

// Bytes of the escape at the beginning of the text; 0: its end has not come.
size_t escape_size(std::string_view text) {
  constexpr size_t kUnit = 6;
  if (text.size() < 2) return 0;
  if (text[1] != 'u') return 2;
  const auto has_quote = [](std::string_view part) { return part.substr(0, kUnit).find('"') != part.npos; };
  if (has_quote(text)) return 2;
  if (text.size() < kUnit) return 0;
  if (!is_first_half(text)) return kUnit;
  const std::string_view next = text.substr(kUnit);
  if (!std::string_view("\\u").starts_with(next.substr(0, 2)) || has_quote(next)) return kUnit;
  return next.size() < kUnit ? 0 : 2 * kUnit;
}

std::string unescaped(std::string_view escape) {
  const Json read = Json::parse('"' + std::string(escape) + '"', nullptr, false);
  return read.is_string() ? read.get<std::string>() : std::string(escape);
}

}  // namespace

// {"input": " with any space between.
void InputText::read_head() {
  size_t at = 0;
  for (const std::string_view word : {"{", "\"input\"", ":", "\""}) {
    while (at < held_.size() && is_json_space(held_[at])) ++at;
    const std::string_view there = std::string_view(held_).substr(at, word.size());
    if (there != word.substr(0, there.size())) {
      state_ = State::kOther;
      return;
    }
    if (there.size() < word.size()) return;
    at += word.size();
  }
  state_ = State::kText;
  held_.erase(0, at);
}

void InputText::read_text(std::string& out) {
  size_t at = 0;
  while (at < held_.size()) {
    const size_t next = std::min(held_.find_first_of("\"\\", at), held_.size());
    out.append(held_, at, next - at);
    at = next;
    if (at == held_.size()) break;
    if (held_[at] == '"') {
      state_ = State::kDone;
      at = held_.size();
      break;
    }
    const std::string_view rest = std::string_view(held_).substr(at);
    const size_t size = escape_size(rest);
    if (size == 0) break;
    out += unescaped(rest.substr(0, size));
    at += size;
  }
  held_.erase(0, at);
}

std::string InputText::push(std::string_view arguments) {
  std::string out;
  if (state_ == State::kDone) return out;
  held_ += arguments;
  if (state_ == State::kHead) read_head();
  if (state_ == State::kText) read_text(out);
  return out;
}

std::string InputText::finish() {
  const State state = std::exchange(state_, State::kDone);
  std::string rest = std::exchange(held_, {});
  if (state != State::kOther) return {};  // an answer that was cut in the head, or in an escape, has no more text
  const auto read = parse_json(rest);
  if (!read.ok() || !read.value().is_object()) return rest;
  const auto input = read.value().find("input");
  return input != read.value().end() && input->is_string() ? input->get<std::string>() : rest;
}

}  // namespace kvilt::server
