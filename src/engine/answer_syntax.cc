#include "engine/answer_syntax.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/json_scan.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;
using Form = CallSyntax::Form;

constexpr const char* kUser = "kvilt-question";
constexpr const char* kContent = "kvilt-content";
constexpr const char* kReasoning = "kvilt-reasoning";
constexpr const char* kTool = "kvilt_tool_probe";
constexpr const char* kKeys[] = {"kvilt_key_one", "kvilt_key_two"};
constexpr int kNumber = 9051743;
// Marks: of the user's text, the assistant's, and per call its name, id and values.
constexpr int32_t kUserMark = 0, kContentMark = 1, kReasoningMark = 2, kCallMarks = 10, kName = 0, kId = 1, kValue = 2;

struct Range {
  size_t begin = 0, end = 0;
};

struct Shown {
  std::string text;
  std::vector<RenderedSpan> spans;

  std::optional<Range> find(int32_t mark) const {
    const auto span = std::ranges::find(spans, mark, &RenderedSpan::mark);
    if (span == spans.end()) return std::nullopt;
    return Range{span->begin, span->end};
  }
  std::string cut(size_t begin, size_t end) const { return begin < end ? text.substr(begin, end - begin) : ""; }
};

int32_t mark_of(int call, int32_t what) { return kCallMarks * (call + 1) + what; }

std::string trimmed(std::string_view text) {
  constexpr const char* kSpace = " \n\t\r";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(kSpace) + 1 - first));
}

std::string common_suffix(const std::string& a, const std::string& b) {
  size_t n = 0;
  while (n < std::min(a.size(), b.size()) && a[a.size() - 1 - n] == b[b.size() - 1 - n]) ++n;
  return a.substr(a.size() - n);
}

std::string without_suffix(const std::string& text, const std::string& suffix) {
  return text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : text;
}

Json call_of(int i, Json arguments) {
  static constexpr const char* kNames[] = {"kvilt_call_one", "kvilt_call_two"};
  static constexpr const char* kIds[] = {"callprob1", "callprob2"};  // nine signs: some templates ask for that
  return {{"id", kIds[i]}, {"type", "function"}, {"function", {{"name", kNames[i]}, {"arguments", arguments}}}};
}

Json two_texts() { return {{kKeys[0], "kvilt value one"}, {kKeys[1], "kvilt value two"}}; }

// Renders small conversations, marked.
class Prober {
 public:
  Prober(const ChatTemplate& chat_template, const EdgeTokens& edges, bool as_object)
      : template_(chat_template), edges_(edges), as_object_(as_object) {}

  Json assistant(Json content) const { return {{"role", "assistant"}, {"content", std::move(content)}}; }

  Json calling(Json content, int calls, const Json& arguments) const {
    Json message = assistant(std::move(content));
    message["tool_calls"] = Json::array();
    for (int i = 0; i < calls; ++i)
      message["tool_calls"].push_back(call_of(i, as_object_ ? arguments : Json(arguments.dump())));
    return message;
  }

  // The user's message and, unless null, the assistant's. None where the template refuses.
  std::optional<Shown> render(Json answer, bool tools = true) const {
    ChatInputs in;
    in.messages = Json::array({{{"role", "user"}, {"content", kUser}}});
    in.add_generation_prompt = answer.is_null();
    if (!answer.is_null()) in.messages.push_back(std::move(answer));
    if (tools) in.tools = Json::array({tool()});
    in.bos_token = edges_.bos;
    in.eos_token = edges_.eos;
    in.now = 0;
    if (in.messages.size() > 1) add_marks(in);
    add_mark(in, Json::json_pointer("/messages/0/content"), kUserMark);
    auto out = template_.render(in);
    if (!out.ok()) return std::nullopt;
    return Shown{std::move(out->text), std::move(out->untrusted)};
  }

 private:
  static Json tool() {
    const Json parameter{{"type", "string"}, {"description", "p"}};
    const Json schema{
        {"type", "object"}, {"properties", {{"kvilt_parameter", parameter}}}, {"required", {"kvilt_parameter"}}};
    return {{"type", "function"}, {"function", {{"name", kTool}, {"description", "d"}, {"parameters", schema}}}};
  }

  static void add_mark(ChatInputs& in, const Json::json_pointer& where, int32_t id) {
    const Json all{{"messages", in.messages}};
    if (!all.contains(where) || !all.at(where).is_string()) return;
    in.marks.push_back({where, 0, all.at(where).get_ref<const std::string&>().size(), id});
  }

