#include "server/anthropic_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/chat_builder.h"
#include "server/thinking_effort.h"

namespace kvilt::server {
namespace {

// Fields that mean the same in both APIs.
constexpr const char* kSame[] = {"model", "max_tokens", "temperature",          "top_p",
                                 "top_k", "stream",     "chat_template_kwargs", "reasoning_effort"};

class Converter : ChatBuilder {
 public:
  explicit Converter(const RequestLimits& limits) : ChatBuilder(limits) {}
  ApiResult<OpenAiChat> convert(Json& body, MessagesUse use);

 private:
  // Turns of one speaker are joined: the API says so, and templates may want turns to alternate.
  void push(Json message, std::string source) {
    const bool joins = message["role"] == "user" || message["role"] == "assistant";
    ChatBuilder::push(std::move(message), std::move(source), joins);
  }

  void top(Json& body, MessagesUse use);
  void refuse_unsupported(Json& body);
  void context_edits(Json& management);
  void thinks(bool on);
  void effort(const Json& word);
  void output_format(Json& format, std::string path);
  void tools(Json& list);
  void tool_choice(Json& choice);
  void messages(Json& body);
  void user(Json& blocks, const std::string& path);
  void assistant(Json& blocks, const std::string& path);
  void begun_answer(size_t last);

  void refuse_block(const std::string& type, const std::string& path);
  Json text_content(Json& content, const std::string& path);
  Json tool_call(Json& block, const std::string& path);
  Json tool_message(Json& block, const std::string& path);

