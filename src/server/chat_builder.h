// server/chat_builder.h: what the readers of other APIs' bodies share: they make a chat body in OpenAI's form of them.
// Role:       there is one way from messages to a prompt (Engine::chat_prompt) and one to settings (parse_chat). A
//             reader (anthropic_request.cc, responses_request.cc) pushes messages in that form, each with the path of
//             what it was made of, so that errors can name the client's own fields.
// Invariants: the first error stays. No more messages than the context has tokens. No exception leaves.
// Cost:       texts are moved, not copied.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_member.h"
#include "server/json_fields.h"
#include "server/openai_request.h"

namespace kvilt::server {

inline constexpr const char* kUnsupported = "unsupported";
inline constexpr size_t kMaxShown = 64;  // bytes of a client's word in a message

// Parts as a message's content: unmarked text in one part is a plain string, which every template takes.
Json settled(Json parts);

// "messages[I]..." in the client's own words: sources[I] stands for the message. So for another list that begins so.
std::string in_own_paths(std::string message, const std::vector<std::string>& sources,
                         std::string_view list = "messages[");

// The path of a message's text, in the client's words: "system", "instructions" and "input" have no content, they are it.
std::string without_content(std::string path);

class ChatBuilder {
 protected:
  explicit ChatBuilder(const RequestLimits& limits) : limits_(limits) {}

  void fail(const std::string& path, std::string_view what, const char* code = "");
  bool is_object(const Json& value, const std::string& path);
  // A string that has to be there; null after an error.
  Json* need_string(Json& object, const char* name, const std::string& path);
  // The string `type` of an object; null after an error.
  const std::string* need_type(Json& object, const std::string& path);

  // The fields that are no API's own but ours and other servers', which mean the same in every chat.
  void take_extras(Json& body);
  // What these fields say of thinking together, as chat_template_kwargs; null: nothing. They stay in the body.
  Json thinking_words(const Json& body, std::initializer_list<const char*> fields);
  // joins: a second turn of the same speaker becomes the end of the first.
  void push(Json message, std::string source, bool joins);
  // A part of a message's content with the text of `from`, and its cache_control.
  Json text_part(Json& from, const std::string& path);
  // Its words are checked here too, not only by Engine::chat_prompt: turns are joined, and this path is the client's.
  void cache_control(Json& from, Json& to, const std::string& path);

  const RequestLimits& limits_;
  Json body_ = {{"messages", Json::array()}};
  std::vector<std::string> sources_;  // per message
  std::optional<ApiError> error_;
};

}  // namespace kvilt::server
