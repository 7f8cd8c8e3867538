// model/json_text.h: JSON from files that nobody vouches for.
// Errors: kCorrupt for syntax, invalid UTF-8, a key that one object has twice, or nesting beyond kMaxJsonDepth.
// Cost:   the caller bounds the size of the text; the parsed form takes some 20 times its bytes at worst.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "kvilt/result.h"

namespace kvilt {

constexpr int kMaxJsonDepth = 32;

// where: what to call the text in messages.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& where);

}  // namespace kvilt
