// template/chat_template.cc: see chat_template.h.
#include "template/chat_template.h"

#include <algorithm>
#include <chrono>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "template/jinja/interpreter.h"

namespace kvilt {

using Json = nlohmann::ordered_json;
using jinja::Fault;
using jinja::Meter;
using jinja::Span;
using jinja::Text;
using jinja::Value;

const std::string_view kFallbackChatTemplate =
    "{%- for message in messages -%}\n"
    "{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}\n";

namespace {

// A template spends some 50 to 300 steps on a message, which is a handful of values.
constexpr uint64_t kStepsPerValue = 300;
// Searching a text costs a step for 16 bytes, copying it one for 256; a template does a few dozen such things to one.
constexpr uint64_t kStepsPerByte = 2;

using LeafMarks = std::unordered_map<const Json*, std::vector<const Mark*>>;

Error to_error(const Fault& fault) {
  if (fault.at.line == 0) return error(fault.code, "chat template: {}", fault.message);
  return error(fault.code, "chat template, line {}, column {}: {}", fault.at.line, fault.at.column, fault.message);
}

// Runs `body`, and makes an Error of what the interpreter and the libraries throw.
template <class T, class Body>
Result<T> guarded(Body&& body) {
  try {
    return body();
  } catch (const Fault& fault) {
    return to_error(fault);
  } catch (const std::bad_alloc&) {
    return error(Code::kExhausted, "chat template: out of memory");
  } catch (const std::exception& e) {
    return error(Code::kInvalidArgument, "chat template: {}", e.what());
  }
}

const Json* find_leaf(const ChatInputs& inputs, const Json::json_pointer& where) {
  const std::vector<std::string> steps = steps_of(where);
  if (steps.empty()) return nullptr;
  const Json* at = nullptr;
  size_t next = 1;
  if (steps[0] == "messages") {
    at = &inputs.messages;
  } else if (steps[0] == "tools") {
    at = &inputs.tools;
  } else if (steps[0] == "documents") {
    at = &inputs.documents;
  } else {
    at = &inputs.extra;
    next = 0;
  }
  for (; next < steps.size(); ++next) {
    const std::string& step = steps[next];
    if (at->is_object()) {
      const auto found = at->find(step);
      if (found == at->end()) return nullptr;
      at = &*found;
    } else if (at->is_array()) {
      const bool digits =
          !step.empty() && step.size() < 10 && step.find_first_not_of("0123456789") == std::string::npos;
      if (!digits || std::stoul(step) >= at->size()) return nullptr;
      at = &(*at)[std::stoul(step)];
    } else {
      return nullptr;
    }
  }
  return at->is_string() ? at : nullptr;
}

bool cuts_character(const std::string& text, size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
}

Result<LeafMarks> resolve(const ChatInputs& inputs) {
  LeafMarks leaves;
  for (const Mark& mark : inputs.marks) {
    const Json* leaf = find_leaf(inputs, mark.where);
    const std::string where = mark.where.to_string();
    if (!leaf) return error(Code::kInvalidArgument, "mark {}: there is no string at {}", mark.id, where);
    const std::string& text = leaf->get_ref<const std::string&>();
    if (mark.id < 0)
      return error(Code::kInvalidArgument, "the mark at {} has the id {}; ids start at 0", where, mark.id);
    if (mark.begin > mark.end || mark.end > text.size())
      return error(Code::kInvalidArgument, "mark {}: bytes {} to {} leave the {} bytes at {}", mark.id, mark.begin,
                   mark.end, text.size(), where);
    if (cuts_character(text, mark.begin) || cuts_character(text, mark.end))
      return error(Code::kInvalidArgument, "mark {}: a border cuts a character at {}", mark.id, where);
    if (mark.begin < mark.end) leaves[leaf].push_back(&mark);
  }
  for (auto& [leaf, marks] : leaves) {
    std::ranges::sort(marks, [](const Mark* a, const Mark* b) { return a->begin < b->begin; });
    for (size_t i = 1; i < marks.size(); ++i)
      if (marks[i]->begin < marks[i - 1]->end)
        return error(Code::kInvalidArgument, "the marks {} and {} overlap", marks[i - 1]->id, marks[i]->id);
  }
  return leaves;
}

// Roles that are known words. Templates make markers of them ('<|' + message.role + '|>'), which are special tokens only
// where all of their text is trusted; and whoever chooses among these words can forge nothing with them.
constexpr std::string_view kTrustedRoles[] = {"system", "user", "assistant", "tool", "developer", "function"};

std::unordered_set<const Json*> trusted_roles(const Json& messages) {
  std::unordered_set<const Json*> out;
  if (!messages.is_array()) return out;
  for (const Json& message : messages) {
    if (!message.is_object()) continue;
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string()) continue;
    if (std::ranges::find(kTrustedRoles, role->get_ref<const std::string&>()) != std::end(kTrustedRoles))
      out.insert(&*role);
  }
  return out;
}

// Makes values of JSON; every string is the caller's, except the roles of the messages that are known words.
class Converter {
 public:
  Converter(Meter& meter, const LeafMarks& marks, const Json& messages)
      : meter_(meter), marks_(marks), trusted_(trusted_roles(messages)) {}