  static void add_marks(ChatInputs& in) {
    const auto answer = Json::json_pointer("/messages/1");
    add_mark(in, answer / "content", kContentMark);
    add_mark(in, answer / "reasoning_content", kReasoningMark);
    add_mark(in, answer / "thinking", kReasoningMark);
    for (int i = 0; i < 2; ++i) {
      const auto call = answer / "tool_calls" / static_cast<size_t>(i), function = call / "function";
      add_mark(in, function / "name", mark_of(i, kName));
      add_mark(in, call / "id", mark_of(i, kId));
      for (int k = 0; k < 2; ++k) add_mark(in, function / "arguments" / kKeys[k], mark_of(i, kValue + k));
    }
  }

  const ChatTemplate& template_;
  const EdgeTokens& edges_;
  const bool as_object_;
};

// One call in a rendered text: what it is made of, and where it lies. For tags the range ends with the last value.
struct Found {
  CallSyntax syntax;
  Range range;
  size_t from = 0;  // where the next literal before it would end: the object, or the name
};

// A JSON object around the name, with both at its top.
bool find_object(const Shown& shown, const Range& name, size_t from, const std::string& id, Found& out) {
  const std::string word = shown.cut(name.begin, name.end);
  for (size_t at = from; (at = shown.text.find('{', at)) < name.begin; ++at) {
    const auto size = json_end(std::string_view(shown.text).substr(at));
    if (!size || at + *size < name.end) continue;
    const Json object = Json::parse(shown.text.substr(at, *size), nullptr, false);
    if (!object.is_object()) continue;
    CallSyntax& syntax = out.syntax;
    syntax = {};
    for (const auto& [key, value] : object.items()) {
      if (value == word) syntax.name_key = key;
      if (value == two_texts()) syntax.arguments_key = key;
      if (value == id) syntax.id_key = key;
    }
    if (syntax.name_key.empty() || syntax.arguments_key.empty()) continue;
    syntax.form = Form::kObject;
    out.range = {at, at + *size};
    out.from = at;
    return true;
  }
  return false;
}

// The arguments as JSON after a bare name.
bool find_named(const Shown& shown, const Range& name, const std::optional<Range>& id, Found& out) {
  const size_t key = shown.text.find(kKeys[0], name.end);
  if (key == std::string::npos) return false;
  const size_t brace = shown.text.rfind('{', key);
  if (brace == std::string::npos || brace < name.end) return false;
  const auto size = json_end(std::string_view(shown.text).substr(brace));
  if (!size || Json::parse(shown.text.substr(brace, *size), nullptr, false) != two_texts()) return false;
  CallSyntax& syntax = out.syntax;
  syntax.form = Form::kNamed;
  syntax.has_id = id && id->begin > name.end && id->end <= brace;
  syntax.after_name = trimmed(shown.cut(name.end, syntax.has_id ? id->begin : brace));
  if (syntax.has_id) syntax.after_id = trimmed(shown.cut(id->end, brace));
  out.range = {name.begin, brace + *size};
  out.from = name.begin;
  // Without a word between name and id, or id and arguments, nobody knows where the first ends.
  return !syntax.has_id || !syntax.after_name.empty();
}

// Each parameter between tags.
bool find_tagged(const Shown& shown, const Range& name, int call, Found& out) {
  const size_t one = shown.text.find(kKeys[0], name.end);
  const auto first = shown.find(mark_of(call, kValue)), second = shown.find(mark_of(call, kValue + 1));
  if (one == std::string::npos || !first || !second || first->begin < one) return false;
  const size_t two = shown.text.find(kKeys[1], first->end);
  if (two == std::string::npos || second->begin < two) return false;
  const size_t key_size = std::string_view(kKeys[0]).size();
  const std::string before = shown.cut(name.end, one), between = shown.cut(first->end, two);
  // What both keys have before them; of it the last tag, since a bracket of what is before may be common too.
  std::string begin = common_suffix(before, between);
  const size_t opens = begin.find_last_of("<[");
  if (opens == std::string::npos) return false;
  begin.erase(0, opens);
  CallSyntax& syntax = out.syntax;
  syntax.form = Form::kTagged;
  syntax.key_begin = begin;
  syntax.after_name = trimmed(without_suffix(before, begin));
  syntax.key_end = syntax.other_key_end = shown.cut(one + key_size, first->begin);
  syntax.value_end = without_suffix(between, begin);
  if (shown.cut(two + key_size, second->begin) != syntax.key_end) return false;
  out.range = {name.begin, second->end};
  out.from = name.begin;
  return !trimmed(syntax.key_end).empty() && !trimmed(syntax.value_end).empty();
}

