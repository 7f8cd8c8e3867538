#include "server/constraint_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "server/custom_tools.h"

namespace kvilt::server {
namespace {

constexpr size_t kMaxChoices = 4096;
constexpr size_t kMaxChoice = 1024;  // bytes

bool is_off(const Json& value) { return value == false || value == "" || value == "none"; }

// Clients of several servers say the same in the words of each. Where a request says two things, neither is meant for
// sure.
void put(Fields& fields, const std::string& name, Constraint said, ConstraintRequest& out) {
  if (!out.constraint) {
    out.constraint = std::move(said);
    out.field = name;
    return;
  }
  const Constraint& before = out.constraint;
  const bool same = before.form == said.form && before.text == said.text && before.choices == said.choices;
  if (!same) fields.fail(name, fmt::format("says what the answer must be, and so does {}: send one", out.field));
}

void set(Fields& fields, const std::string& name, Constraint::Form form, std::string text, ConstraintRequest& out) {
  if (text.size() > kMaxConstraint) return fields.fail(name, fmt::format("is longer than {} bytes", kMaxConstraint));
  Constraint said;
  said.form = form;
  said.text = std::move(text);
  put(fields, name, std::move(said), out);
}

void set_schema(Fields& fields, const std::string& name, const Json& schema, ConstraintRequest& out) {
  // vLLM takes a schema as text too.
  if (schema.is_string()) return set(fields, name, Constraint::Form::kSchema, schema.get<std::string>(), out);
  if (!schema.is_object() && schema != true)
    return fields.fail(name, fmt::format("must be a JSON Schema (an object), not {}", type_of(schema)));
  set(fields, name, Constraint::Form::kSchema, dump(schema), out);
}

void set_text(Fields& fields, const std::string& name, Constraint::Form form, const Json& text,
              ConstraintRequest& out) {
  if (!text.is_string()) return fields.fail(name, fmt::format("must be a string, not {}", type_of(text)));
  set(fields, name, form, text.get<std::string>(), out);
}

void set_choice(Fields& fields, const std::string& name, const Json& choices, ConstraintRequest& out) {
  if (!choices.is_array()) return fields.fail(name, fmt::format("must be a list of strings, not {}", type_of(choices)));
  if (choices.empty()) return fields.fail(name, "must not be empty");
  if (choices.size() > kMaxChoices) return fields.fail(name, fmt::format("has more than {} entries", kMaxChoices));
  Constraint said;
  said.form = Constraint::Form::kChoice;
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::string one = fmt::format("{}[{}]", name, i);
    if (!choices[i].is_string()) return fields.fail(one, fmt::format("must be a string, not {}", type_of(choices[i])));
    const auto& text = choices[i].get_ref<const std::string&>();
    if (text.empty() || text.size() > kMaxChoice)
      return fields.fail(one, fmt::format("must have 1 to {} bytes", kMaxChoice));
    said.choices.push_back(text);
  }
  put(fields, name, std::move(said), out);
}

void read_response_format(Fields& fields, ConstraintRequest& out) {
  const std::string name = "response_format";
  const Json* format = fields.find(name.c_str());
  if (!format) return;
  if (!format->is_object()) return fields.fail(name, fmt::format("must be an object, not {}", type_of(*format)));
  const Json type = format->value("type", Json());
  if (type == "text") return;
  if (type == "json_object") {  // llama.cpp's clients put a schema into it
    if (const auto schema = format->find("schema"); schema != format->end() && !schema->is_null())
      return set_schema(fields, name + ".schema", *schema, out);
    return set(fields, name, Constraint::Form::kJson, "", out);
  }
  if (type != "json_schema")
    return fields.fail(name + ".type", "must be \"text\", \"json_object\" or \"json_schema\"", "unsupported");
  const auto inner = format->find("json_schema");
  if (inner == format->end() || !inner->is_object())
    return fields.fail(name + ".json_schema", "is required and must be an object with \"name\" and \"schema\"");
  const auto schema = inner->find("schema");
  if (schema == inner->end() || schema->is_null()) return fields.fail(name + ".json_schema.schema", "is required");
  set_schema(fields, name + ".json_schema.schema", *schema, out);
}

// One of vLLM's words, in guided_NAME or structured_outputs.NAME.
void read_word(Fields& fields, const std::string& name, const std::string& word, const Json& value,
               ConstraintRequest& out) {
  if (word == "json") {
    set_schema(fields, name, value, out);
  } else if (word == "regex") {
    set_text(fields, name, Constraint::Form::kRegex, value, out);
  } else if (word == "grammar") {
    set_text(fields, name, Constraint::Form::kGrammar, value, out);
  } else if (word == "choice") {
    set_choice(fields, name, value, out);
  } else if (value == true) {
    set(fields, name, Constraint::Form::kJson, "", out);
  } else {
    fields.fail(name, fmt::format("must be true or false, not {}", type_of(value)));
  }
}

constexpr const char* kWords[] = {"json", "regex", "choice", "grammar"};

void read_structured_outputs(Fields& fields, ConstraintRequest& out) {
  const Json* asked = fields.find("structured_outputs");
  if (!asked || is_off(*asked)) return;
  if (!asked->is_object())
    return fields.fail("structured_outputs", fmt::format("must be an object, not {}", type_of(*asked)));
  for (const auto& [key, value] : asked->items()) {
    if (value.is_null() || is_off(value)) continue;
    const std::string name = "structured_outputs." + key.substr(0, 64);
    const bool known = key == "json_object" || std::find(std::begin(kWords), std::end(kWords), key) != std::end(kWords);
    if (!known)
      return fields.fail(name, "is not supported: json, regex, choice, grammar and json_object are", "unsupported");
    read_word(fields, name, key, value, out);
  }
}

struct NamedTool {
  Constraint::Tool tool;
  bool strict = false;
};

std::vector<NamedTool> tools_of(Fields& fields, const Json& tools) {
  std::vector<NamedTool> out;
  for (size_t i = 0; i < tools.size(); ++i) {
    if (is_custom(tools[i])) {
      const auto custom = read_custom_tool(tools[i], fmt::format("tools[{}]", i));
      if (!custom.ok()) {
        fields.fail(custom.error());
        return {};
      }
      out.push_back({custom.value().constraint(), true});
      continue;
    }
    const auto function = tools[i].is_object() ? tools[i].find("function") : tools[i].end();
    const auto name = function != tools[i].end() && function->is_object() ? function->find("name") : function;
    if (function == tools[i].end() || !function->is_object() || name == function->end() || !name->is_string() ||
        name->get_ref<const std::string&>().empty()) {
      fields.fail(fmt::format("tools[{}].function.name", i), "is required and must be a string");
      return {};
    }
    NamedTool one{{.name = name->get<std::string>(), .parameters = ""}, false};
    if (const auto parameters = function->find("parameters"); parameters != function->end() && !parameters->is_null())
      one.tool.parameters = dump(*parameters);
    one.strict = function->value("strict", Json()) == true;
    out.push_back(std::move(one));
  }
  return out;
}

// What tool_choice says.
struct ToolChoice {
  bool none = false, must = false, one = false;  // no call; one at least; one at most
  std::vector<std::string> only;                 // of these tools; empty: of all

