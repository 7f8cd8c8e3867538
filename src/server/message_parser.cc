#include "server/message_parser.h"

#include <algorithm>
#include <utility>

#include "base/begun_literal.h"
#include "server/literal_match.h"

namespace kvilt::server {
namespace {

using Kind = AnswerEvent::Kind;

// Up to a space or a mark.
std::string_view word_at(std::string_view text) { return text.substr(0, text.find_first_of(" \n\t\r<")); }

// The word behind `mark`, which stands at the start, behind a space or behind a mark; empty: there is none.
std::string_view word_behind(std::string_view mark, std::string_view header) {
  for (size_t at = 0; (at = header.find(mark, at)) != std::string_view::npos; ++at) {
    const bool begins = at == 0 || is_space(header[at - 1]) || header[at - 1] == '>' || mark[0] == '<';
    if (begins) return word_at(header.substr(at + mark.size()));
  }
  return {};
}

}  // namespace

void MessageParser::push(std::string_view text, Events& out) {
  buffer_.append(text);
  run(out);
}

void MessageParser::finish(Events& out, bool cut) {
  final_ = true;
  cut_ = cut;
  run(out);
  if (state_ == State::kArguments) out.push_back({Kind::kCallEnd, "", calls_ - 1, "", true});
}

void MessageParser::run(Events& out) {
  while (step(out)) {
  }
  buffer_.erase(0, at_);
  at_ = 0;
}

bool MessageParser::step(Events& out) {
  switch (state_) {
    case State::kHeader:
      return step_header(out);
    case State::kCallHead:
      return step_call_head(out);
    case State::kArguments:
      return step_arguments(out);
    case State::kText:
    case State::kAfterCall:
      return step_text(out);
  }
  return false;
}

bool MessageParser::may_be_header() const {
  const std::string_view text = view().substr(space_before(view()));
  const auto begins = [&](const std::string& mark) {
    return !mark.empty() && (text.starts_with(mark) || std::string_view(mark).starts_with(text));
  };
  return begins(syntax_.channel) || begins(syntax_.message) || begins(syntax_.recipient);
}

bool MessageParser::step_header(Events& out) {
  const std::string_view text = view(), head = text.substr(0, kMaxMessageHeader);
  if (first_ && !may_be_header()) {
    begin_text(Kind::kContent, "", out);
    return true;
  }
  const size_t end = head.find(syntax_.message);
  if (end != std::string_view::npos) {
    const std::string header(text.substr(0, end + syntax_.message.size()));
    at_ += header.size();
    read_header(header, out);
    return true;
  }
  if (text.size() >= kMaxMessageHeader) {
    begin_text(Kind::kContent, "", out);
    return true;
  }
  if (!final_) return false;
  if (first_ && !text.empty() && text.find(syntax_.channel) == std::string_view::npos) {
    begin_text(Kind::kContent, "", out);
    return true;
  }
  at_ += text.size();
  return false;
}

void MessageParser::read_header(std::string_view header, Events& out) {
  const std::string_view to = syntax_.recipient.empty() ? "" : word_behind(syntax_.recipient, header);
  const bool thinks = word_behind(syntax_.channel, header) == syntax_.reasoning;
  name_ = tool_of(to);
  if (!name_.empty()) {
    header_ = header;
    state_ = State::kCallHead;
    first_ = false;
    return;
  }
  if (thinks) return begin_text(Kind::kReasoning, "", out);
  begin_text(Kind::kContent, to.empty() ? "" : header, out);
}

std::string MessageParser::tool_of(std::string_view recipient) const {
  if (!reading_.calls || recipient.empty()) return "";
  const bool known = std::ranges::find(reading_.tools, recipient, &ToolShape::name) != reading_.tools.end();
  if (known) return std::string(recipient);
  return recipient.starts_with(syntax_.tools) ? std::string(recipient.substr(syntax_.tools.size())) : "";
}

void MessageParser::begin_text(Kind kind, std::string_view before, Events& out) {
  kind_ = kind;
  fresh_ = true;
  first_ = false;
  state_ = State::kText;
  give(before, out);
}

void MessageParser::give(std::string_view text, Events& out) {
  if (text.empty() || state_ == State::kAfterCall) return;
  bool& before = kind_ == Kind::kReasoning ? thought_ : said_;
  out.push_back({kind_, (fresh_ && before ? "\n\n" : "") + std::string(text), -1, ""});
  fresh_ = false;
  before = true;
}

size_t MessageParser::held() const {
  const std::string_view text = view();
  return std::max({begun_literal(text, syntax_.next), begun_literal(text, syntax_.last_end),
                   begun_literal(text, syntax_.call_end)});
}

// Of what was held back at the answer's end.
bool MessageParser::ends_answer(std::string_view text) const {
  return text.starts_with(syntax_.end) || text == syntax_.last_end || text == syntax_.call_end;
}

bool MessageParser::step_text(Events& out) {
  const size_t end = view().find(syntax_.next);
  if (end != std::string_view::npos) {
    give(view().substr(0, end), out);
    at_ += end + syntax_.next.size();
    state_ = State::kHeader;
    return true;
  }
  const std::string_view text = view().substr(0, view().size() - held());
  give(text, out);
  at_ += text.size();
  if (!final_) return false;
  if (!ends_answer(view())) give(view(), out);
  at_ += view().size();
  return false;
}

// Arguments are an object. A message that ended without one, and without other text, is a call with an empty one.
bool MessageParser::step_call_head(Events& out) {
  const std::string_view text = view().substr(space_before(view()));
  const bool ended = text.starts_with(syntax_.next) || (final_ && (text.empty() || ends_answer(text)));
  if (!ended && !final_ && (text.empty() || held() >= text.size())) return false;
  if (!ended && text[0] != '{') {
    begin_text(Kind::kContent, header_, out);
    return true;
  }
  at_ += view().size() - text.size();
  out.push_back({Kind::kCallStart, name_, calls_++, ""});
  arguments_ = {};
  state_ = State::kArguments;
  if (!ended) return true;
  const bool broken = text.empty() && cut_;
  if (!broken) out.push_back({Kind::kArguments, "{}", calls_ - 1, ""});
  out.push_back({Kind::kCallEnd, "", calls_ - 1, "", broken});
  state_ = State::kAfterCall;
  return true;
}

bool MessageParser::step_arguments(Events& out) {
  JsonArguments::Piece piece = arguments_.take(view());
  at_ += piece.size;
  if (!piece.json.empty()) out.push_back({Kind::kArguments, std::move(piece.json), calls_ - 1, ""});
  if (!piece.ended) return false;
  out.push_back({Kind::kCallEnd, "", calls_ - 1, ""});
  state_ = State::kAfterCall;
  return true;
}

}  // namespace kvilt::server