std::optional<Found> find_call(const Shown& shown, int call, size_t from) {
  const auto name = shown.find(mark_of(call, kName)), id = shown.find(mark_of(call, kId));
  if (!name || name->begin < from) return std::nullopt;
  Found out;
  if (find_object(shown, *name, from, call_of(call, nullptr)["id"], out)) return out;
  out = {};
  if (find_named(shown, *name, id, out)) return out;
  out = {};
  if (find_tagged(shown, *name, call, out)) return out;
  return std::nullopt;
}

// The literals of a format with tags after a value: its own end, then the call's.
std::string after_value(const std::string& literal, const CallSyntax& syntax) {
  if (syntax.form != Form::kTagged) return literal;
  const std::string end = trimmed(syntax.value_end);
  const size_t at = literal.find(end);
  return at == std::string::npos ? literal : literal.substr(at + end.size());
}

// The marker with which a literal ends, or begins: <...> or [...].
std::string last_marker(const std::string& literal) {
  const std::string text = trimmed(literal);
  const size_t at = text.find_last_of("<[");
  const bool closed = at != std::string::npos && text.find_first_of(">]", at) == text.size() - 1;
  return closed ? text.substr(at) : "";
}

std::string first_marker(const std::string& literal) {
  const std::string text = trimmed(literal);
  if (text.empty() || (text[0] != '<' && text[0] != '[')) return "";
  const size_t at = text.find(text[0] == '<' ? '>' : ']');
  return at == std::string::npos ? "" : text.substr(0, at + 1);
}

// Renderings of calls, and of an answer without any to compare with.
class CallFinder {
 public:
  explicit CallFinder(const Prober& prober) : prober_(prober) {}

  CallSyntax find() {
    const auto plain = prober_.render(prober_.assistant(kContent));
    if (plain && plain->find(kUserMark) && plain->find(kContentMark)) {
      const Range user = *plain->find(kUserMark), content = *plain->find(kContentMark);
      if (user.end <= content.begin) header_ = plain->cut(user.end, content.begin);
      turn_end_ = trimmed(plain->cut(content.end, plain->text.size()));
    }
    for (const Json& content : {Json(kContent), Json(""), Json(nullptr)}) {
      if (const auto syntax = find_with(content)) return stands_in_answers(*syntax) ? *syntax : CallSyntax{};
    }
    return {};
  }

 private:
  // Not a call that is a turn of its own, whose header a model's answer does not have as this template writes it; and
  // not one whose first word the prompt has already.
  bool stands_in_answers(const CallSyntax& syntax) const {
    const std::string turn = first_marker(header_);
    if (!turn.empty() && syntax.begin.starts_with(turn)) return false;
    const auto asked = prober_.render(nullptr);
    return !asked || syntax.begin.empty() || !trimmed(asked->text).ends_with(syntax.begin);
  }

  std::optional<CallSyntax> find_with(const Json& content) const {
    const auto shown = prober_.render(prober_.calling(content, 1, two_texts()));
    if (!shown) return std::nullopt;
    const auto user = shown->find(kUserMark), said = shown->find(kContentMark);
    if (content == kContent && !said) return std::nullopt;  // no place for it: an empty one shows more
    const size_t from = said ? said->end : user ? user->end : 0;
    const auto one = find_call(*shown, 0, from);
    if (!one) return std::nullopt;
    CallSyntax syntax = one->syntax;
    std::string begin = shown->cut(from, one->from);
    if (!said)
      begin.erase(0, std::mismatch(begin.begin(), begin.end(), header_.begin(), header_.end()).first - begin.begin());
    syntax.begin = trimmed(begin);
    std::string end = trimmed(after_value(shown->cut(one->range.end, shown->text.size()), syntax));
    syntax.end = trimmed(without_suffix(end, turn_end_));
    if (syntax.form == Form::kTagged && !find_others(content, syntax)) return std::nullopt;
    // Without a word before it a name is nothing that could be recognised.
    if (syntax.begin.empty() && syntax.form != Form::kObject) return std::nullopt;
    find_between(content, syntax);
    return syntax;
  }

