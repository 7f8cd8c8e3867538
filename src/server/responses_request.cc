#include "server/responses_request.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "server/answer_writer.h"
#include "server/chat_builder.h"
#include "server/thinking_effort.h"

namespace kvilt::server {
namespace {

constexpr size_t kMaxId = 256, kMaxMetadata = 16, kMaxMetadataKey = 64, kMaxMetadataValue = 512;  // the API's bounds
constexpr size_t kMaxToolNamespace = 64;                  // bytes: every tool in it has them in its name
constexpr const char* kEarlier = "previous_response_id";  // the path of what earlier responses hold

// Fields that mean the same to a chat completion.
constexpr const char* kSameField[] = {
    "model", "temperature",         "top_p", "top_k", "stream", "parallel_tool_calls", "prompt_cache_retention", "user",
    "stop",  "chat_template_kwargs"};

// What a response says of its request, and what it says where the request has nothing.
Json repeated_of(Json& body, const SamplingDefaults& usual) {
  Json out = {{"instructions", nullptr},
              {"max_output_tokens", nullptr},
              {"metadata", Json::object()},
              {"parallel_tool_calls", true},
              {"previous_response_id", nullptr},
              {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
              {"temperature", as_written(usual.temperature.value_or(1))},
              {"text", {{"format", {{"type", "text"}}}}},
              {"tool_choice", "auto"},
              {"tools", Json::array()},
              {"top_p", as_written(usual.top_p.value_or(1))},
              {"truncation", "disabled"},
              {"user", nullptr}};
  for (auto field = out.begin(); field != out.end(); ++field) {
    if (const Json* said = given(body, field.key().c_str())) field.value() = *said;
  }
  return out;
}

const char* id_prefix(const std::string& type) {
  if (type == "function_call") return "fc_";
  if (type == "function_call_output") return "fco_";
  if (type == "custom_tool_call") return "ctc_";
  if (type == "custom_tool_call_output") return "ctco_";
  return type == "reasoning" ? "rs_" : "msg_";
}

// The input as the list of items that is stored: each with its type and an id.
Json items_of(const Json& input) {
  if (input.is_string()) {
    const Json part = {{"type", "input_text"}, {"text", input}};
    return Json::array({{{"id", answer_id("msg_")},
                         {"type", "message"},
                         {"status", "completed"},
                         {"role", "user"},
                         {"content", Json::array({part})}}});
  }
  Json items = input;
  for (Json& item : items) {
    if (!given(item, "type")) item["type"] = "message";
    if (!given(item, "id")) item["id"] = answer_id(id_prefix(item["type"].get_ref<const std::string&>()));
  }
  return items;
}

class Items : ChatBuilder {
 public:
  explicit Items(const RequestLimits& limits) : ChatBuilder(limits) {}
  ApiResult<ResponsesChat> convert(Json& body, Json& earlier, const ResponseThread& thread);

 private:
  void top(Json& body);
  void refuse_unsupported(Json& body);
  void metadata(Json& body);
  void text(Json& settings);
  void tools(Json& list);
  void tool(Json& tool, const std::string& path);
  void tools_in_namespace(Json& space, const std::string& path);
  void refuse_equal_names();
  Json tool_name(Json& said, const std::string& path);
  Json function_tool(Json& tool, const std::string& path);
  Json custom_tool(Json& tool, const std::string& path);
  void tool_choice(Json& choice);
  Json named_tool(Json& tool, const std::string& path);
  void input(Json& body);
  void item(Json& item, const std::string& path);
  void message(Json& item, const std::string& path);
  void thought(Json& item, const std::string& path);
  void call(Json& item, const std::string& path, const char* kind, const char* said);
  void call_output(Json& item, const std::string& path);
  // A string, or parts that hold text alone.
  Json content(Json& value, const std::string& path);
  void assistant(Json message, const std::string& path) {
    message["role"] = "assistant";
    if (!message.contains("content")) message["content"] = nullptr;
    push(std::move(message), path, true);
  }

  Json tools_ = Json::array();
  std::vector<std::string> tool_sources_;  // per tool
  ToolNamespaces namespaces_;
};

// What the model calls the tool that an item or a choice names; null after an error.
Json Items::tool_name(Json& said, const std::string& path) {
  Json* name = need_string(said, "name", path);
  const Json* space = given(said, "namespace");
  if (space && !space->is_string()) fail(path + ".namespace", fmt::format("must be a string, not {}", type_of(*space)));
  if (error_) return nullptr;
  if (!space) return std::move(*name);
  return name_for_model(space->get_ref<const std::string&>(), name->get_ref<const std::string&>());
}

Json Items::content(Json& value, const std::string& path) {
  if (value.is_string()) return std::move(value);
  Json parts = Json::array();
  if (!value.is_array()) {
    fail(path, fmt::format("must be a string or a list of parts, not {}", type_of(value)));
    return parts;
  }
  for (size_t i = 0; i < value.size() && !error_; ++i) {
    const std::string where = fmt::format("{}[{}]", path, i);
    const std::string* type = need_type(value[i], where);
    if (!type) break;
    if (*type != "input_text" && *type != "output_text" && *type != "text") {
      fail(where,
           fmt::format("parts of type '{}' are not supported: this server reads text", type->substr(0, kMaxShown)),
           kUnsupported);
      break;
    }
    parts.push_back(text_part(value[i], where));
  }
  return settled(std::move(parts));
}

void Items::message(Json& item, const std::string& path) {
  Json* role = need_string(item, "role", path);
  Json* said = given(item, "content");
  if (!said) fail(path + ".content", "is required");
  if (error_) return;
  const auto name = role->get<std::string>();
  if (name != "user" && name != "assistant" && name != "system" && name != "developer")
    return fail(path + ".role", "must be \"user\", \"assistant\", \"system\" or \"developer\"");
  push({{"role", name}, {"content", content(*said, path + ".content")}}, path, name == "assistant");
}

// Its text goes back to the template, which shows it or leaves it out as it was made. A summary stands for what is not
// there; what others have encrypted is not read.
void Items::thought(Json& item, const std::string& path) {
  std::string text;
  for (const char* name : {"content", "summary"}) {
    Json* parts = given(item, name);
    if (!parts || !text.empty()) continue;
    const std::string where = fmt::format("{}.{}", path, name);
    if (!parts->is_array()) return fail(where, fmt::format("must be a list, not {}", type_of(*parts)));
    for (size_t i = 0; i < parts->size(); ++i) {
      const std::string place = fmt::format("{}[{}]", where, i);
      if (!is_object((*parts)[i], place)) return;
      const Json* words = need_string((*parts)[i], "text", place);
      if (!words) return;
      text += (text.empty() ? "" : "\n") + words->get_ref<const std::string&>();
    }
  }
  if (!text.empty()) assistant({{"reasoning_content", std::move(text)}}, path);
}

// kind: chat's word for the tool; said: what the call says, `arguments` or `input`.
void Items::call(Json& item, const std::string& path, const char* kind, const char* said) {
  Json* id = need_string(item, "call_id", path);
  Json name = tool_name(item, path);
  Json* text = need_string(item, said, path);
  if (error_) return;
  Json one = {{"id", std::move(*id)}, {"type", kind}, {kind, {{"name", std::move(name)}, {said, std::move(*text)}}}};
  assistant({{"tool_calls", Json::array({std::move(one)})}}, path);
}

void Items::call_output(Json& item, const std::string& path) {
  Json* id = need_string(item, "call_id", path);
  Json* output = given(item, "output");
  if (!output) fail(path + ".output", "is required");
  if (error_) return;
  Json said = content(*output, path + ".output");
  push({{"role", "tool"}, {"tool_call_id", std::move(*id)}, {"content", std::move(said)}}, path, false);
}

void Items::item(Json& item, const std::string& path) {
  if (!is_object(item, path)) return;
  if (!given(item, "type")) return message(item, path);
  const std::string* type = need_type(item, path);
  if (!type) return;
  if (*type == "message") return message(item, path);
  if (*type == "reasoning") return thought(item, path);
  if (*type == "function_call") return call(item, path, "function", "arguments");
  if (*type == "custom_tool_call") return call(item, path, "custom", "input");
  if (*type == "function_call_output" || *type == "custom_tool_call_output") return call_output(item, path);
  fail(path, fmt::format("items of type '{}' are not supported here", type->substr(0, kMaxShown)), kUnsupported);
}

void Items::input(Json& body) {
  Json* value = given(body, "input");
  if (!value) return fail("input", "is required");
  if (value->is_string()) return push({{"role", "user"}, {"content", std::move(*value)}}, "input", false);
  if (!value->is_array()) return fail("input", fmt::format("must be a string or a list, not {}", type_of(*value)));
  for (size_t i = 0; i < value->size() && !error_; ++i) item((*value)[i], fmt::format("input[{}]", i));
  if (!error_ && body_["messages"].empty()) fail("input", "must not be empty");
}

void Items::tools(Json& list) {
  if (!list.is_array()) return fail("tools", fmt::format("must be a list, not {}", type_of(list)));
  for (size_t i = 0; i < list.size() && !error_; ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    const std::string* type = need_type(list[i], path);
    if (!type) return;
    if (*type == "namespace") {
      tools_in_namespace(list[i], path);
    } else {
      tool(list[i], path);
    }
  }
  refuse_equal_names();
  body_["tools"] = std::move(tools_);
}

void Items::tool(Json& tool, const std::string& path) {
  const std::string* type = need_type(tool, path);
  if (!type) return;
  if (*type != "function" && *type != "custom") {
    return fail(path + ".type",
                fmt::format("'{}' is not supported: only \"function\" and \"custom\" tools, which the client runs, "
                            "are (leave it out; Codex: web_search = \"disabled\")",
                            type->substr(0, kMaxShown)),
                kUnsupported);
  }
  tools_.push_back(*type == "custom" ? custom_tool(tool, path) : function_tool(tool, path));
  tool_sources_.push_back(path);
}

// What is said of the namespace stands before what is said of its first tool: templates have no other place for it.
void Items::tools_in_namespace(Json& space, const std::string& path) {
  const Json* name = need_string(space, "name", path);
  if (!name) return;
  const auto& word = name->get_ref<const std::string&>();
  if (word.empty() || word.size() > kMaxToolNamespace)
    return fail(path + ".name", fmt::format("must have 1 to {} bytes", kMaxToolNamespace));
  const Json* about = given(space, "description");
  if (about && !about->is_string())
    return fail(path + ".description", fmt::format("must be a string, not {}", type_of(*about)));
  Json* list = given(space, "tools");
  if (!list || !list->is_array()) return fail(path + ".tools", "is required and must be a list");
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("{}.tools[{}]", path, i);
    tool((*list)[i], where);
    if (error_) return;
    Json& inner = tools_.back()[tools_.back()["type"].get<std::string>()];
    const auto own = inner["name"].get<std::string>();
    inner["name"] = name_for_model(word, own);
    namespaces_.insert_or_assign(inner["name"], NamespacedTool{word, own});
    const Json said = inner.value("description", Json(""));
    if (i == 0 && about && *about != "" && said.is_string())
      inner["description"] = about->get<std::string>() + (said == "" ? "" : "\n\n") + said.get<std::string>();
  }
}

// Two tools that the model could not tell apart, of which one is in a namespace.
void Items::refuse_equal_names() {
  std::set<std::string> seen;
  for (size_t i = 0; i < tools_.size() && !namespaces_.empty() && !error_; ++i) {
    const auto name = tools_[i][tools_[i]["type"].get<std::string>()]["name"].get<std::string>();
    if (!seen.insert(name).second && namespaces_.contains(name))
      fail(tool_sources_[i] + ".name", fmt::format("another tool is '{}' to the model too", name.substr(0, kMaxShown)));
  }
}

Json Items::function_tool(Json& tool, const std::string& path) {
  Json* name = need_string(tool, "name", path);
  if (!name) return nullptr;
  Json function = {{"name", std::move(*name)}};
  for (const char* field : {"description", "parameters"}) {
    if (Json* value = given(tool, field)) function[field] = std::move(*value);
  }
  if (const Json* strict = given(tool, "strict"); strict && *strict != false) function["strict"] = *strict;
  return {{"type", "function"}, {"function", std::move(function)}};
}

// Chat has what a grammar is in an object of its own; custom_tools.h judges it.
Json Items::custom_tool(Json& tool, const std::string& path) {
  Json* name = need_string(tool, "name", path);
  if (!name) return nullptr;
  Json custom = {{"name", std::move(*name)}};
  if (Json* description = given(tool, "description")) custom["description"] = std::move(*description);
  if (Json* format = given(tool, "format")) {
    if (format->is_object() && given(*format, "type") && (*format)["type"] == "grammar") {
      Json grammar = std::move(*format);
      grammar.erase("type");
      custom["format"] = {{"type", "grammar"}, {"grammar", std::move(grammar)}};
    } else {
      custom["format"] = std::move(*format);
    }
  }
  return {{"type", "custom"}, {"custom", std::move(custom)}};
}

// A named tool is an object with the name in it; parse_chat judges what can be honoured.
void Items::tool_choice(Json& choice) {
  if (!choice.is_object()) {
    body_["tool_choice"] = std::move(choice);
    return;
  }
  const std::string* type = need_type(choice, "tool_choice");
  if (!type) return;
  if (*type != "allowed_tools") {
    body_["tool_choice"] = named_tool(choice, "tool_choice");
    return;
  }
  Json tools = Json::array();
  Json* list = given(choice, "tools");
  for (size_t i = 0; list && list->is_array() && i < list->size() && !error_; ++i)
    tools.push_back(named_tool((*list)[i], fmt::format("tool_choice.tools[{}]", i)));
  Json* mode = given(choice, "mode");
  body_["tool_choice"] = {{"type", "allowed_tools"},
                          {"allowed_tools", {{"mode", mode ? std::move(*mode) : Json()}, {"tools", std::move(tools)}}}};
}

// {"type": "function" | "custom", "name": ...}.
Json Items::named_tool(Json& tool, const std::string& path) {
  const std::string* type = need_type(tool, path);
  if (!type) return {};
  const std::string kind = *type;
  if (kind != "function" && kind != "custom") {
    fail(path + ".type", fmt::format("'{}' is not supported here", kind.substr(0, kMaxShown)), kUnsupported);
    return {};
  }
  Json name = tool_name(tool, path);
  return error_ ? Json() : Json{{"type", kind}, {kind, {{"name", std::move(name)}}}};
}

void Items::text(Json& settings) {
  if (!is_object(settings, "text")) return;
  if (const Json* verbosity = given(settings, "verbosity"); verbosity && *verbosity != "medium")
    return fail("text.verbosity", "only \"medium\" is supported", kUnsupported);
  Json* format = given(settings, "format");
  if (!format) return;
  const std::string* type = need_type(*format, "text.format");
  if (!type || *type == "text") return;
  if (*type != "json_schema") {
    body_["response_format"] = std::move(*format);
    return;
  }
  Json schema = std::move(*format);
  schema.erase("type");
  body_["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
}

void Items::metadata(Json& body) {
  Json* data = given(body, "metadata");
  if (!data || !is_object(*data, "metadata")) return;
  if (data->size() > kMaxMetadata) return fail("metadata", fmt::format("has more than {} entries", kMaxMetadata));
  for (const auto& [key, value] : data->items()) {
    const std::string path = "metadata." + key.substr(0, kMaxMetadataKey);
    if (key.size() > kMaxMetadataKey)
      return fail(path, fmt::format("the key is longer than {} bytes", kMaxMetadataKey));
    if (!value.is_string()) return fail(path, fmt::format("must be a string, not {}", type_of(value)));
    if (value.get_ref<const std::string&>().size() > kMaxMetadataValue)
      return fail(path, fmt::format("is longer than {} bytes", kMaxMetadataValue));
  }
}

void Items::refuse_unsupported(Json& body) {
  constexpr const char* kRefused[] = {"background",   "conversation", "prompt",
                                      "top_logprobs", "moderation",   "context_management"};
  for (const char* name : kRefused) {
    const Json* value = given(body, name);
    if (value && *value != false && *value != 0) fail(name, "is not supported by this server", kUnsupported);
  }
  if (const Json* cut = given(body, "truncation"); cut && *cut != "disabled")
    fail("truncation", "only \"disabled\" is supported: no item is left out", kUnsupported);
  Json* include = given(body, "include");
  if (!include) return;
  if (!include->is_array()) return fail("include", fmt::format("must be a list, not {}", type_of(*include)));
  for (size_t i = 0; i < include->size(); ++i) {
    // Nothing here is encrypted: reasoning items hold their text.
    if ((*include)[i] != "reasoning.encrypted_content")
      fail(fmt::format("include[{}]", i), "only \"reasoning.encrypted_content\" is supported", kUnsupported);
  }
}

void Items::top(Json& body) {
  refuse_unsupported(body);
  metadata(body);
  Json words =
      thinking_words(body, {"chat_template_kwargs", "reasoning", "reasoning_effort", "enable_thinking", "thinking"});
  for (const char* name : kSameField) {
    if (Json* value = given(body, name)) body_[name] = std::move(*value);
  }
  take_extras(body);
  if (Json* most = given(body, "max_output_tokens")) {
    if (most->is_number() && most->get<double>() < 0) fail("max_output_tokens", "must not be negative");
    body_["max_tokens"] = std::move(*most);
  }
  if (!words.is_null()) body_["chat_template_kwargs"] = std::move(words);
  if (Json* settings = given(body, "text")) text(*settings);
  if (Json* list = given(body, "tools")) tools(*list);
  if (Json* choice = given(body, "tool_choice")) tool_choice(*choice);
}

ApiResult<ResponsesChat> Items::convert(Json& body, Json& earlier, const ResponseThread& thread) {
  if (!body.is_object()) return ApiError{400, "the body must be a JSON object, not " + type_of(body), "", ""};
  ResponsesChat out;
  out.repeated = repeated_of(body, limits_.sampling);
  // Items are stored if they can be read: until then they are kept as they came.
  const Json* value = given(body, "input");
  const Json kept = thread.store && value ? *value : Json();
  top(body);
  if (Json* instructions = given(body, "instructions")) {
    if (!instructions->is_string())
      fail("instructions", fmt::format("must be a string, not {}", type_of(*instructions)));
    if (*instructions != "") push({{"role", "system"}, {"content", std::move(*instructions)}}, "instructions", false);
  }
  for (Json& before : earlier) item(before, kEarlier);
  if (!error_) input(body);
  if (error_) return std::move(*error_);
  out.body = std::move(body_);
  out.sources = std::move(sources_);
  out.tool_sources = std::move(tool_sources_);
  out.namespaces = std::move(namespaces_);
  if (thread.store) out.input = items_of(kept);
  return out;
}

}  // namespace

ApiResult<ResponseThread> response_thread(const Json& body) {
  if (!body.is_object()) return ApiError{400, "the body must be a JSON object, not " + type_of(body), "", ""};
  ResponseThread out;
  Fields fields(body);
  fields.string(kEarlier, &out.previous, kMaxId);
  fields.boolean("store", &out.store);
  if (fields.error()) return *fields.error();
  return out;
}

ApiResult<ResponsesChat> responses_to_chat(Json body, Json earlier, const ResponseThread& thread,
                                           const RequestLimits& limits) {
  return Items(limits).convert(body, earlier, thread);
}

void ResponsesChat::in_own_paths(ApiError& error) const {
  // Chat's words, and this API's for the same.
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {{"max_tokens", "max_output_tokens"},
                                                                      {"response_format", "text.format"},
                                                                      {"messages", "input"},
                                                                      {"tool_choice.allowed_tools", "tool_choice"}};
  const auto renamed = [&](std::string text) {
    for (const auto& [chats, own] : kWords) {
      if (!text.starts_with(chats)) continue;
      const char next = text.size() > chats.size() ? text[chats.size()] : ':';
      if (next == ':' || next == '.') return std::string(own) + text.substr(chats.size());
    }
    if (text.starts_with("tools[")) {  // what chat has in an object of the kind's name is the tool itself here
      for (const std::string_view inner : {".function", ".custom", ".grammar"}) {
        const size_t at = text.find(inner);
        if (at != std::string::npos && at < text.find_first_of(": ")) text.erase(at, inner.size());
      }
      return server::in_own_paths(std::move(text), tool_sources, "tools[");
    }
    return server::in_own_paths(std::move(text), sources);
  };
  error.message = renamed(std::move(error.message));
  if (!error.param.empty()) error.param = renamed(std::move(error.param));
}

}  // namespace kvilt::server
