#include "server/chat_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "server/neutral_fields.h"
#include "server/thinking_effort.h"

namespace kvilt::server {
namespace {

// Our own fields, and those of other servers that clients send whatever the route is: parse_chat reads them. What
// it refuses where it would change answers is in neutral_names(). Of a body's other fields nobody knows what they are.
constexpr const char* kExtras[] = {"min_p",
                                   "samplers",
                                   "seed",
                                   "ignore_eos",
                                   "min_tokens",
                                   "stop_token_ids",
                                   "include_stop_str_in_output",
                                   "logit_bias",
                                   "allowed_token_ids",
                                   "presence_penalty",
                                   "frequency_penalty",
                                   "repetition_penalty",
                                   "repeat_penalty",
                                   "repeat_last_n",
                                   "reasoning_format",
                                   "include_reasoning",
                                   "separate_reasoning",
                                   "response_format",
                                   "structured_outputs",
                                   "guided_json",
                                   "guided_regex",
                                   "guided_choice",
                                   "guided_grammar",
                                   "regex",
                                   "ebnf",
                                   "grammar",
                                   "grammar_lazy",
                                   "json_schema",
                                   "documents",
                                   "documents_order",
                                   "tools_order",
                                   "part_separator",
                                   "cache_salt",
                                   "kvilt",
                                   "use_beam_search",
                                   "best_of",
                                   "functions",
                                   "function_call",
                                   "audio",
                                   "modalities"};

// The parts of a content, taken out of it. Empty text without a mark is none.
Json parts_of(Json& content) {
  if (content.is_array()) return std::move(content);
  Json parts = Json::array();
  if (content.is_string() && content != "") parts.push_back({{"type", "text"}, {"text", std::move(content)}});
  return parts;
}

// What the second turn says comes after the first, and so do its calls.
void join_turns(Json& turn, Json next) {
  Json& content = turn["content"];
  const bool silent = content.is_null() && next["content"].is_null();
  Json parts = parts_of(content), more = parts_of(next["content"]);
  for (Json& part : more) parts.push_back(std::move(part));
  content = silent ? Json(nullptr) : settled(std::move(parts));
  if (const Json* thought = given(next, "reasoning_content")) {
    Json& all = turn["reasoning_content"];
    if (all.is_null()) all = "";
    auto& text = all.get_ref<std::string&>();  // grows in place: there may be many turns
    if (!text.empty()) text += "\n";
    text += thought->get_ref<const std::string&>();
  }
  if (Json* calls = given(next, "tool_calls")) {
    for (Json& call : *calls) turn["tool_calls"].push_back(std::move(call));
  }
}

}  // namespace

Json settled(Json parts) {
  if (parts.empty()) return "";
  if (parts.size() == 1 && !parts[0].contains("cache_control")) return std::move(parts[0]["text"]);
  return parts;
}

std::string in_own_paths(std::string message, const std::vector<std::string>& sources, std::string_view list) {
  if (!message.starts_with(list)) return message;
  size_t index = 0;
  const auto [end, failed] = std::from_chars(message.data() + list.size(), message.data() + message.size(), index);
  if (failed != std::errc() || index >= sources.size() || end == message.data() + message.size() || *end != ']')
    return message;
  return sources[index] + message.substr(static_cast<size_t>(end - message.data()) + 1);
}

std::string without_content(std::string path) {
  constexpr std::string_view kContent = ".content";
  for (const std::string_view text : {"system", "instructions", "input", "previous_response_id"}) {
    if (path.starts_with(text) && std::string_view(path).substr(text.size()).starts_with(kContent))
      path.erase(text.size(), kContent.size());
  }
  return path;
}

void ChatBuilder::take_extras(Json& body) {
  const auto take = [&](const char* name) {
    if (Json* value = given(body, name)) body_[name] = std::move(*value);
  };
  std::ranges::for_each(kExtras, take);
  std::ranges::for_each(neutral_names(), take);
}

Json ChatBuilder::thinking_words(const Json& body, std::initializer_list<const char*> fields) {
  Json said = Json::object();
  for (const char* name : fields) {
    if (const Json* value = given(body, name)) said[name] = *value;
  }
  if (!error_) error_ = settle_thinking(said);
  return said.value("chat_template_kwargs", Json());
}

void ChatBuilder::fail(const std::string& path, std::string_view what, const char* code) {
  if (!error_) error_ = ApiError{400, fmt::format("{}: {}", path, what), path, code};
}

bool ChatBuilder::is_object(const Json& value, const std::string& path) {
  if (!value.is_object()) fail(path, fmt::format("must be an object, not {}", type_of(value)));
  return value.is_object();
}

Json* ChatBuilder::need_string(Json& object, const char* name, const std::string& path) {
  Json* value = given(object, name);
  if (value && value->is_string()) return value;
  fail(fmt::format("{}.{}", path, name),
       value ? fmt::format("must be a string, not {}", type_of(*value)) : std::string("is required"));
  return nullptr;
}

const std::string* ChatBuilder::need_type(Json& object, const std::string& path) {
  if (!is_object(object, path)) return nullptr;
  const Json* type = need_string(object, "type", path);
  return type ? &type->get_ref<const std::string&>() : nullptr;
}

// As many messages as the context has tokens: more could not be held, and are not built.
void ChatBuilder::push(Json message, std::string source, bool joins) {
  if (error_) return;
  Json& list = body_["messages"];
  if (joins && !list.empty() && list.back()["role"] == message["role"])
    return join_turns(list.back(), std::move(message));
  if (limits_.context > 0 && list.size() >= static_cast<size_t>(limits_.context)) {
    fail("messages",
         fmt::format("has too many entries; this model's context of {} tokens cannot hold them", limits_.context),
         "context_length_exceeded");
    return;
  }
  list.push_back(std::move(message));
  sources_.push_back(std::move(source));
}

void ChatBuilder::cache_control(Json& from, Json& to, const std::string& path) {
  Json* control = given(from, "cache_control");
  const std::string where = path.empty() ? "cache_control" : path + ".cache_control";
  if (!control || !is_object(*control, where)) return;
  const Json *type = given(*control, "type"), *ttl = given(*control, "ttl");
  if (type && *type != "ephemeral") return fail(where + ".type", "must be \"ephemeral\"");
  if (ttl && *ttl != "5m" && *ttl != "1h") return fail(where + ".ttl", "must be \"5m\" or \"1h\"");
  to["cache_control"] = std::move(*control);
}

Json ChatBuilder::text_part(Json& from, const std::string& path) {
  Json part = {{"type", "text"}, {"text", ""}};
  if (Json* text = need_string(from, "text", path)) part["text"] = std::move(*text);
  cache_control(from, part, path);
  return part;
}

}  // namespace kvilt::server
