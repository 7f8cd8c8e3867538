#include "server/old_calls.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_member.h"

namespace kvilt::server {
namespace {

constexpr const char* kOld = "function_call";

// The call that waits for its answer: where it stands, and what is called.
struct Waiting {
  std::string path, name, id;
};

// `call` becomes the message's tool_calls.
std::optional<ApiError> settle_call(Json& message, const std::string& path, const std::string& id) {
  const std::string where = path + "." + kOld;
  const auto refuse = [&](const std::string& at, const std::string& what) {
    return ApiError{400, at + ": " + what, at, ""};
  };
  Json& call = message[kOld];
  if (message.value("role", Json()) != "assistant") return refuse(where, "belongs to messages of role 'assistant'");
  const Json* calls = given(message, "tool_calls");
  if (calls && !(calls->is_array() && calls->empty()))
    return refuse(where, "stands beside tool_calls: send these alone");
  if (!call.is_object())
    return refuse(where, "must be an object with \"name\" and \"arguments\", not " + type_of(call));
  const Json *name = given(call, "name"), *arguments = given(call, "arguments");
  if (!name || !name->is_string()) return refuse(where + ".name", "is required and must be a string");
  if (!arguments || !(arguments->is_string() || arguments->is_object()))
    return refuse(where + ".arguments", "is required and must be a string of JSON, or an object");
  Json function = {{"name", *name}, {"arguments", *arguments}};
  message["tool_calls"] = Json::array({{{"id", id}, {"type", "function"}, {"function", std::move(function)}}});
  message.erase(kOld);
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> settle_old_calls(Json& body) {
  const auto messages = body.find("messages");
  if (messages == body.end() || !messages->is_array()) return std::nullopt;
  std::optional<Waiting> waiting;
  for (size_t i = 0; i < messages->size(); ++i) {
    Json& message = (*messages)[i];
    const auto asked = std::exchange(waiting, std::nullopt);  // its answer is the next message, or never comes
    if (!message.is_object()) continue;
    const std::string path = fmt::format("messages[{}]", i);
    if (given(message, kOld)) {
      const std::string id = fmt::format("call{:05}", i % 100'000);  // nine signs: some templates ask for that
      if (auto error = settle_call(message, path, id)) return error;
      waiting = {path, message["tool_calls"][0]["function"]["name"].get<std::string>(), id};
    } else if (asked && message.value("role", Json()) == "function") {
      if (const Json* name = given(message, "name"); name && *name != asked->name) {
        const std::string where = path + ".name";
        return ApiError{400, fmt::format("{}: is not the function that {} calls", where, asked->path), where, ""};
      }
      message["role"] = "tool";
      message["tool_call_id"] = asked->id;
    }
  }
  return std::nullopt;
}

}  // namespace kvilt::server
