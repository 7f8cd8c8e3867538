#include "server/answer_parser.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/literal_match.h"

namespace kvilt::server {
namespace {

using Form = CallSyntax::Form;
using Kind = AnswerEvent::Kind;

constexpr size_t kMaxParameterName = 1024;
constexpr size_t kMaxHeldBraces = 256;  // bytes behind a call, with the space among them

std::string json_text(std::string_view text) { return dump(Json(std::string(text))); }

// A value in tags that is no string: JSON, or as Python prints it.
std::optional<std::string> as_json(std::string_view raw) {
  const std::string_view text = trimmed(raw);
  if (text == "True") return "true";
  if (text == "False") return "false";
  if (text == "None") return "null";
  return is_json(text) ? std::optional(std::string(text)) : std::nullopt;
}

}  // namespace

AnswerParser::AnswerParser(AnswerReading reading)
    : reading_(std::move(reading)),
      syntax_(reading_.syntax.calls),
      heads_(reading_),
      end_tags_(tags_of(syntax_.end)),
      state_(reading_.in_reasoning && !reading_.syntax.reasoning_end.empty() ? State::kReasoning : State::kContent),
      reasoned_(state_ == State::kReasoning),
      drop_space_(reasoned_) {
  if (reading_.syntax.messages.known()) messages_.emplace(reading_);
}

void AnswerParser::push(std::string_view text, Events& out) {
  if (messages_) return messages_->push(text, out);
  buffer_.append(text);
  run(out);
}

void AnswerParser::finish(Events& out, bool cut) {
  if (messages_) return messages_->finish(out, cut);
  final_ = true;
  cut_ = cut;
  run(out);
  // A call whose end never came.
  if (state_ == State::kArguments) give_arguments(arguments_.finish(cut), out);
  if (state_ == State::kArguments || state_ == State::kParameters) end_call(out, true);
}

void AnswerParser::run(Events& out) {
  while (step(out)) {
  }
  buffer_.erase(0, at_);
  at_ = 0;
}

bool AnswerParser::step(Events& out) {
  switch (state_) {
    case State::kReasoning:
      return step_reasoning(out);
    case State::kContent:
      return step_content(out);
    case State::kArguments:
      return step_arguments(out);
    case State::kObjectRest:
      return step_object_rest();
    case State::kParameters:
      return step_parameters(out);
    case State::kAfterCall:
      return step_after_call(out);
  }
  return false;
}

// Uses up `text`, which is the view's start, and gives it; space is left out where it is no content.
void AnswerParser::give(Kind kind, std::string_view text, Events& out) {
  at_ += text.size();
  if (kind == Kind::kContent) place_.take(text);
  if (drop_space_) text.remove_prefix(space_before(text));
  if (text.empty()) return;
  drop_space_ = false;
  out.push_back({kind, std::string(text), -1, ""});
  out.back().apart = std::exchange(apart_, false);
  said_ |= kind == Kind::kContent;
}

bool AnswerParser::step_reasoning(Events& out) {
  const Place end = find(reading_.syntax.reasoning_end, view());
  give(Kind::kReasoning, view().substr(0, size_without_space(view().substr(0, end.at))), out);
  if (!end.match.full()) {
    if (final_ && end.match.partial()) give(Kind::kReasoning, view(), out);
    return false;
  }
  at_ += space_before(view()) + end.match.size;
  state_ = State::kContent;
  drop_space_ = true;
  return true;
}

// At the answer's start. True: the state changed.
bool AnswerParser::begin_reasoning() {
  const std::string& begin = reading_.syntax.reasoning_begin;
  if (begin.empty() || reasoned_) return false;
  const size_t lead = space_before(view());
  const Match here = match(begin, view().substr(lead));
  if (!here.full()) return false;
  at_ += lead + here.size;
  state_ = State::kReasoning;
  drop_space_ = reasoned_ = true;
  return true;
}

// At the answer's start there may be reasoning, or a call without words before it.
Verdict AnswerParser::step_fresh(Events& out) {
  const size_t lead = space_before(view());
  if (lead == view().size() && !final_) return Verdict::kMore;
  if (begin_reasoning()) return Verdict::kYes;
  const std::string& begin = reading_.syntax.reasoning_begin;
  const bool may_reason = !begin.empty() && !reasoned_ && match(begin, view().substr(lead)).partial();
  if (may_reason && !final_) return Verdict::kMore;
  return take_call(0, heads_.bare(view(), final_), out);
}

bool AnswerParser::step_content(Events& out) {
  if (fresh_) {
    if (const Verdict begun = step_fresh(out); begun != Verdict::kNo) return begun == Verdict::kYes;
    fresh_ = false;
  }
  const bool calls = reading_.calls && syntax_.form != Form::kNone;
  // The whole begin ends with its last tag, so it is sought no further.
  const Place last = find(calls ? syntax_.last_begin() : "", view());
  const size_t limit = last.match.full() ? last.at + last.match.size : view().size();
  Place begin = find(calls ? std::string_view(syntax_.begin) : "", view().substr(0, limit));
  const bool half = last.at < begin.at;
  if (half) begin = last;
  const size_t before = size_without_space(view().substr(0, begin.at));
  const size_t space = begin.at - before;
  give(Kind::kContent, view().substr(0, before), out);
  if (begin.match.full()) {
    const size_t lead = space + begin.match.size;
    const std::string_view text = view().substr(lead);
    CallHead head;
    if (!half) {
      head = heads_.marked(text, final_, cut_);
    } else if (may_begin_half(space)) {
      head = heads_.half_marked(text, final_);
    }
    if (const Verdict call = take_call(lead, head, out); call != Verdict::kNo) return call == Verdict::kYes;
    give(Kind::kContent, view().substr(0, space + 1), out);  // no call: on behind its first byte
    return true;
  }
  if (!final_) return false;
  give(Kind::kContent, view(), out);
  return false;
}

// space: of the view, what stands before the mark.
bool AnswerParser::may_begin_half(size_t space) const {
  CallPlace place = place_;
  place.take(view().substr(0, space));
  return place.open();
}

// lead: of the view, what stands before the head.
Verdict AnswerParser::take_call(size_t lead, const CallHead& head, Events& out) {
  if (head.verdict != Verdict::kYes) return head.verdict;
  at_ += lead + head.size;
  start_call(head, out);
  return Verdict::kYes;
}

void AnswerParser::start_call(const CallHead& head, Events& out) {
  name_ = head.name;
  closed_ = false;
  apart_ = said_;
  place_.take_call();
  open_ends_ = end_tags_;
  fenced_ = head.bare && (head.fenced || fenced_);
  parameters_ = 0;
  searched_ = 0;
  fresh_ = false;
  arguments_ = {};
  out.push_back({Kind::kCallStart, head.name, calls_++, head.id});
  if (syntax_.form == Form::kTagged) {
    state_ = State::kParameters;
  } else if (head.arguments_follow) {
    state_ = State::kArguments;
  } else {
    give_arguments(head.arguments, out);
    end_call(out);
    state_ = State::kObjectRest;
  }
}

void AnswerParser::give_arguments(std::string text, Events& out) {
  if (!text.empty()) out.push_back({Kind::kArguments, std::move(text), calls_ - 1, ""});
}

void AnswerParser::end_call(Events& out, bool inferred) {
  out.push_back({Kind::kCallEnd, "", calls_ - 1, "", inferred});
  scan_ = JsonScan::inside_object();
  parameters_ = 0;
  key_too_long_ = false;
  state_ = syntax_.form == Form::kObject ? State::kObjectRest : State::kAfterCall;
}

bool AnswerParser::step_arguments(Events& out) {
  JsonArguments::Piece piece = arguments_.take(view());
  at_ += piece.size;
  give_arguments(std::move(piece.json), out);
  if (piece.ended) end_call(out);
  return piece.ended;
}

// What an object has after the arguments, its brace among it. Models forget the brace: then nothing is taken.
bool AnswerParser::step_object_rest() {
  if (parameters_ == 0) {
    at_ += space_before(view());
    if (view().empty()) return false;
    if (view()[0] != ',' && view()[0] != '}') {
      state_ = State::kAfterCall;
      return true;
    }
    parameters_ = 1;  // inside
  }
  const std::string_view text = view();
  for (size_t i = 0; i < text.size(); ++i) {
    if (scan_.take(text[i]) != JsonScan::Step::kLast) continue;
    at_ += i + 1;
    state_ = State::kAfterCall;
    return true;
  }
  at_ += text.size();
  return false;
}

// Where the value ends whose first byte is `end`; next: behind its end tag. A tag within the value ends it only if the
// format goes on behind it. False: more text is needed, or there is no end.
bool AnswerParser::find_value_end(std::string_view text, size_t& end, size_t& next) {
  const std::string_view close = trimmed(syntax_.value_end);
  for (size_t from = std::max(end, searched_);;) {
    const Place place = find(close, text, from);
    if (!place.match.full()) {
      searched_ = place.at;
      return false;
    }
    const size_t behind = place.at + place.match.size;
    const std::string_view rest = text.substr(behind + space_before(text.substr(behind)));
    const Match key = match(syntax_.key_begin, rest), call = match(first_tag(syntax_.end), rest);
    const bool open = key.partial() || call.partial();
    if (key.full() || call.full() || (open && final_)) {
      end = place.at;
      next = behind;
      searched_ = 0;
      return true;
    }
    if (open) {
      searched_ = place.at;
      return false;
    }
    from = place.at + 1;
  }
}

// A whole parameter, at `lead` in the view, where key_begin ends. False: it is not whole yet.
bool AnswerParser::read_parameter(std::string_view text, size_t lead, Events& out) {
  const std::string_view closers[] = {trimmed(syntax_.key_end), trimmed(syntax_.other_key_end)};
  const std::string_view bounded = text.substr(0, lead + kMaxParameterName);
  Place key_end = find(closers[0], bounded, lead);
  bool other = false;
  if (const Place place = find(closers[1], bounded, lead); place.at < key_end.at) {
    key_end = place;
    other = true;
  }
  if (!key_end.match.full()) {
    key_too_long_ = text.size() >= lead + kMaxParameterName;
    return false;
  }
  const std::string& literal = other ? syntax_.other_key_end : syntax_.key_end;
  size_t begin = key_end.at + key_end.match.size;
  const std::string_view space = std::string_view(literal).substr(size_without_space(literal));
  if (text.substr(begin).starts_with(space)) {
    begin += space.size();
  } else if (space.starts_with(text.substr(begin)) && !final_) {
    return false;
  }
  size_t end = begin, next = 0;
  if (!find_value_end(text, end, next)) return false;
  std::string_view value = text.substr(begin, end - begin);
  const std::string_view before = std::string_view(syntax_.value_end).substr(0, space_before(syntax_.value_end));
  if (value.ends_with(before)) value.remove_suffix(before.size());
  const std::string key(trimmed(text.substr(lead, key_end.at - lead)));
  const bool by_format = closers[0] != closers[1] && !other;
  const bool json_by_format = closers[0] != closers[1] && other;
  std::string piece = (parameters_++ == 0 ? "{" : ", ") + json_text(key) + ": ";
  piece += json_by_format ? as_json(value).value_or(json_text(value)) : argument_json(key, value, by_format);
  give_arguments(std::move(piece), out);
  at_ += next;
  return true;
}

std::string AnswerParser::argument_json(const std::string& key, std::string_view raw, bool text_by_format) const {
  if (text_by_format) return json_text(raw);
  const auto tool = std::ranges::find(reading_.tools, name_, &ToolShape::name);
  const bool known = tool != reading_.tools.end() && tool->texts.contains(key);
  if (!known) return as_json(raw).value_or(json_text(raw));
  const TextForm form = tool->texts.at(key);
  const std::string_view value = trimmed(raw);
  if (form == TextForm::kMaybeNull && (value == "null" || value == "None")) return "null";
  if (form != TextForm::kPlain && value.starts_with('"')) return as_json(value).value_or(json_text(raw));
  return json_text(raw);
}

bool AnswerParser::step_parameters(Events& out) {
  const size_t lead = space_before(view());
  const std::string_view text = view();
  const Match key = match(syntax_.key_begin, text.substr(lead));
  if (key.partial() && !final_) return false;
  if (key.full()) {
    const size_t begin = lead + key.size;
    if (read_parameter(text, begin, out)) return true;
    if (!key_too_long_ && !final_) return false;
    // No whole parameter: its text is kept, and the arguments do not look whole.
    if (!key_too_long_) {
      give_arguments((parameters_ == 0 ? "{" : ", ") + std::string(text.substr(begin)), out);
      at_ += text.size();
    }
    end_call(out, !key_too_long_);
    return true;
  }
  const Match end = match(first_tag(syntax_.end), text.substr(lead));
  if (end.partial() && !final_) return false;
  const bool inferred = key.partial() || end.partial();
  give_arguments((parameters_ == 0 ? "{" : "") + std::string(inferred && cut_ ? "" : "}"), out);
  end_call(out, inferred);
  return true;
}

// The fence around a call that stood in one.
Verdict AnswerParser::take_fence(size_t lead) {
  const Match fence = fenced_ ? match("```", view().substr(lead)) : Match{};
  if (!fence.full()) return fence.partial() && !final_ ? Verdict::kMore : Verdict::kNo;
  at_ += lead + fence.size;
  fenced_ = false;
  return Verdict::kYes;
}

// Another call before the end of this one: with the template's words between them, or, of a known tool, without.
Verdict AnswerParser::take_next_call(size_t lead, Events& out) {
  if (closed_) return Verdict::kNo;
  const std::string_view text = view().substr(lead);
  if (const Verdict bare = take_call(lead, heads_.bare(text, final_), out); bare != Verdict::kNo) return bare;
  const Match between = syntax_.between.empty() ? Match{} : match(syntax_.between, text);
  if (!between.full()) return between.partial() && !final_ ? Verdict::kMore : Verdict::kNo;
  return take_call(lead + between.size, heads_.marked(text.substr(between.size), final_, cut_), out);
}

// Of the call's end any tag, by itself and again and again: models leave some out and write others twice. What is no
// tag, such as a fence's end, may begin the content, and is taken once.
Verdict AnswerParser::take_end_tag(size_t lead) {
  bool partial = false;
  for (const std::string_view tag : open_ends_) {
    const Match here = match(tag, view().substr(lead));
    partial |= here.partial();
    if (!here.full() && !(here.partial() && final_)) continue;
    at_ += lead + here.size;
    closed_ = true;
    if (!is_tag(tag)) std::erase(open_ends_, tag);
    return Verdict::kYes;
  }
  return partial ? Verdict::kMore : Verdict::kNo;
}

// What still belongs to a call is taken piece by piece, until there is another call, or content.
bool AnswerParser::step_after_call(Events& out) {
  at_ += space_before(view());
  // Braces too many are the call's if more of it follows, or nothing. So many that nobody miscounted are content.
  const bool braces = syntax_.form != Form::kTagged && !closed_;
  const std::string_view held = view().substr(0, braces ? kMaxHeldBraces + 1 : 0);
  const size_t lead = std::min(held.find_first_not_of(" \n\t\r}"), held.size());
  Verdict taken = Verdict::kNo;
  if (lead <= kMaxHeldBraces) {
    if (lead == view().size()) {
      if (final_) at_ += lead;
      return false;
    }
    taken = take_fence(lead);
    if (taken == Verdict::kNo) taken = take_next_call(lead, out);
    if (taken == Verdict::kNo) taken = take_end_tag(lead);
  }
  if (taken != Verdict::kNo) return taken == Verdict::kYes;
  state_ = State::kContent;
  drop_space_ = true;
  return true;
}

AnswerParser::Events joined(const AnswerParser::Events& events) {
  AnswerParser::Events out;
  for (const AnswerEvent& event : events) {
    const bool piece = event.kind == Kind::kContent || event.kind == Kind::kReasoning || event.kind == Kind::kArguments;
    const bool same = !out.empty() && out.back().kind == event.kind && out.back().call == event.call;
    if (piece && same) {
      out.back().text += (event.apart ? "\n" : "") + event.text;
    } else {
      out.push_back(event);
    }
  }
  return out;
}

}  // namespace kvilt::server