  bool allows(const std::string& tool) const { return only.empty() || std::ranges::count(only, tool) > 0; }
};

constexpr const char* kChoices =
    R"(must be "auto", "none", "required", {"type": "function", "function": {"name": ...}} or {"type": "allowed_tools", ...})";

// The name in {"type": "function", "function": {"name": ...}}, or in the same of a custom tool. Null: it is not so.
const std::string* named_tool(const Json& tool) {
  const char* kind = is_custom(tool) ? "custom" : "function";
  const auto named = tool.is_object() ? tool.find(kind) : tool.end();
  const bool names = tool.is_object() && tool.value("type", Json()) == kind && named != tool.end() &&
                     named->is_object() && named->contains("name") && (*named)["name"].is_string();
  return names ? &(*named)["name"].get_ref<const std::string&>() : nullptr;
}

// {"mode": "auto" | "required", "tools": [...]}: the prompt has all tools, which leaves it as it was cached; some may be
// called.
void read_allowed_tools(Fields& fields, const Json& choice, ToolChoice& out) {
  const auto allowed = choice.find("allowed_tools");
  const std::string path = "tool_choice.allowed_tools";
  if (allowed == choice.end() || !allowed->is_object())
    return fields.fail(path, R"(is required and must be an object with "mode" and "tools")");
  const Json mode = allowed->value("mode", Json());
  if (mode != "auto" && mode != "required") return fields.fail(path + ".mode", R"(must be "auto" or "required")");
  out.must = mode == "required";
  const auto tools = allowed->find("tools");
  if (tools == allowed->end() || !tools->is_array() || tools->empty())
    return fields.fail(path + ".tools", "is required and must be a list of one tool at least");
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string* name = named_tool((*tools)[i]);
    if (!name) {
      return fields.fail(fmt::format("{}.tools[{}]", path, i),
                         R"(must be {"type": "function", "function": {"name": ...}}, or the same of a custom tool)",
                         "unsupported");
    }
    out.only.push_back(*name);
  }
}

