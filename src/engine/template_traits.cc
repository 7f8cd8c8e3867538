#include "engine/template_traits.h"

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDocument = "kvilt-document-probe";
constexpr const char* kMessage = "kvilt-message-probe";
constexpr const char* kQuestion = "kvilt-question-probe";
constexpr const char* kThought = "kvilt-thought-probe";
constexpr const char* kArgument = "kvilt_argument_probe";
constexpr const char* kCall = "kvilt_call_probe";
constexpr const char* kResult = "kvilt-result-probe";

Json message(const std::string& role, const std::string& content) { return {{"role", role}, {"content", content}}; }

// The prompt; none where the template refuses.
std::optional<std::string> render(const ChatTemplate& chat_template, const EdgeTokens& edges, Json messages,
                                  Json documents = nullptr, Json tools = nullptr) {
  ChatInputs in;
  in.messages = std::move(messages);
  in.documents = std::move(documents);
  in.tools = std::move(tools);
  in.bos_token = edges.bos;
  in.eos_token = edges.eos;
  auto out = chat_template.render(in);
  if (!out.ok()) return std::nullopt;
  return std::move(out->text);
}

bool holds(const std::optional<std::string>& text, const std::string& word) {
  return text && text->find(word) != std::string::npos;
}

// A conversation in which the assistant called a tool.
Json with_call(Json arguments, Json content) {
  Json call{{"id", "callprobe"},
            {"type", "function"},
            {"function", {{"name", "probe"}, {"arguments", std::move(arguments)}}}};
  Json calling{{"role", "assistant"}, {"content", std::move(content)}};
  calling["tool_calls"] = Json::array({std::move(call)});
  Json result = message("tool", "done");
  result["tool_call_id"] = "callprobe";
  result["name"] = "probe";
  return Json::array({message("user", "q"), std::move(calling), std::move(result)});
}

// A name that is part of an object, and not of one that was written into a string.
bool shows_arguments(const std::optional<std::string>& text) {
  const std::string name = kArgument;
  return holds(text, name) && !holds(text, "\\\"" + name) && !holds(text, "'" + name);
}

// Of a request without tools, and of one with them.
std::vector<Json> tools_to_try() {
  const Json tool{{"type", "function"}, {"function", {{"name", "probe"}, {"parameters", {{"type", "object"}}}}}};
  return {Json(), Json::array({tool})};
}

// Whether a call of the history is in the prompt, in a request with tools or without; none where the template refuses.
std::optional<bool> shows_calls(const ChatTemplate& chat_template, const EdgeTokens& edges, const Json& content) {
  bool taken = false;
  for (const Json& arguments : {Json{{"a", "b"}}, Json("{}")}) {
    Json calling = with_call(arguments, content);
    calling[1]["tool_calls"][0]["function"]["name"] = kCall;  // the result's stays another one
    for (const Json& tools : tools_to_try()) {
      const auto shown = render(chat_template, edges, calling, nullptr, tools);
      if (holds(shown, kCall)) return true;
      taken = taken || shown;
    }
  }
  if (taken) return false;
  return std::nullopt;
}

bool holds_in_order(const std::optional<std::string>& text, std::initializer_list<const char*> words) {
  size_t at = 0;
  for (const char* word : words) {
    if (!text || (at = text->find(word, at)) == std::string::npos) return false;
  }
  return true;
}

// Answers with a text and calls, as they are and as two messages. The split is looked at as an agent's next request has
// it, and with the turns that follow: Mistral's refuses it there, as two answers in a row.
void find_splits(const ChatTemplate& chat_template, const EdgeTokens& edges, const Json& calling, TemplateTraits& out) {
  Json calls = calling[1], result = calling[2];
  calls["tool_calls"][0]["function"]["name"] = kCall;
  result["content"] = kResult;
  Json both = calls;
  both["content"] = kMessage;
  const Json one = Json::array({calling[0], both, result});
  const Json two = Json::array({calling[0], message("assistant", kMessage), calls, result});
  Json longer = two;
  longer.push_back(message("assistant", kThought));
  longer.push_back(message("user", kQuestion));
  bool taken = false, beside = false, call = false, refuses = false, splits = false;
  for (const Json& tools : tools_to_try()) {
    const auto shown = render(chat_template, edges, one, nullptr, tools);
    if (!shown) continue;
    taken = true;
    beside = beside || (holds(shown, kMessage) && holds(shown, kCall));
    call = call || holds(shown, kCall);
    const auto split = render(chat_template, edges, two, nullptr, tools);
    const auto going_on = render(chat_template, edges, longer, nullptr, tools);
    refuses = refuses || !split || !going_on;
    splits = splits || (holds_in_order(split, {kMessage, kCall, kResult}) &&
                        holds_in_order(going_on, {kMessage, kCall, kResult, kThought, kQuestion}));
  }
  if (beside || !taken) return;
  out.splits_calls = splits && !refuses;
  out.text_hides_calls = out.calls && !call && !out.splits_calls;
}

