#include "server/call_head.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/json_scan.h"
#include "server/json_arguments.h"
#include "server/literal_match.h"

namespace kvilt::server {
namespace {

using Form = CallSyntax::Form;

constexpr size_t kMaxToolName = 128;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == ':' || c == '/';
}

size_t name_size(std::string_view text) {
  return static_cast<size_t>(std::ranges::find_if_not(text, is_name) - text.begin());
}

CallHead undecided() {
  CallHead out;
  out.verdict = Verdict::kMore;
  return out;
}

// size: of the text that may be the head.
CallHead bounded(CallHead head, size_t size, bool final) {
  const bool wait = head.verdict == Verdict::kMore;
  return wait && (final || size >= kMaxCallHead) ? CallHead{} : head;
}

// The same where the answer was cut here: with its name it is a call whose arguments did not come.
CallHead cut_behind_name(CallHead head, size_t size) {
  if (head.verdict != Verdict::kMore || head.name.empty()) return bounded(std::move(head), size, true);
  head.verdict = Verdict::kYes;
  head.size = size;
  head.arguments.clear();
  head.arguments_follow = true;
  return head;
}

// A key of an object and its colon: `at` goes to the value's first byte, which is here.
Verdict read_key(std::string_view text, size_t& at, std::string& key) {
  const auto ended = [&] {
    at += space_before(text.substr(at));
    return at == text.size();
  };
  if (ended()) return Verdict::kMore;
  if (text[at] != '"') return Verdict::kNo;
  const auto size = json_end(text.substr(at));
  if (!size) return Verdict::kMore;
  const Json read = Json::parse(text.substr(at, *size), nullptr, false);
  at += *size;
  if (ended()) return Verdict::kMore;
  if (!read.is_string() || text[at++] != ':') return Verdict::kNo;
  key = read.get<std::string>();
  return ended() ? Verdict::kMore : Verdict::kYes;
}

// A value: `at` goes to the first byte behind it that is no space, which is here.
Verdict read_value(std::string_view text, size_t& at, std::string_view& value) {
  JsonScan scan;
  if (scan.take(text[at]) == JsonScan::Step::kWrong) return Verdict::kNo;
  const auto size = json_end(text.substr(at));
  if (!size) return Verdict::kMore;
  value = text.substr(at, *size);
  at += *size;
  at += space_before(text.substr(at));
  return at == text.size() ? Verdict::kMore : Verdict::kYes;
}

// What an object has beside a call's name, id and arguments.
struct OtherMembers {
  int all = 0, objects = 0;
  std::string_view object;
  std::vector<std::string> labels;

  void add(const std::string& key, std::string_view value) {
    // OpenAI's words around a function; whether they are arguments is known with the name.
    if ((key == "type" && value == R"("function")") || (key == "id" && value.starts_with('"')))
      return labels.push_back(key);
    ++all;
    if (!value.starts_with('{')) return;
    ++objects;
    object = value;
  }
  // Where the object ended without arguments. Models have other words for them; to leave out what may be arguments would
  // call with none. Empty: nobody can tell.
  std::string arguments() const { return objects == 1 ? whole_arguments(object) : all == 0 ? "{}" : ""; }
};

}  // namespace

CallHead CallHeads::marked(std::string_view text, bool final, bool cut) const {
  const std::string_view begin = text.substr(0, kMaxCallHead);
  CallHead head = syntax_.form == Form::kObject ? read_object(begin, false) : read_named(begin, false);
  return cut && text.size() < kMaxCallHead ? cut_behind_name(std::move(head), text.size())
                                           : bounded(std::move(head), text.size(), final);
}

CallHead CallHeads::half_marked(std::string_view text, bool final) const {
  return bounded(read_named(text.substr(0, kMaxCallHead), true), text.size(), final);
}

CallHead CallHeads::bare(std::string_view text, bool final) const {
  if (!reading_.calls || syntax_.form != Form::kObject) return {};
  size_t at = space_before(text);
  const Match json = match("```json", text.substr(at)), plain = match("```", text.substr(at));
  if (json.partial()) return bounded(undecided(), text.size() - at, final);
  at += json.full() ? json.size : plain.full() ? plain.size : 0;
  CallHead head = read_object(text.substr(at, kMaxCallHead), true);
  head.size += at;
  head.bare = true;
  head.fenced = plain.full();
  return bounded(std::move(head), text.size() - at, final);
}