  std::string format_path_;
  bool shows_thinking_ = false;
  const char* stops_path_ = "stop_sequences";
};

void Converter::refuse_block(const std::string& type, const std::string& path) {
  if (type == "image" || type == "document") {
    return fail(path, fmt::format("blocks of type '{}' are not supported: this server reads text", type), kUnsupported);
  }
  fail(path, fmt::format("blocks of type '{}' are not supported here", type.substr(0, kMaxShown)), kUnsupported);
}

// A string, or blocks that hold text alone.
Json Converter::text_content(Json& content, const std::string& path) {
  if (content.is_string()) return std::move(content);
  Json parts = Json::array();
  if (!content.is_array()) {
    fail(path, fmt::format("must be a string or a list of blocks, not {}", type_of(content)));
    return parts;
  }
  for (size_t i = 0; i < content.size() && !error_; ++i) {
    const std::string where = fmt::format("{}[{}]", path, i);
    const std::string* type = need_type(content[i], where);
    if (!type) break;
    if (*type != "text") refuse_block(*type, where);
    parts.push_back(text_part(content[i], where));
  }
  return settled(std::move(parts));
}

Json Converter::tool_call(Json& block, const std::string& path) {
  Json* id = need_string(block, "id", path);
  Json* name = need_string(block, "name", path);
  Json* input = given(block, "input");
  if (!input) fail(path + ".input", "is required");
  if (error_ || !is_object(*input, path + ".input")) return {};
  Json call = {{"id", std::move(*id)},
               {"type", "function"},
               {"function", {{"name", std::move(*name)}, {"arguments", dump(*input)}}}};
  cache_control(block, call, path);
  return call;
}

// cache_control of the block marks the end of its text.
Json Converter::tool_message(Json& block, const std::string& path) {
  Json* id = need_string(block, "tool_use_id", path);
  if (const Json* wrong = given(block, "is_error"); wrong && !wrong->is_boolean())
    fail(path + ".is_error", fmt::format("must be true or false, not {}", type_of(*wrong)));
  Json* given_content = given(block, "content");
  Json content = given_content ? text_content(*given_content, path + ".content") : Json("");
  if (error_) return {};
  if (given(block, "cache_control")) {
    if (content.is_string()) content = Json::array({{{"type", "text"}, {"text", std::move(content)}}});
    cache_control(block, content.back(), path);
  }
  return {{"role", "tool"}, {"tool_call_id", std::move(*id)}, {"content", std::move(content)}};
}

void Converter::user(Json& blocks, const std::string& path) {
  Json parts = Json::array();
  const auto flush = [&] {
    if (parts.empty()) return;
    push({{"role", "user"}, {"content", settled(std::move(parts))}}, path);
    parts = Json::array();
  };
  for (size_t i = 0; i < blocks.size() && !error_; ++i) {
    const std::string where = fmt::format("{}.content[{}]", path, i);
    const std::string* type = need_type(blocks[i], where);
    if (!type) return;
    if (*type == "text") {
      parts.push_back(text_part(blocks[i], where));
    } else if (*type == "tool_result") {
      flush();
      push(tool_message(blocks[i], where), where);
    } else {
      refuse_block(*type, where);
    }
  }
  flush();
}

void Converter::assistant(Json& blocks, const std::string& path) {
  Json parts = Json::array(), calls = Json::array();
  std::string thinking;
  for (size_t i = 0; i < blocks.size() && !error_; ++i) {
    const std::string where = fmt::format("{}.content[{}]", path, i);
    const std::string* type = need_type(blocks[i], where);
    if (!type) return;
    if (*type == "text") {
      parts.push_back(text_part(blocks[i], where));
    } else if (*type == "tool_use") {
      calls.push_back(tool_call(blocks[i], where));
    } else if (*type == "thinking") {
      if (const Json* text = need_string(blocks[i], "thinking", where))
        thinking += (thinking.empty() ? "" : "\n") + text->get_ref<const std::string&>();
    } else if (*type != "redacted_thinking") {  // which nobody but Anthropic can read
      refuse_block(*type, where);
    }
  }
  Json message = {{"role", "assistant"}, {"content", nullptr}};
  if (!parts.empty() || calls.empty()) message["content"] = settled(std::move(parts));
  if (!thinking.empty()) message["reasoning_content"] = std::move(thinking);
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  push(std::move(message), path);
}

// An answer that the client begins: the model goes on from the last message's text.
void Converter::begun_answer(size_t last) {
  const Json& message = body_["messages"].back();
  if (message["role"] != "assistant") return;
  const Json& content = message["content"];
  if (message.contains("tool_calls") || content.is_null() || content == "")
    return fail(fmt::format("messages[{}]", last), "an answer that goes on needs text, and no calls behind it");
  body_["continue_final_message"] = true;
}

void Converter::messages(Json& body) {
  Json* list = given(body, "messages");
  if (!list) return fail("messages", "is required");
  if (!list->is_array()) return fail("messages", fmt::format("must be a list, not {}", type_of(*list)));
  if (list->empty()) return fail("messages", "must not be empty");
  for (size_t i = 0; i < list->size() && !error_; ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    Json& message = (*list)[i];
    if (!is_object(message, path)) return;
    const Json* role = need_string(message, "role", path);
    if (!role) return;
    const bool by_user = *role == "user", by_system = *role == "system";
    if (!by_user && !by_system && *role != "assistant")
      return fail(path + ".role", "must be \"user\", \"assistant\" or \"system\"");
    Json* content = given(message, "content");
    if (!content) return fail(path + ".content", "is required");
    if (content->is_string()) {
      push({{"role", *role}, {"content", std::move(*content)}}, path);
    } else if (!content->is_array()) {
      fail(path + ".content", fmt::format("must be a string or a list of blocks, not {}", type_of(*content)));
    } else if (content->empty()) {
      fail(path + ".content", "must not be empty");
    } else if (by_system) {
      push({{"role", "system"}, {"content", text_content(*content, path + ".content")}}, path);
    } else if (by_user) {
      user(*content, path);
    } else {
      assistant(*content, path);
    }
  }
  if (!error_) begun_answer(list->size() - 1);
}

void Converter::tools(Json& list) {
  if (!list.is_array()) return fail("tools", fmt::format("must be a list, not {}", type_of(list)));
  Json functions = Json::array();
  for (size_t i = 0; i < list.size() && !error_; ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    Json& tool = list[i];
    if (!is_object(tool, path)) return;
    if (const Json* type = given(tool, "type"); type && *type != "custom")
      return fail(path + ".type", "only \"custom\" tools, which the client runs, are supported", kUnsupported);
    Json* name = need_string(tool, "name", path);
    Json* schema = given(tool, "input_schema");
    if (!schema) return fail(path + ".input_schema", "is required");
    if (!name || !is_object(*schema, path + ".input_schema")) return;
    Json function = {{"name", std::move(*name)}};
    if (given(tool, "description")) {
      Json* description = need_string(tool, "description", path);
      if (!description) return;
      function["description"] = std::move(*description);
    }
    function["parameters"] = std::move(*schema);
    if (const Json* strict = given(tool, "strict")) {
      if (!strict->is_boolean())
        return fail(path + ".strict", fmt::format("must be true or false, not {}", type_of(*strict)));
      function["strict"] = *strict;
    }
    functions.push_back({{"type", "function"}, {"function", std::move(function)}});
    cache_control(tool, functions.back(), path);
  }
  if (!functions.empty()) body_["tools"] = std::move(functions);
}

void Converter::tool_choice(Json& choice) {
  if (!is_object(choice, "tool_choice")) return;
  const Json* type = need_string(choice, "type", "tool_choice");
  if (!type) return;
  if (*type == "auto" || *type == "none") {
    body_["tool_choice"] = *type;
  } else if (*type == "any") {
    body_["tool_choice"] = "required";
  } else if (*type == "tool") {
    const Json* name = need_string(choice, "name", "tool_choice");
    if (!name) return;
    body_["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
  } else {
    return fail("tool_choice.type", "must be \"auto\", \"any\", \"tool\" or \"none\"");
  }
  const Json* single = given(choice, "disable_parallel_tool_use");
  if (!single) return;
  if (!single->is_boolean())
    return fail("tool_choice.disable_parallel_tool_use",
                fmt::format("must be true or false, not {}", type_of(*single)));
  body_["parallel_tool_calls"] = *single == false;
}

void Converter::thinks(bool on) {
  shows_thinking_ = on;
  if (!error_) error_ = set_template_word(body_, "enable_thinking", on);
}

// The template's word for how much to think, in OpenAI's words. Whether to think at all is said by `thinking`.
void Converter::effort(const Json& word) {
  constexpr const char* kEfforts[] = {"low", "medium", "high", "xhigh", "max"};
  if (std::ranges::none_of(kEfforts, [&](const char* one) { return word == one; }))
    return fail("output_config.effort", "must be \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"");
  if (!error_) error_ = set_template_word(body_, "reasoning_effort", word == "max" ? Json("xhigh") : word);
}

void Converter::refuse_unsupported(Json& body) {
  for (const char* name : {"mcp_servers", "container"}) {
    if (const Json* value = given(body, name); value && !(value->is_array() && value->empty()))
      fail(name, "is not supported by this server", kUnsupported);
  }
  if (Json* management = given(body, "context_management")) context_edits(*management);
}

// What would take parts of the conversation away. One that keeps all thoughts takes nothing: the template decides which
// of them it shows, as ever.
void Converter::context_edits(Json& management) {
  const std::string path = "context_management.edits";
  if (!is_object(management, "context_management")) return;
  Json* edits = given(management, "edits");
  if (!edits) return;
  if (!edits->is_array()) return fail(path, fmt::format("must be a list, not {}", type_of(*edits)));
  for (size_t i = 0; i < edits->size() && !error_; ++i) {
    const std::string where = fmt::format("{}[{}]", path, i);
    const std::string* type = need_type((*edits)[i], where);
    if (!type) return;
    const Json* keep = given((*edits)[i], "keep");
    if (!type->starts_with("clear_thinking") || !keep || *keep != "all") {
      return fail(where,
                  fmt::format("'{}' is not supported, but for clear_thinking with \"keep\": \"all\": send the messages "
                              "that the model shall see",
                              type->substr(0, kMaxShown)),
                  kUnsupported);
    }
  }
}

// Its word for response_format: {"type": "json_schema", "schema": ...}.
void Converter::output_format(Json& format, std::string path) {
  if (!is_object(format, path)) return;
  const Json* type = need_string(format, "type", path);
  if (!type) return;
  if (*type != "json_schema") return fail(path + ".type", "must be \"json_schema\"", kUnsupported);
  Json* schema = given(format, "schema");
  if (!schema) return fail(path + ".schema", "is required");
  if (body_.contains("response_format"))
    return fail(path, "says what the answer must be, and so does response_format: send one");
  body_["response_format"] = {{"type", "json_schema"},
                              {"json_schema", {{"name", "answer"}, {"schema", std::move(*schema)}}}};
  format_path_ = std::move(path);
}

void Converter::top(Json& body, MessagesUse use) {
  if (use == MessagesUse::kAnswer) {
    const Json* most = given(body, "max_tokens");
    if (!most) fail("max_tokens", "is required");
    if (most && most->is_number() && most->get<double>() < 0) fail("max_tokens", "must not be negative");
  }
  thinking_words(body, {"thinking", "enable_thinking", "reasoning_effort"});
  if (error_) return;
  for (const char* name : kSame) {
    if (Json* value = given(body, name)) body_[name] = std::move(*value);
  }
  take_extras(body);
  if (Json* stops = given(body, "stop_sequences")) {
    if (!stops->is_array())
      return fail("stop_sequences", fmt::format("must be a list of strings, not {}", type_of(*stops)));
    for (size_t i = 0; i < stops->size(); ++i) {
      if ((*stops)[i] == "") return fail(fmt::format("stop_sequences[{}]", i), "must not be empty");
    }
    body_["stop"] = std::move(*stops);
  }
  if (Json* stops = given(body, "stop")) {  // chats' word
    if (body_.contains("stop"))
      return fail("stop", "says where the answer stops, and so does stop_sequences: send one");
    body_["stop"] = std::move(*stops);
    stops_path_ = "stop";
  }
  // Who does not ask for thoughts has none: they would be hidden, and could take all of max_tokens. A budget is no bound
  // here: max_tokens is one, of thoughts and answer together. Anthropic's is a target, and clients always send one.
  const Json *settings = given(body, "thinking"), *on = given(body, "enable_thinking");  // the second is Qwen's word
  thinks(settings ? (*settings)["type"] != "disabled" : on && *on == true);
  if (Json* list = given(body, "tools")) tools(*list);
  if (Json* choice = given(body, "tool_choice")) tool_choice(*choice);
  if (Json* format = given(body, "output_format")) output_format(*format, "output_format");
  if (Json* config = given(body, "output_config"); config && is_object(*config, "output_config")) {
    if (Json* format = given(*config, "format")) output_format(*format, "output_config.format");
    if (const Json* word = given(*config, "effort")) effort(*word);
  }
  cache_control(body, body_, "");
  refuse_unsupported(body);
}

ApiResult<OpenAiChat> Converter::convert(Json& body, MessagesUse use) {
  if (!body.is_object()) return ApiError{400, "the body must be a JSON object, not " + type_of(body), "", ""};
  top(body, use);
  if (Json* system = given(body, "system")) {
    Json content = text_content(*system, "system");
    if (!content.empty() && content != "") push({{"role", "system"}, {"content", std::move(content)}}, "system");
  }
  if (!error_) messages(body);
  if (error_) return std::move(*error_);
  return OpenAiChat{std::move(body_), std::move(sources_), std::move(format_path_), shows_thinking_, stops_path_};
}

}  // namespace

ApiResult<OpenAiChat> to_openai_chat(Json body, const RequestLimits& limits, MessagesUse use) {
  return Converter(limits).convert(body, use);
}

std::string OpenAiChat::in_own_paths(std::string message) const {
  constexpr std::string_view kStop = "stop";
  if (message.starts_with(kStop) && message.find_first_of("[:") == kStop.size())
    return stops_path + message.substr(kStop.size());
  if (constexpr std::string_view kSchema = "response_format.json_schema.schema";
      !format_path.empty() && message.starts_with(kSchema))
    return format_path + ".schema" + message.substr(kSchema.size());
  return server::in_own_paths(std::move(message), sources);
}

}  // namespace kvilt::server