  void find_between(const Json& content, CallSyntax& syntax) const {
    const auto shown = prober_.render(prober_.calling(content, 2, two_texts()));
    if (!shown) return;
    const auto said = shown->find(kContentMark), user = shown->find(kUserMark);
    const auto one = find_call(*shown, 0, said ? said->end : user ? user->end : 0);
    if (!one) return;
    const auto two = find_call(*shown, 1, one->range.end);
    if (!two || two->from < one->range.end) return;
    syntax.between = trimmed(after_value(shown->cut(one->range.end, two->from), syntax));
  }

  // How tags close a key whose value is no string.
  bool find_others(const Json& content, CallSyntax& syntax) const {
    if (syntax.end.empty()) return false;  // nothing would end the last parameter
    const Json arguments{{kKeys[0], kNumber}, {kKeys[1], "kvilt value two"}};
    const auto shown = prober_.render(prober_.calling(content, 1, arguments));
    const auto name = shown ? shown->find(mark_of(0, kName)) : std::nullopt;
    if (!name) return false;
    const size_t key = shown->text.find(kKeys[0], name->end);
    const size_t value = shown->text.find(std::to_string(kNumber), name->end);
    if (key == std::string::npos || value == std::string::npos || value < key) return false;
    syntax.other_key_end = shown->cut(key + std::string_view(kKeys[0]).size(), value);
    return !trimmed(syntax.other_key_end).empty();
  }

  const Prober& prober_;
  std::string header_, turn_end_;  // before and after an answer
};

void find_reasoning(const Prober& prober, AnswerSyntax& out) {
  Json answer = prober.assistant(kContent);
  answer["reasoning_content"] = kReasoning;
  for (const bool tools : {false, true}) {
    const auto shown = prober.render(answer, tools);
    const auto user = shown ? shown->find(kUserMark) : std::nullopt;
    const auto thought = shown ? shown->find(kReasoningMark) : std::nullopt;
    const auto said = shown ? shown->find(kContentMark) : std::nullopt;
    if (!user || !thought || !said || thought->end > said->begin || user->end > thought->begin) continue;
    out.reasoning_begin = last_marker(shown->cut(user->end, thought->begin));
    out.reasoning_end = first_marker(shown->cut(thought->end, said->begin));
    if (!out.reasoning_begin.empty() && !out.reasoning_end.empty()) return;
  }
  out.reasoning_begin = out.reasoning_end = "";
  // A template may know no field of its own for it, but cut reasoning out of old answers.
  constexpr std::pair<const char*, const char*> kUsual[] = {{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}};
  for (const auto& [begin, end] : kUsual) {
    const auto shown = prober.render(prober.assistant(std::string(begin) + kReasoning + end + kContent), false);
    if (!shown || shown->text.find(kContent) == std::string::npos) continue;
    if (shown->text.find(kReasoning) != std::string::npos) continue;
    out.reasoning_begin = begin;
    out.reasoning_end = end;
    return;
  }
}

// The word between two markers, and nothing else; else empty.
std::string word_between(const std::string& header, const std::string& begin, const std::string& end) {
  if (begin.empty() || end.empty() || header.size() <= begin.size() + end.size()) return "";
  if (!header.starts_with(begin) || !header.ends_with(end)) return "";
  const std::string word = header.substr(begin.size(), header.size() - begin.size() - end.size());
  return word.find_first_of("<>[] \n\t\r") == std::string::npos ? word : "";
}

// To whom a call goes: the last word before the name is "to=" and the tools' common beginning. It may stand before the
// channel or behind it; after_name has the rest of the header in either case.
void find_recipient(const Prober& prober, const std::string& asked, MessageSyntax& out) {
  const auto shown = prober.render(prober.calling("", 1, two_texts()));
  const auto user = shown ? shown->find(kUserMark) : std::nullopt;
  const auto name = shown ? shown->find(mark_of(0, kName)) : std::nullopt;
  if (!user || !name || name->begin < user->end) return;
  const std::string before = shown->cut(user->end, name->begin);
  Found call;
  if (!before.starts_with(asked) || !find_named(*shown, *name, std::nullopt, call)) return;
  const std::string head = before.substr(asked.size());
  const size_t last = head.find_last_of("> ");
  const size_t from = last == std::string::npos ? 0 : last + 1, border = head.find('=', from);
  if (border == std::string::npos) return;
  const std::string channel = trimmed(head.substr(0, from));
  const std::string rest = channel.empty() ? call.syntax.after_name : channel + " " + call.syntax.after_name;
  if (!rest.starts_with(out.channel) || !rest.ends_with(out.message)) return;  // the arguments are the message's text
  out.recipient = head.substr(from, border + 1 - from);
  out.tools = head.substr(border + 1);
  out.after_name = rest;
  out.call_end = first_marker(shown->cut(call.range.end, shown->text.size()));
}

