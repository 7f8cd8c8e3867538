#include "engine/answer_grammar.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_size.h"
#include "grammar/lark.h"
#include "grammar/schema_check.h"
#include "grammar/schema_refs.h"
#include "grammar/schema_words.h"
#include "grammar/text_start.h"

namespace kvilt {
namespace {

using Json = GrammarPart::Json;
using Parts = std::vector<GrammarPart>;

// Of calls that have one. Nine signs: some templates ask for that.
constexpr const char* kIdPattern = "[a-zA-Z0-9]{9}";

// The parameter of a tool whose input is a text.
constexpr const char* kInput = "input";

constexpr std::string_view kSpace = " \n\r\t";

// Words of a schema that say what kind of value it is.
constexpr const char* kSaysWhat[] = {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"};

Json any_object() { return {{"type", "object"}, {"additionalProperties", true}}; }

// Bounded before it is built: copies of a deep value would take a deep stack.
Result<Json> schema_of(const std::string& text, const std::string& what) {
  if (const auto large = oversized_json(text, {}, what)) return Error{Code::kInvalidArgument, *large};
  Json schema = Json::parse(text, nullptr, false);
  if (schema.is_discarded()) return error(Code::kInvalidArgument, "{} is not JSON", what);
  if (!schema.is_object() && schema != true)
    return error(Code::kInvalidArgument, "{} must be a JSON Schema: an object, or true", what);
  return schema;
}

Error told_of(const std::string& whose, const Error& why) { return error(why.code, "{}: {}", whose, why.message); }

// Settled by itself, so that an error says whose schema it is: that of a whole grammar would not.
Status settle_of(const std::string& whose, Json& schema) {
  const Status settled = settle_schema(schema);
  return settled.ok() ? Status() : told_of(whose, settled.error());
}

void add_word(const std::string& word, Parts& out) {
  if (!word.empty()) out.push_back(GrammarPart::word(word));
}

// Of a tool whose input is a text: EBNF of that, as it is or as JSON's strings hold it.
Result<GrammarPart> input_of(const Constraint::Tool& tool, Spelling spelling) {
  const auto ebnf = tool.input_form == Constraint::Form::kRegex ? pattern_to_ebnf(tool.input, spelling)
                                                                : lark_to_ebnf(tool.input, spelling);
  if (!ebnf.ok()) return told_of(fmt::format("tool '{}'", tool.name), ebnf.error());
  return GrammarPart::ebnf(*ebnf);
}

GrammarPart object_call(const CallSyntax& c, const std::string& name, GrammarPart arguments) {
  Parts out;
  add_word(fmt::format("{{{}: {}, {}: ", Json(c.name_key).dump(), Json(name).dump(), Json(c.arguments_key).dump()),
           out);
  out.push_back(std::move(arguments));
  if (!c.id_key.empty()) {
    add_word(fmt::format(", {}: \"", Json(c.id_key).dump()), out);
    out.push_back(GrammarPart::regex(kIdPattern));
    add_word("\"", out);
  }
  add_word("}", out);
  return GrammarPart::sequence(out);
}

GrammarPart named_call(const CallSyntax& c, const std::string& name, GrammarPart arguments) {
  Parts out;
  add_word(name, out);
  add_word(c.after_name, out);
  if (c.has_id) {
    out.push_back(GrammarPart::regex(kIdPattern));
    add_word(c.after_id, out);
  }
  out.push_back(std::move(arguments));
  return GrammarPart::sequence(out);
}

// Whether a parameter's value is written as it is, without JSON's quotes.
bool is_plain_text(const Json& schema) {
  const auto is_string = [](const Json& value) { return value.is_string(); };
  if (!schema.is_object()) return false;
  if (schema.contains("type") && !is_of_any("", schema["type"])) return false;
  if (schema.contains("const")) return is_string(schema["const"]);
  if (schema.contains("enum"))
    return schema["enum"].is_array() && std::all_of(schema["enum"].begin(), schema["enum"].end(), is_string);
  return schema.value("type", Json()) == "string";
}

// What $refs of a tool's parameters lead to: parameters between tags are schemas of their own, so it goes along with each
// that has a $ref. Where all lead to definitions, these do; else all of the tool's schema is one.
class CarriedSchemas {
 public:
  explicit CarriedSchemas(const Json& tool) : tool_(tool) {
    for (const char* word : {"$defs", "definitions"}) {
      if (tool.contains(word)) definitions_[word] = tool[word];
    }
    whole_ = refs_of(definitions_) == SchemaRefs::kElsewhere;
  }

  Status go_with(Json& parameter, const std::string& whose) {
    const SchemaRefs refs = refs_of(parameter);
    if (!parameter.is_object() || refs == SchemaRefs::kNone) return {};
    if (const Status ids = check_ids(tool_); !ids.ok())
      return error(Code::kInvalidArgument, "{}: {}", whose, ids.error().message);
    Json more = definitions_;
    if (whole_ || refs == SchemaRefs::kElsewhere) {
      more = {{"$defs", {{"tool", tool_}}}};
      more["$defs"]["tool"].erase("$id");  // its $refs are moved, so none begins there any more
      move_refs(more, "#/$defs/tool");
      move_refs(parameter, "#/$defs/tool");
    }
    carried_ += more.dump(-1, ' ', false, Json::error_handler_t::replace).size();
    if (carried_ > kMostCarried) {
      return error(Code::kInvalidArgument,
                   "{}: what $refs of the tool's parameters lead to has more than {} bytes, once for each of them",
                   whose, kMostCarried);
    }
    parameter.update(more);
    return {};
  }

 private:
  static constexpr size_t kMostCarried = 4 << 20;  // before it is settled; a grammar takes a sixteenth of it

  const Json& tool_;
  Json definitions_ = Json::object();
  bool whole_ = false;
  size_t carried_ = 0;  // bytes
};

// Whether the text holds the first tag of what would end it.
bool has_tag(std::string_view text, std::string_view end) {
  end.remove_prefix(std::min(end.find_first_not_of(kSpace), end.size()));
  if (const size_t tag = end.find_first_of(">]"); tag != std::string_view::npos) end = end.substr(0, tag + 1);
  return !end.empty() && text.find(end) != std::string_view::npos;
}

// Whether a parameter's name stays what it is: the reader passes over space around it.
bool stays_a_name(std::string_view name, std::string_view end) {
  return !name.empty() && name.find_first_not_of(kSpace) == 0 && name.find_last_not_of(kSpace) + 1 == name.size() &&
         !has_tag(name, end);
}

// One parameter, `whose`, between its tags. Of a string's schema const and enum are held to, its length and pattern are
// not.
Result<GrammarPart> tagged_value(const CallSyntax& c, const std::string& whose, const std::string& key, Json schema,
                                 CarriedSchemas& carried) {
  const bool plain = is_plain_text(schema);
  const std::string head = c.key_begin + key + (plain ? c.key_end : c.other_key_end);
  if (plain && !schema.contains("const") && !schema.contains("enum")) return GrammarPart::until(head, c.value_end);
  Parts out;
  add_word(head, out);
  if (plain) {
    Parts words;
    for (const Json& value : schema.contains("const") ? Json::array({schema["const"]}) : schema["enum"]) {
      const std::string& one = value.get_ref<const std::string&>();
      if (one.empty() || has_tag(one, c.value_end)) {
        return error(
            Code::kInvalidArgument,
            "{}: '{}' in its enum is not supported: this model writes calls between tags, where such a word is "
            "not told from what ends it",
            whose, short_text(one));
      }
      words.push_back(GrammarPart::word(one));
    }
    if (words.empty()) return error(Code::kInvalidArgument, "{}: its enum is empty", whose);
    out.push_back(GrammarPart::one_of(words));
  } else {
    KVILT_TRY(carried.go_with(schema, whose));
    KVILT_TRY(settle_of(whose, schema));
    out.push_back(GrammarPart::json(std::move(schema)));
  }
  add_word(c.value_end, out);
  return GrammarPart::sequence(out);
}

// Of a tool's parameters as a whole: between tags nothing can be held to but which there are and which must be.
Status check_tagged(const CallSyntax& c, const std::string& name, const Json& schema) {
  constexpr std::array kHeld = {
      "type", "format", "properties", "required", "additionalProperties", "unevaluatedProperties"};
  const auto wrong = [&](const std::string& why) {
    return error(Code::kInvalidArgument, "tool '{}': {}; this model writes calls between tags, parameter by parameter",
                 name, why);
  };
  if (schema.contains("type") && !is_of_any(Json::object(), schema["type"]))
    return wrong("its parameters must be of type object");
  const Json properties = schema.value("properties", Json::object()),
             required = schema.value("required", Json::array());
  if (!properties.is_object()) return error(Code::kInvalidArgument, "tool '{}': properties must be an object", name);
  for (const auto& one : schema.items()) {
    const std::string& word = one.key();
    const Json& value = one.value();
    const bool of_others = std::ranges::any_of(typed(), [&](const Typed& of) {
      return of.type != std::string_view("object") && std::ranges::find(of.keywords, word) != of.keywords.end();
    });
    if (!is_schema_condition(word) || of_others || std::ranges::find(kHeld, word) != kHeld.end()) continue;
    const bool fits = value.is_number_integer() &&
                      ((word == "minProperties" && std::cmp_less_equal(value.get<int64_t>(), required.size())) ||
                       (word == "maxProperties" && std::cmp_greater_equal(value.get<int64_t>(), properties.size())));
    if (!fits) return wrong(fmt::format("'{}' of its parameters as a whole is not supported", word));
  }
  for (const Json& key : required) {
    if (!key.is_string() || !properties.contains(key.get_ref<const std::string&>()))
      return wrong(fmt::format("{} is required and not among its properties", short_text(key.dump())));
  }
  for (const auto& [key, unused] : properties.items()) {
    if (!stays_a_name(key, c.key_end))
      return wrong(fmt::format("a parameter by the name '{}' is not supported", short_text(key)));
  }
  return {};
}

Result<GrammarPart> tagged_call(const CallSyntax& c, const std::string& name, const Json& schema) {
  KVILT_TRY(check_tagged(c, name, schema));
  Parts out;
  add_word(name, out);
  add_word(c.after_name, out);
  CarriedSchemas carried(schema);
  const Json required = schema.value("required", Json::array());
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [key, value] : properties.items()) {
    const std::string whose = fmt::format("tool '{}': parameter '{}'", name, key);
    const bool needed = std::find(required.begin(), required.end(), Json(key)) != required.end();
    if (is_never(value)) {  // it may not be there
      if (needed) return error(Code::kInvalidArgument, "{}: it is required, and no value fits it", whose);
      continue;
    }
    KVILT_ASSIGN(GrammarPart one, tagged_value(c, whose, key, value, carried));
    one = GrammarPart::sequence({GrammarPart::space(), std::move(one)});
    out.push_back(needed ? std::move(one) : GrammarPart::maybe(one));
  }
  return GrammarPart::sequence(out);
}

Error not_known() {
  return error(Code::kUnsupported,
               "how this model writes tool calls is not known from its chat template, so they cannot be enforced");
}

Result<Json> schema_of(const Constraint::Tool& tool) {
  if (tool.parameters.empty()) return any_object();
  KVILT_ASSIGN(Json schema, schema_of(tool.parameters, fmt::format("tool '{}': its parameters", tool.name)));
  if (!schema.is_object() || schema.empty()) return any_object();
  const bool says = std::ranges::any_of(kSaysWhat, [&](const char* word) { return schema.contains(word); });
  if (!says) schema["type"] = "object";
  return schema;
}

// As JSON.
Result<GrammarPart> arguments_of(const Constraint::Tool& tool) {
  if (tool.input_form == Constraint::Form::kNone) {
    KVILT_ASSIGN(Json schema, schema_of(tool));
    KVILT_TRY(settle_of(fmt::format("tool '{}'", tool.name), schema));
    return GrammarPart::json(std::move(schema));
  }
  KVILT_ASSIGN(GrammarPart input, input_of(tool, Spelling::kInJson));
  return GrammarPart::sequence(
      {GrammarPart::word(fmt::format("{{{}: \"", Json(kInput).dump())), std::move(input), GrammarPart::word("\"}")});
}

// Between tags a text stands as it is.
Result<GrammarPart> tagged_input(const CallSyntax& c, const Constraint::Tool& tool) {
  KVILT_ASSIGN(GrammarPart input, input_of(tool, Spelling::kPlain));
  Parts out;
  add_word(tool.name, out);
  add_word(c.after_name, out);
  out.push_back(GrammarPart::space());
  add_word(c.key_begin + kInput + c.key_end, out);
  out.push_back(std::move(input));
  add_word(c.value_end, out);
  return GrammarPart::sequence(out);
}

Result<GrammarPart> one_call(const CallSyntax& c, const Constraint::Tool& tool) {
  if (c.form == CallSyntax::Form::kNone) return not_known();
  if (c.form == CallSyntax::Form::kTagged) {
    if (tool.input_form != Constraint::Form::kNone) return tagged_input(c, tool);
    KVILT_ASSIGN(const Json schema, schema_of(tool));
    return tagged_call(c, tool.name, schema);
  }
  KVILT_ASSIGN(GrammarPart arguments, arguments_of(tool));
  return c.form == CallSyntax::Form::kObject ? object_call(c, tool.name, std::move(arguments))
                                             : named_call(c, tool.name, std::move(arguments));
}

// What is between the words before the first call and those behind the last one.
Result<GrammarPart> inner_calls(const CallSyntax& c, const Constraint& constraint, bool single) {
  Parts calls;
  for (const Constraint::Tool& tool : constraint.tools) {
    KVILT_ASSIGN(auto call, one_call(c, tool));
    calls.push_back(std::move(call));
  }
  GrammarPart one = GrammarPart::one_of(calls);
  // Around an object there may be space, around a name it would be a part of that.
  if (c.form != CallSyntax::Form::kNamed)
    one = GrammarPart::sequence({GrammarPart::space(), std::move(one), GrammarPart::space()});
  return single ? one : GrammarPart::separated(one, c.between);
}

// The words before a call up to their first tag, and what is behind it: a model may write other space between them.
std::pair<std::string, std::string> first_tag_of(const std::string& begin) {
  const size_t end = begin.find_first_of(kSpace);
  const bool is_tag = end != std::string::npos && end > 0 && (begin[end - 1] == '>' || begin[end - 1] == ']');
  if (!is_tag) return {begin, ""};
  const size_t rest = begin.find_first_not_of(kSpace, end);
  return {begin.substr(0, end), rest == std::string::npos ? "" : begin.substr(rest)};
}

// Text, and calls behind the words that begin one. An object at the answer's start is read as a call without these words
// (server/call_head.h), so what begins with a brace is one.
Result<GrammarPart> text_and_calls(const CallSyntax& c, const Constraint& constraint, GrammarPart inner) {
  const auto [begin, rest] = first_tag_of(c.begin);
  if (begin.size() < c.begin.size()) {
    Parts behind{GrammarPart::space()};
    add_word(rest, behind);
    behind.push_back(std::move(inner));
    inner = GrammarPart::sequence(behind);
  }
  const GrammarPart free = GrammarPart::text_with(begin, inner, c.end, constraint.one_call);
  constexpr std::string_view kNotText = "{ \n\r\t";  // space comes before all of them, as the reader passes over it
  if (c.form != CallSyntax::Form::kObject || kNotText.find(begin[0]) != std::string_view::npos) return free;
  CharSet never;
  for (const char sign : kNotText) never.add(sign, sign);
  const GrammarPart start = GrammarPart::ebnf(text_start_to_ebnf(begin, never));
  KVILT_ASSIGN(GrammarPart bare, inner_calls(c, constraint, true));
  Parts marked;
  add_word(begin, marked);
  marked.push_back(std::move(inner));
  add_word(c.end, marked);
  const GrammarPart called = GrammarPart::sequence(marked);
  Parts ways{std::move(bare)};  // as few copies of the schemas as can be
  if (constraint.one_call) {
    ways.push_back(called);
    ways.push_back(GrammarPart::sequence({start, free}));
  } else {
    ways.push_back(GrammarPart::sequence({GrammarPart::one_of({called, start}), free}));
  }
  return GrammarPart::sequence({GrammarPart::regex("[ \\n\\r\\t]*"), GrammarPart::maybe(GrammarPart::one_of(ways))});
}

Result<GrammarPart> calls(const CallSyntax& c, const Constraint& constraint) {
  if (c.form == CallSyntax::Form::kNone) return not_known();
  if (constraint.tools.empty()) return error(Code::kInvalidArgument, "no tool may be called");
  const bool single = constraint.one_call || c.between.empty();
  if (constraint.may_speak) {
    // Calls without a word behind them could not be told from text that goes on: one at a time, each with its own begin.
    KVILT_ASSIGN(auto inner, inner_calls(c, constraint, single || c.end.empty()));
    if (!c.begin.empty()) return text_and_calls(c, constraint, std::move(inner));
    if (c.form == CallSyntax::Form::kObject) {  // what begins with a brace is a call, and nothing else may
      const GrammarPart said = GrammarPart::sequence({GrammarPart::regex("[^{ \\n\\r\\t]"), GrammarPart::text()});
      return GrammarPart::one_of({std::move(inner), said});
    }
    return error(
        Code::kUnsupported,
        "this model's tool calls begin with no word of their own, so they cannot be told from text beforehand: "
        "leave 'strict', and the grammar of a custom tool, out, or use tool_choice \"required\"");
  }
  Parts out;
  add_word(c.begin, out);
  KVILT_ASSIGN(auto inner, inner_calls(c, constraint, single));
  out.push_back(std::move(inner));
  add_word(c.end, out);
  return GrammarPart::sequence(out);
}

// Told apart by the text: clients send both under one name.
Result<GrammarPart> grammar_of(const std::string& text) {
  if (!is_lark(text)) return GrammarPart::ebnf(text);
  KVILT_ASSIGN(const std::string ebnf, lark_to_ebnf(text));
  return GrammarPart::ebnf(ebnf);
}

Result<GrammarPart> body(const Constraint& constraint, const AnswerSyntax& syntax) {
  switch (constraint.form) {
    case Constraint::Form::kJson:
      return GrammarPart::json(any_object());
    case Constraint::Form::kSchema: {
      KVILT_ASSIGN(Json schema, schema_of(constraint.text, "the schema"));
      return GrammarPart::json(std::move(schema));
    }
    case Constraint::Form::kRegex:
      return GrammarPart::regex(constraint.text);
    case Constraint::Form::kGrammar:
      return grammar_of(constraint.text);
    case Constraint::Form::kChoice: {
      Parts words;
      for (const std::string& choice : constraint.choices) {
        if (choice.empty()) return error(Code::kInvalidArgument, "an empty choice is not supported");
        words.push_back(GrammarPart::word(choice));
      }
      if (words.empty()) return error(Code::kInvalidArgument, "there is nothing to choose from");
      return GrammarPart::one_of(words);
    }
    case Constraint::Form::kCalls:
      return calls(syntax.calls, constraint);
    case Constraint::Form::kNone:
      break;
  }
  return error(Code::kInvalidArgument, "no constraint");
}

// A call is a message, and nothing comes after it: the model ends there.
Result<GrammarPart> call_message(const MessageSyntax& m, const Constraint& constraint) {
  if (!m.calls()) return not_known();
  if (constraint.tools.empty()) return error(Code::kInvalidArgument, "no tool may be called");
  CallSyntax named;
  named.form = CallSyntax::Form::kNamed;
  named.after_name = m.after_name;
  KVILT_ASSIGN(auto call, inner_calls(named, constraint, true));
  return GrammarPart::sequence({GrammarPart::word(" " + m.recipient + m.tools), std::move(call)});
}

// A call whose recipient stands behind its channel, as gpt-oss writes it of itself. What is between the name and the
// message says how the arguments are written: the model's own word for it, which templates do not show.
Result<GrammarPart> call_on_channel(const MessageSyntax& m, const std::string& channel, const Constraint& constraint) {
  Parts calls;
  for (const Constraint::Tool& tool : constraint.tools) {
    KVILT_ASSIGN(GrammarPart arguments, arguments_of(tool));
    calls.push_back(GrammarPart::sequence({GrammarPart::word(tool.name), GrammarPart::regex("( [^<]{0,31})?"),
                                           GrammarPart::word(m.message), std::move(arguments)}));
  }
  return GrammarPart::sequence({GrammarPart::word(channel + " " + m.recipient + m.tools), GrammarPart::one_of(calls)});
}

// Nobody forces a call: a word to the user may come first, on the channel of calls, and an answer in place of a call.
Result<GrammarPart> called_or_said(const MessageSyntax& m, const Constraint& constraint) {
  KVILT_ASSIGN(GrammarPart call, call_message(m, constraint));
  const std::string behind = m.after_name.substr(m.channel.size());
  const std::string channel = m.channel + behind.substr(0, behind.find_first_of(" <"));
  KVILT_ASSIGN(GrammarPart own, call_on_channel(m, channel, constraint));
  const GrammarPart answer =
      GrammarPart::sequence({GrammarPart::word(m.channel + m.answer + m.message), GrammarPart::text()});
  return GrammarPart::sequence({GrammarPart::maybe(GrammarPart::until(channel + m.message, m.next)),
                                GrammarPart::one_of({std::move(call), std::move(own), answer})});
}

// Where the answer is messages: what the model thinks, perhaps, then one message that is held to the constraint.
Result<GrammarPart> message_grammar(const Constraint& constraint, const AnswerSyntax& syntax) {
  const MessageSyntax& m = syntax.messages;
  const bool called = constraint.form == Constraint::Form::kCalls;
  const GrammarPart thought = GrammarPart::until(m.channel + m.reasoning + m.message, m.next);
  if (called && constraint.may_speak) {
    KVILT_ASSIGN(GrammarPart free, called_or_said(m, constraint));
    return GrammarPart::sequence({GrammarPart::maybe(thought), std::move(free)});
  }
  Parts may_be;
  if (called || (!constraint.tools.empty() && m.calls())) {
    KVILT_ASSIGN(auto call, call_message(m, constraint));
    may_be.push_back(std::move(call));
  }
  if (!called) {
    KVILT_ASSIGN(auto text, body(constraint, syntax));
    may_be.push_back(GrammarPart::sequence({GrammarPart::word(m.channel + m.answer + m.message), std::move(text)}));
  }
  return GrammarPart::sequence({GrammarPart::maybe(thought), GrammarPart::one_of(may_be)});
}

}  // namespace

Result<GrammarPart> answer_grammar(const Constraint& constraint, const AnswerSyntax& syntax, bool opens_reasoning) {
  if (constraint.reasons && syntax.messages.known()) return message_grammar(constraint, syntax);
  KVILT_ASSIGN(GrammarPart answer, body(constraint, syntax));
  // Tools beside a constraint of the text: a call is an answer too.
  if (constraint.form != Constraint::Form::kCalls && !constraint.tools.empty() &&
      syntax.calls.form != CallSyntax::Form::kNone) {
    Constraint called = constraint;
    called.may_speak = false;
    KVILT_ASSIGN(auto call, calls(syntax.calls, called));
    answer = GrammarPart::one_of({std::move(call), std::move(answer)});
  }
  if (!constraint.reasons || syntax.reasoning_end.empty()) return answer;
  const GrammarPart thought = GrammarPart::sequence(
      {GrammarPart::until(opens_reasoning ? "" : syntax.reasoning_begin, syntax.reasoning_end), GrammarPart::space()});
  return GrammarPart::sequence({opens_reasoning ? thought : GrammarPart::maybe(thought), std::move(answer)});
}

}  // namespace kvilt
