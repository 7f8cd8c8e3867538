#include "server/json_arguments.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/json_fields.h"
#include "server/literal_match.h"

namespace kvilt::server {
namespace {

constexpr JsonLimits kValue{.depth = 64, .values = 100'000, .members = 1024, .look_ups = 1'000'000};

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20; }

// What stands behind the backslash of a control character's escape.
std::string escape_of(char c) {
  constexpr std::string_view kPlain = "\b\f\n\r\t", kLetters = "bfnrt", kDigits = "0123456789abcdef";
  if (const size_t at = kPlain.find(c); at != std::string_view::npos) return {kLetters[at]};
  return {'u', '0', '0', kDigits[static_cast<size_t>(c) / 16], kDigits[static_cast<size_t>(c) % 16]};
}

// The object for which a string or a word stands; else the value itself.
std::string unwrapped(std::string value) {
  if (value == "null") return "{}";
  if (!value.starts_with('"')) return value;
  const Json read = Json::parse(value, nullptr, false);
  if (!read.is_string()) return value;
  const std::string_view inner = trimmed(read.get_ref<const std::string&>());
  if (!inner.starts_with('{')) return value;
  const JsonArguments::Piece object = JsonArguments().take(inner);
  return object.size == inner.size() && is_json(object.json) ? object.json : value;
}

}  // namespace

JsonArguments::Piece JsonArguments::take(std::string_view text) {
  Piece out;
  if (!begun_ && !text.empty()) {
    begun_ = true;
    if (text[0] != '{' && text[0] != '[') held_.emplace();
  }
  while (out.size < text.size() && !out.ended) {
    const char c = text[out.size];
    const bool slipped = scan_.in_string() && is_control(c), escaped = scan_.escaped();
    const JsonScan::Step step = scan_.take(c);
    out.ended = step != JsonScan::Step::kInside;
    if (step == JsonScan::Step::kPast || step == JsonScan::Step::kWrong) break;
    ++out.size;
    if (!slipped) {
      out.json += c;
      continue;
    }
    if (!escaped) out.json += '\\';  // behind a backslash it was the model's
    out.json += escape_of(c);
  }
  if (held_) {
    *held_ += std::exchange(out.json, {});
    if (out.ended) out.json = unwrapped(*std::exchange(held_, std::nullopt));
  }
  return out;
}

// A string without its end is no JSON, as an object without its brace is none; a word would be.
std::string JsonArguments::finish(bool cut) {
  if (!held_ || (cut && !scan_.in_string())) return {};
  return unwrapped(*std::exchange(held_, std::nullopt));
}

std::string whole_arguments(std::string_view value) {
  JsonArguments arguments;
  const std::string json = arguments.take(value).json;
  return json + arguments.finish(false);
}

bool is_json(std::string_view text) { return !oversized_json(text, kValue, "") && Json::accept(text); }

}  // namespace kvilt::server
