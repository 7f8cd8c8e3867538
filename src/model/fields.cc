#include "model/fields.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/tensor_table.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

Scalar from_json(const nlohmann::json& object, const std::string& key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  if (it == object.end() || it->is_null()) return std::monostate{};
  if (it->is_boolean()) return it->get<bool>();
  if (it->is_number_unsigned() && it->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return OtherKind{"a number out of range"};
  if (it->is_number_integer()) return it->get<int64_t>();
  if (it->is_number_float()) return it->get<double>();
  if (it->is_string()) return it->get<std::string>();
  return OtherKind{it->is_array() ? "an array" : "an object"};
}

Scalar from_gguf(const GgufFile& gguf, const std::string& key) {
  const GgufValue* value = gguf.find(key);
  if (!value) return std::monostate{};
  if (const auto flag = value->as_bool()) return *flag;
  if (const auto integer = value->as_int()) return *integer;
  if (const auto number = value->as_number()) return *number;
  if (const auto text = value->as_string()) {
    if (!is_utf8(*text)) return OtherKind{"a text that is not UTF-8"};  // it would go into JSON answers
    return std::string(*text);
  }
  constexpr uint64_t kMaxList = 1 << 16;  // one number a layer; a list takes eight times its bytes
  if (value->type == GgufType::kArray && value->count > kMaxList) return OtherKind{"a long array"};
  if (const auto list = value->as_ints(); list && !list->empty()) {
    const bool equal = std::all_of(list->begin(), list->end(), [&](int64_t x) { return x == list->front(); });
    if (equal) return list->front();
    return OtherKind{"an array of different values"};
  }
  return OtherKind{value->type == GgufType::kArray ? "an array" : "a number out of range"};
}

std::string show(const Scalar& value) {
  struct Shower {
    std::string operator()(std::monostate) const { return "nothing"; }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(int64_t integer) const { return fmt::format("{}", integer); }
    std::string operator()(double number) const { return fmt::format("{}", number); }
    std::string operator()(const std::string& text) const { return fmt::format("'{}'", printable(text)); }
    std::string operator()(const OtherKind& other) const { return other.kind; }
  };
  return std::visit(Shower{}, value);
}

}  // namespace

Fields::Fields(const nlohmann::json& object, std::string where)
    : find_([&object](const std::string& key) { return from_json(object, key); }), where_(std::move(where)) {}

Fields::Fields(const GgufFile& gguf, std::string prefix, std::string where)
    : find_([&gguf](const std::string& key) { return from_gguf(gguf, key); }),
      prefix_(std::move(prefix)),
      where_(std::move(where)) {}

bool Fields::has(const std::string& key) const { return !std::holds_alternative<std::monostate>(find_(prefix_ + key)); }

int64_t Fields::integer(const std::string& key, int64_t low, int64_t high) {
  if (!has(key)) {
    fail(error(Code::kCorrupt, "{}: '{}{}' is missing", where_, prefix_, key));
    return low;
  }
  return integer_or(key, low, low, high);
}

int64_t Fields::integer_or(const std::string& key, int64_t fallback, int64_t low, int64_t high) {
  const Scalar value = find_(prefix_ + key);
  if (std::holds_alternative<std::monostate>(value)) return fallback;
  const auto* integer = std::get_if<int64_t>(&value);
  if (integer && *integer >= low && *integer <= high) return *integer;
  fail_type(key, fmt::format("a whole number from {} to {}", low, high).c_str(), value);
  return fallback;
}

double Fields::number_or(const std::string& key, double fallback, double low, double high) {
  const Scalar value = find_(prefix_ + key);
  if (std::holds_alternative<std::monostate>(value)) return fallback;
  double number = std::nan("");
  if (const auto* integer = std::get_if<int64_t>(&value)) number = static_cast<double>(*integer);
  if (const auto* floating = std::get_if<double>(&value)) number = *floating;
  if (number >= low && number <= high) return number;  // false for NaN
  fail_type(key, fmt::format("a number from {} to {}", low, high).c_str(), value);
  return fallback;
}

bool Fields::flag_or(const std::string& key, bool fallback) {
  const Scalar value = find_(prefix_ + key);
  if (std::holds_alternative<std::monostate>(value)) return fallback;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag;
  fail_type(key, "true or false", value);
  return fallback;
}

std::string Fields::text_or(const std::string& key, std::string fallback) {
  Scalar value = find_(prefix_ + key);
  if (std::holds_alternative<std::monostate>(value)) return fallback;
  if (auto* text = std::get_if<std::string>(&value)) return std::move(*text);
  fail_type(key, "a text", value);
  return fallback;
}

void Fields::fail(Error error) {
  if (status_.ok()) status_ = std::move(error);
}

void Fields::fail_type(const std::string& key, const char* wanted, const Scalar& got) {
  fail(error(Code::kCorrupt, "{}: '{}{}' must be {}, not {}", where_, prefix_, key, wanted, show(got)));
}

}  // namespace kvilt