ToolChoice read_tool_choice(Fields& fields) {
  ToolChoice out;
  const Json* choice = fields.find("tool_choice");
  if (!choice || *choice == "auto") return out;
  if (*choice == "none") {
    out.none = true;
  } else if (*choice == "required") {
    out.must = true;
  } else if (choice->is_object() && choice->value("type", Json()) == "allowed_tools") {
    read_allowed_tools(fields, *choice, out);
  } else if (const std::string* name = named_tool(*choice)) {
    out.must = out.one = true;
    out.only.push_back(*name);
  } else {
    fields.fail("tool_choice", kChoices, "unsupported");
  }
  return out;
}

// Whether the tool says itself what its calls have to be.
bool is_strict(const Json& tool) {
  if (is_custom(tool)) {
    const auto custom = read_custom_tool(tool, "tools");
    return custom.ok() && custom.value().form != Constraint::Form::kNone;
  }
  const auto function = tool.is_object() ? tool.find("function") : tool.end();
  return function != tool.end() && function->is_object() && function->value("strict", Json()) == true;
}

}  // namespace

void read_constraint(Fields& fields, ConstraintRequest& out) {
  read_response_format(fields, out);
  for (const char* word : kWords) {
    const std::string name = std::string("guided_") + word;
    const Json* value = fields.find(name.c_str());
    if (value && !is_off(*value)) read_word(fields, name, word, *value, out);
  }
  read_structured_outputs(fields, out);
  // SGLang's words.
  if (const Json* regex = fields.find("regex"); regex && !is_off(*regex))
    set_text(fields, "regex", Constraint::Form::kRegex, *regex, out);
  if (const Json* grammar = fields.find("ebnf"); grammar && !is_off(*grammar))
    set_text(fields, "ebnf", Constraint::Form::kGrammar, *grammar, out);
  // llama.cpp's words. A lazy grammar begins where a trigger is written: that is what tools are for here.
  if (const Json* lazy = fields.find("grammar_lazy"); lazy && *lazy != false)
    fields.fail("grammar_lazy", "only false is supported by this server: send tools instead", "unsupported");
  if (const Json* grammar = fields.find("grammar"); grammar && !is_off(*grammar))
    set_text(fields, "grammar", Constraint::Form::kGrammar, *grammar, out);
  if (const Json* schema = fields.find("json_schema"); schema && !is_off(*schema))
    set_schema(fields, "json_schema", *schema, out);
}

void read_tool_constraint(Fields& fields, bool one_call, ConstraintRequest& out) {
  const Json* list = fields.find("tools");
  const ToolChoice choice = read_tool_choice(fields);
  if (!fields.ok()) return;
  const bool asked = choice.must || !choice.only.empty(), offered = list && list->is_array() && !list->empty();
  if (asked && !offered) return fields.fail("tool_choice", "needs tools to choose from");
  if (!offered || choice.none) return;
  if (!asked && !out.constraint && std::none_of(list->begin(), list->end(), is_strict)) return;
  std::vector<NamedTool> tools = tools_of(fields, *list);
  for (const std::string& name : choice.only) {
    if (std::ranges::none_of(tools, [&](const NamedTool& one) { return one.tool.name == name; }))
      return fields.fail("tool_choice", fmt::format("there is no tool '{}'", name.substr(0, 64)));
  }
  if (choice.must) {  // a call is what the answer must be, whatever its text would have to be
    out = {};
    out.field = "tool_choice";
    out.constraint.form = Constraint::Form::kCalls;
  }
  for (NamedTool& one : tools) {
    if (!choice.allows(one.tool.name)) continue;
    if (!choice.must && !one.strict) one.tool.parameters.clear();  // any object
    out.constraint.tools.push_back(std::move(one.tool));
  }
  out.constraint.one_call = one_call || choice.one;
  if (out.constraint) return;
  out.field = asked ? "tool_choice" : "tools";
  out.constraint.form = Constraint::Form::kCalls;
  out.constraint.may_speak = true;
}

}  // namespace kvilt::server
