#include "server/thinking_effort.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvilt::server {
namespace {

constexpr const char* kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};  // OpenAI's
constexpr const char* kWords = "chat_template_kwargs";

}  // namespace

std::optional<ApiError> set_template_word(Json& body, const std::string& name, const Json& value) {
  Json& words = body[kWords];
  if (words.is_null()) words = Json::object();
  if (!words.is_object())
    return ApiError{400, fmt::format("{}: must be an object, not {}", kWords, type_of(words)), kWords, ""};
  if (!words.contains(name)) words[name] = value;
  return std::nullopt;
}

std::optional<ApiError> set_effort(Json& body, const Json& effort, const std::string& path) {
  const auto refuse = [&](const std::string& what) { return ApiError{400, path + ": " + what, path, ""}; };
  if (!effort.is_string()) return refuse(fmt::format("must be a string, not {}", type_of(effort)));
  if (std::ranges::find(kEfforts, effort.get_ref<const std::string&>()) == std::end(kEfforts))
    return refuse("must be \"none\", \"minimal\", \"low\", \"medium\", \"high\" or \"xhigh\"");
  if (auto error = set_template_word(body, "reasoning_effort", effort)) return error;
  return set_template_word(body, "enable_thinking", effort != "none");
}

}  // namespace kvilt::server