  Value convert(const Json& json, int depth = 0) {
    meter_.grant(kStepsPerValue);
    if (depth > jinja::kMaxValueDepth)
      jinja::fail("the request's JSON is nested more than {} deep", jinja::kMaxValueDepth);
    meter_.step();
    switch (json.type()) {
      case Json::value_t::boolean:
        return Value(json.get<bool>());
      case Json::value_t::number_integer:
        return Value(json.get<int64_t>());
      case Json::value_t::number_unsigned:
        return Value::whole(json.get<uint64_t>());
      case Json::value_t::number_float:
        return Value(json.get<double>());
      case Json::value_t::string:
        return text(json);
      case Json::value_t::array: {
        std::vector<Value> items;
        items.reserve(json.size());
        for (const Json& item : json) items.push_back(convert(item, depth + 1));
        return jinja::make_list(meter_, std::move(items));
      }
      case Json::value_t::object: {
        jinja::DictBuilder dict(meter_);
        for (const auto& [key, item] : json.items())
          dict.append_new(jinja::make_text(meter_, Text::untrusted(key)), convert(item, depth + 1));
        return dict.take();
      }
      default:
        return Value();
    }
  }

 private:
  Value text(const Json& json) {
    const std::string& bytes = json.get_ref<const std::string&>();
    meter_.grant(bytes.size() * kStepsPerByte);
    const auto found = marks_.find(&json);
    if (found == marks_.end()) {
      return jinja::make_text(meter_, trusted_.contains(&json) ? Text::trusted(bytes) : Text::untrusted(bytes));
    }
    Text text = Text::trusted(bytes);
    size_t at = 0;
    for (const Mark* mark : found->second) {
      if (at < mark->begin) text.spans.push_back({at, mark->begin, jinja::kUnmarked, 0});
      text.spans.push_back({mark->begin, mark->end, mark->id, 0});
      at = mark->end;
    }
    if (at < bytes.size()) text.spans.push_back({at, bytes.size(), jinja::kUnmarked, 0});
    return jinja::make_text(meter_, std::move(text));
  }

  Meter& meter_;
  const LeafMarks& marks_;
  const std::unordered_set<const Json*> trusted_;
};

int64_t clock_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

RenderedPrompt render_with(const jinja::Template& tmpl, const ChatInputs& inputs, const LeafMarks& marks,
                           const jinja::Limits& limits) {
  Meter meter{limits};
  jinja::Interpreter interpreter(meter, inputs.now ? *inputs.now : clock_seconds());
  Converter converter(meter, marks, inputs.messages);
  for (const auto& [name, value] : inputs.extra.items()) interpreter.define(name, converter.convert(value));
  const auto define = [&](std::string_view name, const Json& json) {
    if (!json.is_discarded()) interpreter.define(name, converter.convert(json));
  };
  for (const auto& [name, token] : inputs.special_tokens) interpreter.define(name, jinja::make_trusted(meter, token));
  define("messages", inputs.messages);
  define("tools", inputs.tools);
  define("documents", inputs.documents);
  interpreter.define("add_generation_prompt", Value(inputs.add_generation_prompt));
  interpreter.define("bos_token", jinja::make_trusted(meter, inputs.bos_token));
  interpreter.define("eos_token", jinja::make_trusted(meter, inputs.eos_token));
  Text text = interpreter.run(tmpl);
  RenderedPrompt prompt;
  prompt.text = std::move(text.bytes);
  prompt.untrusted.reserve(text.spans.size());
  for (const Span& span : text.spans) prompt.untrusted.push_back({span.begin, span.end, span.mark});
  return prompt;
}

// A probe's part of what a prompt may take: there are several, of a message or two.
constexpr uint64_t kProbeShare = 16;

// One message of each role whose content may be looked at; the user's first.
const std::vector<Json>& probed_roles() {
  static const std::vector<Json> roles{{{"role", "user"}},
                                       {{"role", "system"}},
                                       {{"role", "assistant"}},
                                       {{"role", "tool"}, {"tool_call_id", "callprobe"}, {"name", "f"}}};
  return roles;
}

}  // namespace

std::vector<std::string> steps_of(const Json::json_pointer& where) {
  std::vector<std::string> steps;
  for (const char c : where.to_string()) {
    if (c == '/') {
      steps.emplace_back();
    } else if (!steps.empty()) {
      std::string& step = steps.back();
      const bool escaped = !step.empty() && step.back() == '~' && (c == '0' || c == '1');
      if (escaped) step.pop_back();
      step += escaped && c == '1' ? '/' : escaped ? '\x01' : c;  // \x01 means '~' until the step is whole
    }
  }
  for (std::string& step : steps) std::ranges::replace(step, '\x01', '~');
  return steps;
}

Json::json_pointer place_of(const std::vector<std::string>& steps) {
  Json::json_pointer where;
  for (const std::string& step : steps) where.push_back(step);
  return where;
}

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::optional<uint64_t> max_steps) {
  return guarded<ChatTemplate>([&]() -> Result<ChatTemplate> {
    ChatTemplate made(std::make_shared<const jinja::Template>(jinja::parse_template(source)));
    made.max_steps_ = max_steps;
    made.probe_roles();
    return made;
  });
}