// bare: it has no other keys before the name, and then the arguments: a tool that is described has a name and an object
// too.
CallHead CallHeads::read_object(std::string_view text, bool bare) const {
  CallHead head;
  OtherMembers others;
  const auto more = [&head] {
    head.verdict = Verdict::kMore;
    return head;
  };
  size_t at = space_before(text);
  if (at == text.size()) return undecided();
  if (text[at++] != '{') return {};
  for (;;) {
    std::string key;
    if (const Verdict here = read_key(text, at, key); here != Verdict::kYes)
      return here == Verdict::kMore ? more() : CallHead{};
    const bool is_name = key == syntax_.name_key, is_id = !syntax_.id_key.empty() && key == syntax_.id_key;
    const bool is_arguments = key == syntax_.arguments_key;
    if (bare && head.name.empty() && !is_name && !is_id && !is_arguments) return {};
    if (is_arguments && !head.name.empty()) {
      head.verdict = Verdict::kYes;
      head.arguments_follow = true;
      head.size = at;
      return head;
    }
    std::string_view value;
    if (const Verdict here = read_value(text, at, value); here != Verdict::kYes)
      return here == Verdict::kMore ? more() : CallHead{};
    if (is_arguments) {
      head.arguments = whole_arguments(value);
    } else if (is_name || is_id) {
      const Json read = Json::parse(value, nullptr, false);
      if (!read.is_string() || read.get_ref<const std::string&>().empty()) return {};
      (is_name ? head.name : head.id) = read.get<std::string>();
      if (bare && is_name && !knows_tool(head.name)) return {};
    } else {
      others.add(key, value);
    }
    if (text[at] == '}' && head.arguments.empty() && !bare) {
      others.all += static_cast<int>(
          std::ranges::count_if(others.labels, [&](const std::string& label) { return takes_text(head.name, label); }));
      head.arguments = others.arguments();
    }
    if (!head.name.empty() && !head.arguments.empty()) {
      head.verdict = Verdict::kYes;
      head.size = at;
      return head;
    }
    if (text[at++] != ',') return {};
  }
}

CallHead CallHeads::read_named(std::string_view text, bool known_only) const {
  CallHead head;
  size_t at = space_before(text);
  // A name or an id, then the literal after it.
  const auto word = [&](std::string& out, const std::string& after) {
    const size_t size = name_size(text.substr(at));
    if (size > kMaxToolName) return Verdict::kNo;
    if (at + size == text.size()) return Verdict::kMore;
    if (size == 0) return Verdict::kNo;
    out = text.substr(at, size);
    at += size + space_before(text.substr(at + size));
    const Match here = match(after, text.substr(at));
    at += here.full() ? here.size : 0;
    return here.full() ? Verdict::kYes : here.partial() ? Verdict::kMore : Verdict::kNo;
  };
  head.verdict = word(head.name, syntax_.after_name);
  if (head.verdict != Verdict::kYes) return head.verdict == Verdict::kMore ? head : CallHead{};
  head.verdict = Verdict::kNo;
  if (known_only && !knows_tool(head.name)) return {};
  if (syntax_.has_id) {
    head.verdict = word(head.id, syntax_.after_id);
    if (head.verdict != Verdict::kYes) return head.verdict == Verdict::kMore ? head : CallHead{};
    head.verdict = Verdict::kNo;
  }
  at += space_before(text.substr(at));
  const std::string_view rest = text.substr(at);
  head.size = at;
  head.arguments_follow = true;
  if (syntax_.form == Form::kNamed) {
    head.verdict = rest.empty() ? Verdict::kMore : rest[0] == '{' ? Verdict::kYes : Verdict::kNo;
    return head;
  }
  bool partial = false;
  for (const std::string_view next : {std::string_view(syntax_.key_begin), first_tag(syntax_.end)}) {
    const Match here = match(next, rest);
    if (here.full()) head.verdict = Verdict::kYes;
    partial |= here.partial();
  }
  if (head.verdict == Verdict::kNo && partial) head.verdict = Verdict::kMore;
  return head;
}

bool CallHeads::knows_tool(const std::string& name) const {
  return std::ranges::find(reading_.tools, name, &ToolShape::name) != reading_.tools.end();
}

bool CallHeads::takes_text(const std::string& name, const std::string& parameter) const {
  const auto tool = std::ranges::find(reading_.tools, name, &ToolShape::name);
  return tool != reading_.tools.end() && tool->texts.contains(parameter);
}

}  // namespace kvilt::server
