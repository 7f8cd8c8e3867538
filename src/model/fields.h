// model/fields.h: typed, bounded reading of named settings, the same for JSON objects and GGUF metadata.
// Idea:    the first mistake sticks and later reads return their fallback, so that a config is read as a list of fields
//          and checked once. A message names file, key, value and what is allowed.
#pragma once

#include <functional>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "kvilt/result.h"
#include "model/gguf.h"

namespace kvilt {

struct OtherKind {
  std::string kind;  // "an array", "an object", "a number out of range": for messages
};
// monostate: absent or null.
using Scalar = std::variant<std::monostate, bool, int64_t, double, std::string, OtherKind>;

class Fields {
 public:
  // The source must outlive the Fields. where: the file, for messages.
  Fields(const nlohmann::json& object, std::string where);
  // Keys get the prefix, e.g. "llama.". An array of equal integers (a value per layer) reads as that integer.
  Fields(const GgufFile& gguf, std::string prefix, std::string where);

  bool has(const std::string& key) const;
  int64_t integer(const std::string& key, int64_t low, int64_t high);  // must be there
  int64_t integer_or(const std::string& key, int64_t fallback, int64_t low, int64_t high);
  double number_or(const std::string& key, double fallback, double low, double high);
  bool flag_or(const std::string& key, bool fallback);
  std::string text_or(const std::string& key, std::string fallback);

  void fail(Error error);  // keeps the first
  const Status& status() const { return status_; }
  const std::string& where() const { return where_; }

 private:
  void fail_type(const std::string& key, const char* wanted, const Scalar& got);

  std::function<Scalar(const std::string&)> find_;
  std::string prefix_, where_;
  Status status_;
};

}  // namespace kvilt
