// server/api_error.h: an error as an API shapes it, and how the engine's errors become one.
// Invariants: every answer with a status >= 400 has the body {"error": {"message", "type", "param", "code"}}; of
//             Anthropic's routes {"type": "error", "error": {"type", "message"}}.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"
#include "kvilt/result.h"

namespace kvilt::server {

// Whose clients read an answer.
enum class ApiShape { kOpenAi, kAnthropic };
ApiShape shape_of(std::string_view path);  // of a URL

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  // path of the JSON field that is wrong; empty: null
  std::string code;   // e.g. context_length_exceeded; empty: null

  // invalid_request_error, authentication_error, rate_limit_error, server_error ...: follows from the status.
  const char* type(ApiShape shape = ApiShape::kOpenAi) const;
};

// The JSON text of the body.
std::string error_body(const ApiError& error, ApiShape shape = ApiShape::kOpenAi);

// param: the field that the engine judged, unless the message starts with a path of its own
// ("messages[2].content: ...").
ApiError api_error(const Error& error, std::string param = {});

// Either a value or an ApiError.
template <class T>
class [[nodiscard]] ApiResult {
 public:
  ApiResult(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  ApiResult(ApiError error) : state_(std::in_place_index<1>, std::move(error)) {}
  bool ok() const { return state_.index() == 0; }
  T& value() { return std::get<0>(state_); }
  const T& value() const { return std::get<0>(state_); }
  const ApiError& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, ApiError> state_;
};

}  // namespace kvilt::server
