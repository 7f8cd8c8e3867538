// text/json_reader.cc: see json_reader.h.
#include "text/json_reader.h"

#include <nlohmann/json.hpp>

namespace kvilt {
namespace {

constexpr size_t kMaxJson = 96 << 20;
constexpr int kMaxDepth = 64;

bool too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what) {
  if (text.size() > kMaxJson)
    return error(Code::kUnsupported, "{}: {} bytes are more than {}", what, text.size(), kMaxJson);
  if (too_deep(text)) return error(Code::kCorrupt, "{}: nested more than {} deep", what, kMaxDepth);
  try {
    Json value = Json::parse(text);
    if (!value.is_object()) return error(Code::kCorrupt, "{}: not a JSON object", what);
    return value;
  } catch (const std::exception& e) {
    return error(Code::kCorrupt, "{}: {}", what, e.what());
  }
}

const Json* json_member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

Result<std::string> json_string(const Json& object, const char* key) {
  const Json* value = json_member(object, key);
  if (value == nullptr || !value->is_string())
    return error(Code::kCorrupt, "tokenizer.json: '{}' is not a string", key);
  return value->get<std::string>();
}

Result<bool> json_bool(const Json& object, const char* key, bool otherwise) {
  const Json* value = json_member(object, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) return error(Code::kCorrupt, "tokenizer.json: '{}' is neither true nor false", key);
  return value->get<bool>();
}

Result<int64_t> json_int(const Json& object, const char* key, int64_t otherwise) {
  const Json* value = json_member(object, key);
  if (value == nullptr) return otherwise;
  if (!value->is_number_integer() || (value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX)) {
    return error(Code::kCorrupt, "tokenizer.json: '{}' is not an integer", key);
  }
  return value->get<int64_t>();
}

Result<std::string> json_type(const Json& object, std::string_view what) {
  const Json* value = json_member(object, "type");
  if (value == nullptr || !value->is_string())
    return error(Code::kCorrupt, "tokenizer.json: a {} without a type", what);
  return value->get<std::string>();
}

}  // namespace kvilt
