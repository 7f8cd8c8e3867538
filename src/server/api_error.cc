#include "server/api_error.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

namespace kvilt::server {
namespace {

// "messages[2].content" of "messages[2].content: must be a string"; empty if the message starts otherwise.
std::string leading_path(const std::string& message) {
  const size_t end = message.find(": ");
  if (end == std::string::npos || end == 0) return {};
  const bool path = std::all_of(message.begin(), message.begin() + static_cast<ptrdiff_t>(end), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '.' || c == '[' || c == ']';
  });
  const size_t root = message.find_first_of(".[:");
  const std::string first = message.substr(0, root);
  const bool known = first == "messages" || first == "documents" || first == "documents_order" ||
                     first == "tools_order" || first == "tools" || first == "chat_template_kwargs" ||
                     first == "add_generation_prompt" || first == "part_separator" || first == "prompt" ||
                     first == "min_tokens";
  return path && known ? message.substr(0, end) : std::string();
}

}  // namespace

ApiShape shape_of(std::string_view path) {
  constexpr std::string_view kMessages = "/v1/messages";
  const bool theirs = path.starts_with(kMessages) && (path.size() == kMessages.size() || path[kMessages.size()] == '/');
  return theirs ? ApiShape::kAnthropic : ApiShape::kOpenAi;
}

const char* ApiError::type(ApiShape shape) const {
  const bool anthropic = shape == ApiShape::kAnthropic;
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return anthropic ? "request_too_large" : "invalid_request_error";
    case 429:
      return "rate_limit_error";
    case 503:
      if (anthropic && code == "overloaded") return "overloaded_error";
      [[fallthrough]];
    default:
      if (status < 500) return "invalid_request_error";
      return anthropic ? "api_error" : "server_error";
  }
}

std::string error_body(const ApiError& error, ApiShape shape) {
  using OrderedJson = nlohmann::ordered_json;
  if (shape == ApiShape::kAnthropic) {
    const OrderedJson body = {{"type", "error"}, {"error", {{"type", error.type(shape)}, {"message", error.message}}}};
    return body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }
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
  if (std::string path = leading_path(error.message); !path.empty()) param = std::move(path);
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
    case Code::kOverLimit:
      return {429, error.message, "", "rate_limit_exceeded"};
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
