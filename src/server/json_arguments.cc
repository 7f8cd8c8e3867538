#include "server/json_arguments.h"

namespace kvilt::server {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20; }

// What stands behind the backslash of a control character's escape.
std::string escape_of(char c) {
  constexpr std::string_view kPlain = "\b\f\n\r\t", kLetters = "bfnrt", kDigits = "0123456789abcdef";
  if (const size_t at = kPlain.find(c); at != std::string_view::npos) return {kLetters[at]};
  return {'u', '0', '0', kDigits[static_cast<size_t>(c) / 16], kDigits[static_cast<size_t>(c) % 16]};
}

}  // namespace

JsonArguments::Piece JsonArguments::take(std::string_view text) {
  Piece out;
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
  return out;
}

std::string whole_arguments(std::string_view value) { return JsonArguments().take(value).json; }

}  // namespace kvilt::server