// An old answer that called a tool is where reasoning is shown longest: models go on thinking from there.
void find_reasoning(const ChatTemplate& chat_template, const EdgeTokens& edges, const Json& calling,
                    TemplateTraits& out) {
  const Json answering = Json::array({message("user", "q"), message("assistant", "a")});
  for (const char* field : kReasoningFields) {
    Json called = calling, answered = answering;
    called[1][field] = answered[1][field] = kThought;
    const bool shown = holds(render(chat_template, edges, called), kThought);
    if (!shown && !holds(render(chat_template, edges, answered), kThought)) continue;
    out.reasoning = field;
    called[1]["content"] = kMessage;
    out.calls_have_one_text = shown && !render(chat_template, edges, called);
    return;
  }
}

// Where messages may stand, as clients send them (late_system.h).
void find_orders(const ChatTemplate& chat_template, const EdgeTokens& edges, const Json& calling, TemplateTraits& out) {
  const Json asks = message("user", kQuestion), says = message("assistant", "a"), late = message("system", kMessage);
  const auto behind = [](const std::optional<std::string>& text) {
    return holds(text, kMessage) && text->find(kQuestion) < text->find(kMessage);
  };
  const bool last = behind(render(chat_template, edges, Json::array({asks, late})));
  const bool between =
      behind(render(chat_template, edges, Json::array({asks, says, message("user", "q"), late, says, asks})));
  const bool first = holds(render(chat_template, edges, Json::array({late, message("system", "s"), asks})), kMessage);
  out.one_system = !last || !between || !first;
  const auto refuses_second = [&](Json messages) {
    const bool taken = render(chat_template, edges, messages).has_value();
    messages.push_back(asks);
    return taken && !render(chat_template, edges, messages);
  };
  out.alternates = refuses_second(Json::array({asks}));
  out.alternates_after_tools = refuses_second(calling);
}

}  // namespace

TemplateTraits traits_of(const ChatTemplate& chat_template, std::string_view source, const EdgeTokens& edges) {
  TemplateTraits out;
  const Json document{{"title", "kvilt"}, {"text", kDocument}};
  out.documents =
      holds(render(chat_template, edges, Json::array({message("user", "q")}), Json::array({document})), kDocument);
  out.developer = source.find("developer") != std::string_view::npos;
  const Json arguments{{kArgument, "value"}};
  // What it refuses counts as shown, as in shows_role.
  out.calls = shows_calls(chat_template, edges, "").value_or(true);
  out.null_content = !out.calls && shows_calls(chat_template, edges, nullptr).value_or(false);
  out.calls = out.calls || out.null_content;
  const Json content = out.null_content ? Json() : Json("");
  const bool object = shows_arguments(render(chat_template, edges, with_call(arguments, content)));
  const bool string = shows_arguments(render(chat_template, edges, with_call(arguments.dump(), content)));
  out.arguments_as_object = object || !string;
  const Json calling = with_call(out.arguments_as_object ? arguments : Json(arguments.dump()), content);
  Json silent = calling;
  silent[1]["content"] = nullptr;
  out.needs_content = !render(chat_template, edges, silent) && render(chat_template, edges, calling);
  find_splits(chat_template, edges, calling, out);
  find_reasoning(chat_template, edges, calling, out);
  find_orders(chat_template, edges, calling, out);
  for (const char* role : kUsualRoles) {
    if (shows_role(chat_template, role, edges)) out.roles.insert(role);
  }
  return out;
}

bool shows_role(const ChatTemplate& chat_template, const std::string& role, const EdgeTokens& edges) {
  const Json first = Json::array({message(role, kMessage), message("user", "q")});
  const Json last = Json::array({message("user", "q"), message("assistant", "a"), message(role, kMessage)});
  const auto at_first = render(chat_template, edges, first), at_last = render(chat_template, edges, last);
  return (!at_first && !at_last) || holds(at_first, kMessage) || holds(at_last, kMessage);
}

}  // namespace kvilt
