#include "server/chat_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/knowledge_bases.h"
#include "server/service.h"

namespace kvilt::server {
namespace {

constexpr const char* kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};  // OpenAI's
constexpr const char* kWords = "chat_template_kwargs";

std::optional<ApiError> set_word(Json& body, const char* name, const Json& value) {
  Json& words = body[kWords];
  if (words.is_null()) words = Json::object();
  if (!words.is_object())
    return ApiError{400, fmt::format("{}: must be an object, not {}", kWords, type_of(words)), kWords, ""};
  if (!words.contains(name)) words[name] = value;
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> set_effort(Json& body, const Json& effort, const std::string& path) {
  const auto refuse = [&](const std::string& what) { return ApiError{400, path + ": " + what, path, ""}; };
  if (!effort.is_string()) return refuse(fmt::format("must be a string, not {}", type_of(effort)));
  if (std::ranges::find(kEfforts, effort.get_ref<const std::string&>()) == std::end(kEfforts))
    return refuse("must be \"none\", \"minimal\", \"low\", \"medium\", \"high\" or \"xhigh\"");
  if (auto error = set_word(body, "reasoning_effort", effort)) return error;
  return effort == "none" ? forbid_thinking(body) : std::nullopt;
}

std::optional<ApiError> forbid_thinking(Json& body) { return set_word(body, "enable_thinking", false); }

std::optional<ApiError> settle_chat(const Service& service, const Call& call, Json& body) {
  if (const Json effort = body.value("reasoning_effort", Json()); !effort.is_null()) {
    if (auto error = set_effort(body, effort, "reasoning_effort")) return error;
  }
  const Status filled = service.knowledge().fill(call.caller.tenant->name(), body);
  if (filled.ok()) return std::nullopt;
  return api_error(filled.error(), "documents");
}

}  // namespace kvilt::server