// An answer whose header goes on where the prompt ends, by a word between two markers; and the same markers around
// another word before what the model thought.
MessageSyntax find_messages(const Prober& prober) {
  MessageSyntax out;
  Json answer = prober.assistant(kContent);
  answer["thinking"] = kReasoning;
  const auto asked = prober.render(nullptr), plain = prober.render(prober.assistant(kContent));
  const auto both = prober.render(answer);
  if (!asked || !plain || !both) return {};
  const auto asked_user = asked->find(kUserMark), user = plain->find(kUserMark), said = plain->find(kContentMark);
  const auto both_user = both->find(kUserMark), thought = both->find(kReasoningMark), then = both->find(kContentMark);
  if (!asked_user || !user || !said || !both_user || !thought || !then || thought->end > then->begin) return {};
  const std::string prompt = asked->cut(asked_user->end, asked->text.size());
  const std::string header = plain->cut(user->end, said->begin), first = both->cut(both_user->end, thought->begin);
  if (prompt.empty() || !header.starts_with(prompt) || !first.starts_with(prompt)) return {};
  const std::string final_header = header.substr(prompt.size());
  out.channel = first_marker(final_header);
  const std::string message = last_marker(final_header);
  out.reasoning = word_between(first.substr(prompt.size()), out.channel, message);
  const std::string word = word_between(final_header, out.channel, message),
                    between = both->cut(thought->end, then->begin);
  if (word.empty() || out.reasoning.empty() || word == out.reasoning || !between.ends_with(final_header)) return {};
  out.next = without_suffix(between, final_header);
  out.end = first_marker(out.next);
  out.last_end = first_marker(plain->cut(said->end, plain->text.size()));
  if (out.end.empty() || out.end == out.next) return {};
  out.message = message;
  out.answer = word;
  find_recipient(prober, prompt, out);
  return out;
}

void add_control_ids(const Tokenizer& tokenizer, const std::string& literal, std::vector<int32_t>& out) {
  const auto ids = tokenizer.encode(literal, {.parse_special = true, .continues = true, .trusted = {}});
  if (!ids.ok()) return;
  const auto ends = tokenizer.end_ids();
  for (const int32_t id : ids.value()) {
    const bool ended = std::ranges::find(ends, id) != ends.end();
    const bool known = std::ranges::find(out, id) != out.end();
    if (tokenizer.is_special(id) && !tokenizer.token_bytes(id).empty() && !ended && !known) out.push_back(id);
  }
}

}  // namespace

void find_marker_ids(const Tokenizer& tokenizer, AnswerSyntax& syntax) {
  const CallSyntax& c = syntax.calls;
  for (const std::string* literal : {&syntax.reasoning_begin, &syntax.reasoning_end})
    add_control_ids(tokenizer, *literal, syntax.reasoning_ids);
  for (const std::string* literal : {&c.begin, &c.between, &c.end, &c.after_name, &c.after_id, &c.key_begin, &c.key_end,
                                     &c.other_key_end, &c.value_end})
    add_control_ids(tokenizer, *literal, syntax.call_ids);
  // All of them tell thoughts from words, so they are shown without tools too.
  const MessageSyntax& m = syntax.messages;
  for (const std::string* literal : {&m.channel, &m.message, &m.next, &m.after_name})
    add_control_ids(tokenizer, *literal, syntax.reasoning_ids);
}

AnswerSyntax answer_syntax_of(const ChatTemplate& chat_template, const EdgeTokens& edges, bool arguments_as_object) {
  const Prober prober(chat_template, edges, arguments_as_object);
  AnswerSyntax out;
  find_reasoning(prober, out);
  const auto asked = prober.render(nullptr);
  out.tools = asked && asked->text.find(kTool) != std::string::npos;
  out.messages = find_messages(prober);
  if (out.messages.known()) {
    out.reasoning_begin = out.reasoning_end = "";
    return out;
  }
  if (out.tools) out.calls = CallFinder(prober).find();
  return out;
}

bool opens_reasoning(std::string_view prompt, const AnswerSyntax& syntax) {
  if (syntax.reasoning_begin.empty()) return false;
  const size_t last = prompt.find_last_not_of(" \n\t\r");
  return last != std::string_view::npos && prompt.substr(0, last + 1).ends_with(syntax.reasoning_begin);
}

}  // namespace kvilt
