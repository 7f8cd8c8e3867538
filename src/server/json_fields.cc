#include "server/json_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace kvilt::server {
ApiResult<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  if (auto wrong = oversized_json(text, limits, "the JSON body")) return ApiError{400, *wrong, "", ""};
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& e) {
    const bool utf8 = std::string_view(e.what()).find("UTF-8") != std::string_view::npos;
    return ApiError{
        400, fmt::format("the body is not valid JSON: {} at byte {}", utf8 ? "invalid UTF-8" : "syntax error", e.byte),
        "", "invalid_json"};
  } catch (const Json::exception& e) {
    return ApiError{400, "the body is not valid JSON: a number is out of range", "", "invalid_json"};
  }
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string dump_unmarked(const Json& tool) {
  constexpr const char* kControl = "cache_control";
  if (!tool.is_object() || !tool.contains(kControl)) return dump(tool);
  Json bare = tool;
  bare.erase(kControl);
  return dump(bare);
}

bool is_text(std::string_view bytes) {
  try {
    return !Json(bytes).dump().empty();
  } catch (const Json::type_error&) {
    return false;
  }
}

double as_written(float number) {
  char digits[32];
  const auto [end, failed] = std::to_chars(digits, digits + sizeof(digits), number);
  double out = number;
  if (failed == std::errc()) std::from_chars(digits, end, out);
  return out;
}

std::string type_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

std::optional<int64_t> as_integer(const Json& value, int64_t low, int64_t high) {
  int64_t number = 0;
  if (value.is_number_unsigned()) {
    const auto raw = value.get<uint64_t>();
    if (raw > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    number = static_cast<int64_t>(raw);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float()) {
    const auto real = value.get<double>();
    if (!(std::abs(real) < 9e15) || real != std::floor(real)) return std::nullopt;  // exact in a double
    number = static_cast<int64_t>(real);
  } else {
    return std::nullopt;
  }
  if (number < low || number > high) return std::nullopt;
  return number;
}

std::optional<std::vector<int32_t>> as_ids(const Json& value, int64_t low, int64_t high, size_t* bad) {
  *bad = 0;
  if (!value.is_array()) return std::nullopt;
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& item : value) {
    const auto id = as_integer(item, low, high);
    if (!id) return std::nullopt;
    ids.push_back(static_cast<int32_t>(*id));
    ++*bad;
  }
  return ids;
}

const Json* Fields::find(const char* name) const {
  if (error_) return nullptr;
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void Fields::fail(std::string name, std::string message, std::string code) {
  if (error_) return;
  const std::string where = path(name);
  error_ = ApiError{400, fmt::format("{}: {}", where, message), where, std::move(code)};
}

void Fields::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void Fields::boolean(const char* name, bool* out) {
  const Json* value = find(name);
  if (!value) return;
  if (!value->is_boolean()) return fail(name, fmt::format("must be true or false, not {}", type_of(*value)));
  *out = value->get<bool>();
}

void Fields::integer(const char* name, int64_t low, int64_t high, int64_t* out) {
  const Json* value = find(name);
  if (!value) return;
  const auto number = as_integer(*value, low, high);
  if (!number) {
    return fail(name, value->is_number() ? fmt::format("must be an integer from {} to {}", low, high)
                                         : fmt::format("must be an integer, not {}", type_of(*value)));
  }
  *out = *number;
}

void Fields::integer(const char* name, int64_t low, int64_t high, int* out) {
  int64_t wide = *out;
  integer(name, low, high, &wide);
  *out = static_cast<int>(wide);
}

void Fields::number(const char* name, double low, double high, float* out) {
  const Json* value = find(name);
  if (!value) return;
  if (!value->is_number()) return fail(name, fmt::format("must be a number, not {}", type_of(*value)));
  const auto number = value->get<double>();
  if (!(number >= low && number <= high)) return fail(name, fmt::format("must be from {} to {}", low, high));
  *out = static_cast<float>(number);
}

void Fields::string(const char* name, std::string* out, size_t max_bytes) {
  const Json* value = find(name);
  if (!value) return;
  if (!value->is_string()) return fail(name, fmt::format("must be a string, not {}", type_of(*value)));
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > max_bytes) return fail(name, fmt::format("is longer than {} bytes", max_bytes));
  *out = text;
}

}  // namespace kvilt::server
