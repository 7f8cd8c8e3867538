// server/json_fields.h: reads JSON from strangers: a bounded parser, and typed fields whose errors name their path.
// Invariants: parse_json bounds what the library builds (base/json_size.h); no exception leaves this file.
// Cost:       one pass over the text, then nlohmann's.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_size.h"
#include "server/api_error.h"

namespace kvilt::server {

using Json = nlohmann::ordered_json;

ApiResult<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

// Text of a Json that is always valid UTF-8.
std::string dump(const Json& json);

// The same of a tool, without the cache_control that clients move from one to another: it is no part of the prompt.
std::string dump_unmarked(const Json& tool);

// Valid UTF-8, as texts in JSON are.
bool is_text(std::string_view bytes);

// The number with the digits by which a float is known: 0.7, and not 0.699999988079071.
double as_written(float number);

// Reads the fields of one object. A field that is absent or null leaves the target as it is. The first error stays;
// later calls do nothing then, so a caller reads everything and asks once.
class Fields {
 public:
  // path: what precedes a field's name in messages, e.g. "stream_options."
  explicit Fields(const Json& object, std::string path = {}) : object_(object), path_(std::move(path)) {}

  // The field's value, or null if it is absent, null, or an error happened.
  const Json* find(const char* name) const;

  void boolean(const char* name, bool* out);
  void integer(const char* name, int64_t low, int64_t high, int64_t* out);
  void integer(const char* name, int64_t low, int64_t high, int* out);
  void number(const char* name, double low, double high, float* out);
  void string(const char* name, std::string* out, size_t max_bytes);

  void fail(std::string name, std::string message, std::string code = {});
  void fail(ApiError error);  // with its own path
  const std::optional<ApiError>& error() const { return error_; }
  bool ok() const { return !error_; }
  std::string path(std::string_view name) const { return path_ + std::string(name); }

 private:
  const Json& object_;
  const std::string path_;
  std::optional<ApiError> error_;
};

// An integer in [low, high], written as one or as a float without a fraction (clients in dynamic languages send 5.0).
std::optional<int64_t> as_integer(const Json& value, int64_t low, int64_t high);
// A list of integers in [low, high]; nullopt if it holds anything else. *bad: the first offending index.
std::optional<std::vector<int32_t>> as_ids(const Json& value, int64_t low, int64_t high, size_t* bad);
// "a string", "a number" ...: for messages.
std::string type_of(const Json& value);

}  // namespace kvilt::server
