// text/json_reader.h: reads tokenizer.json's fields; errors name the field.
// Threads:    pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace kvilt {

using Json = nlohmann::json;

// Parses with bounds on size and nesting; numbers, strings and structure as RFC 8259 has them.
Result<Json> parse_json(std::string_view text, std::string_view what);

// The member, or nullptr if there is none or it is null.
const Json* json_member(const Json& object, const char* key);

Result<std::string> json_string(const Json& object, const char* key);
Result<bool> json_bool(const Json& object, const char* key, bool otherwise);
Result<int64_t> json_int(const Json& object, const char* key, int64_t otherwise);
// The value of "type", the tag of all of tokenizer.json's variants.
Result<std::string> json_type(const Json& object, std::string_view what);

}  // namespace kvilt
