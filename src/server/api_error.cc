#include "server/api_error.h"

#include <nlohmann/json.hpp>

namespace kvilt::server {

const char* ApiError::type() const {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string error_body(const ApiError& error) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
  };
  const nlohmann::ordered_json body = {{"error",
                                        {{"message", error.message},
                                         {"type", error.type()},
                                         {"param", text_or_null(error.param)},
                                         {"code", text_or_null(error.code)}}}};
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

ApiError api_error(const Error& error, std::string param) {
  switch (error.code) {
    case Code::kInvalidArgument:
      return {400, error.message, std::move(param), ""};
    case Code::kUnsupported:
      return {400, error.message, std::move(param), "unsupported"};
    case Code::kTooLong:
      return {400, error.message, std::move(param), "context_length_exceeded"};
    case Code::kNotFound:
      return {404, error.message, std::move(param), "not_found"};
    case Code::kExhausted:
      return {503, error.message, "", "overloaded"};
    case Code::kUnavailable:
      return {503, error.message, "", "unavailable"};
    case Code::kCancelled:
      return {503, error.message, "", "cancelled"};
    case Code::kCorrupt:
    case Code::kIo:
    case Code::kInternal:
      return {500, error.message, "", "internal_error"};
  }
  return {500, error.message, "", "internal_error"};
}

}  // namespace kvilt::server