Result<RenderedPrompt> ChatTemplate::render(const ChatInputs& inputs) const { return render(inputs, 1); }

Result<RenderedPrompt> ChatTemplate::render(const ChatInputs& inputs, uint64_t share) const {
  return guarded<RenderedPrompt>([&]() -> Result<RenderedPrompt> {
    if (!inputs.extra.is_object() && !inputs.extra.is_null())
      return error(Code::kInvalidArgument, "the template's arguments must be a JSON object");
    KVILT_ASSIGN(const LeafMarks marks, resolve(inputs));
    jinja::Limits limits;
    if (max_steps_) limits.steps = std::min(limits.steps, *max_steps_);
    limits.steps /= share;
    limits.live_bytes /= share;
    limits.output_bytes /= share;
    return render_with(*template_, inputs, marks, limits);
  });
}

// Two parts with unusual texts and an unusual field: a template that handles parts prints the texts and not the field;
// one that prints the array as it is, skips it, or takes its first part alone (Mistral's, of the system) fails. A role of
// which strings are not shown either is as the user's; a template that shows none of the user's is asked no more.
void ChatTemplate::probe_roles() {
  static constexpr const char *kText = "kvilt probes for parts", *kMore = "and for the second one";
  static constexpr const char* kField = "kvilt_probe_field";
  const Json parts =
      Json::array({{{"type", "text"}, {"text", kText}, {kField, true}}, {{"type", "text"}, {"text", kMore}}});
  const auto has = [](const std::string& text, const char* word) { return text.find(word) != std::string::npos; };
  const auto takes = [&](const Json& message) {
    const std::string text = probe(message, parts);
    return has(text, kText) && has(text, kMore) && !has(text, kField);
  };
  const auto shows = [&](const Json& message) { return has(probe(message, kText), kText); };
  const Json& users = probed_roles()[0];
  const bool users_take = takes(users), asks_more = users_take || shows(users);
  for (const Json& message : probed_roles()) {
    const bool parts_stay =
        &message == &users ? users_take : asks_more && (takes(message) || (users_take && !shows(message)));
    if (!parts_stay) flat_.push_back(message["role"]);
  }
}

// What a message of this content renders to, in a conversation that has one; empty: the template refuses.
std::string ChatTemplate::probe(Json message, const Json& content) const {
  const Json user{{"role", "user"}, {"content", "q"}};
  const Json call{{"id", "callprobe"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", {{"a", 1}}}}}};
  const Json calling{{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}};
  message["content"] = content;
  const std::string role = message["role"];
  ChatInputs inputs;
  inputs.messages = role == "user"     ? Json::array({message})
                    : role == "system" ? Json::array({message, user})
                    : role == "tool"   ? Json::array({user, calling, message})
                                       : Json::array({user, message, user});
  const Result<RenderedPrompt> prompt = render(inputs, kProbeShare);
  return prompt.ok() ? prompt->text : "";
}

bool ChatTemplate::takes_parts(std::string_view role) const {
  if (role == "developer") role = "system";
  const bool usual = role == "system" || role == "assistant" || role == "tool";
  return std::ranges::find(flat_, usual ? role : "user") == flat_.end();
}

Result<void> flatten_parts(ChatInputs& inputs, std::string_view separator,
                           const std::function<bool(std::string_view)>& stay) {
  if (!inputs.messages.is_array()) return {};
  std::unordered_multimap<std::string, Mark*> marks;  // by place: there may be one for each of many parts
  for (Mark& mark : inputs.marks) marks.emplace(mark.where.to_string(), &mark);
  for (size_t m = 0; m < inputs.messages.size(); ++m) {
    Json& message = inputs.messages[m];
    if (!message.is_object() || !message.contains("content") || !message["content"].is_array()) continue;
    const Json& role = message.contains("role") ? message["role"] : Json();
    if (stay && role.is_string() && stay(role.get_ref<const std::string&>())) continue;
    Json& content = message["content"];
    std::string joined;
    for (size_t p = 0; p < content.size(); ++p) {
      const Json& part = content[p];
      const bool object = part.is_object() && part.contains("text") && part["text"].is_string();
      if (!object && !part.is_string()) {
        const bool typed = part.is_object() && part.contains("type") && part["type"].is_string();
        return error(Code::kUnsupported, "messages[{}].content[{}] is of type '{}'; this model takes text only", m, p,
                     typed ? part["type"].get<std::string>() : part.type_name());
      }
      if (p > 0) joined += separator;
      const std::string path = fmt::format("/messages/{}/content/{}", m, p);
      const auto [first, last] = marks.equal_range(object ? path + "/text" : path);
      for (auto found = first; found != last; ++found) {
        Mark& mark = *found->second;
        mark.where = Json::json_pointer(fmt::format("/messages/{}/content", m));
        mark.begin += joined.size();
        mark.end += joined.size();
      }
      joined += (object ? part["text"] : part).get_ref<const std::string&>();
    }
    content = std::move(joined);
  }
  return {};
}

}  // namespace kvilt
