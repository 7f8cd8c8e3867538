// text/normalizer.cc: see normalizer.h.
#include "text/normalizer.h"

#include "base/error.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

// Replacements may make a text grow; a hostile file (each letter to a megabyte) must not fill the memory.
constexpr size_t kMaxGrowth = 64;
constexpr size_t kSlack = 1 << 20;
constexpr size_t kMaxSteps = 64;  // each walks the whole text

Status check_growth(size_t limit, size_t size) {
  if (size <= limit) return {};
  return error(Code::kExhausted, "the tokenizer's normalizer makes a text of {} bytes, more than {} of them", size,
               limit);
}

Result<bool> replace_literal(const NormalizeStep& step, std::string_view text, size_t limit, std::string& out) {
  size_t at = text.find(step.pattern);
  if (at == std::string_view::npos) return false;
  size_t from = 0;
  for (; at != std::string_view::npos; at = text.find(step.pattern, from)) {
    out.append(text.substr(from, at - from)).append(step.content);
    from = at + step.pattern.size();
    KVILT_TRY(check_growth(limit, out.size()));
  }
  out.append(text.substr(from));
  return true;
}

Result<bool> replace_matches(const Regex& regex, std::string_view content, std::string_view text, size_t limit,
                             std::string& out) {
  Regex::Search search(regex, text);
  size_t from = 0;
  bool changed = false;
  for (ByteRange match;;) {
    KVILT_ASSIGN(const bool found, search.next(match));
    if (!found) break;
    out.append(text.substr(from, match.begin - from)).append(content);
    from = match.end;
    changed = true;
    KVILT_TRY(check_growth(limit, out.size()));
  }
  out.append(text.substr(from));
  return changed;
}

std::string_view strip(std::string_view text, bool left, bool right) {
  size_t begin = text.size(), end = 0;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    if (!is_white_space(c.value)) {
      begin = std::min(begin, i);
      end = i + c.size;
    }
    i += c.size;
  }
  if (!left) begin = 0;
  if (!right) end = text.size();
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

}  // namespace

Result<Normalizer> Normalizer::create(std::vector<NormalizeStep> steps) {
  if (steps.size() > kMaxSteps) {
    return error(Code::kUnsupported, "tokenizer: a normalizer of {} steps; {} are allowed", steps.size(), kMaxSteps);
  }
  Normalizer n;
  for (const NormalizeStep& step : steps) {
    n.regexes_.emplace_back();
    if (step.kind != NormalizeStep::Kind::kReplace) continue;
    if (step.literal) {
      if (step.pattern.empty()) return error(Code::kInvalidArgument, "normalizer Replace: the pattern is empty");
    } else {
      KVILT_ASSIGN(n.regexes_.back(), Regex::compile(step.pattern));
    }
  }
  n.steps_ = std::move(steps);
  return n;
}

Result<bool> Normalizer::apply(size_t i, std::string_view text, size_t limit, std::string& out) const {
  using Kind = NormalizeStep::Kind;
  const NormalizeStep& step = steps_[i];
  out.clear();
  switch (step.kind) {
    case Kind::kNfc:
    case Kind::kNfd:
    case Kind::kNfkc:
    case Kind::kNfkd: {
      if (is_ascii(text)) return false;
      KVILT_ASSIGN(out, to_normal_form(text, static_cast<NormalForm>(step.kind)));
      return true;
    }
    case Kind::kLowercase:
      out = to_lower(text);
      return true;
    case Kind::kReplace:
      return step.literal ? replace_literal(step, text, limit, out)
                          : replace_matches(*regexes_[i], step.content, text, limit, out);
    case Kind::kPrepend:
      if (text.empty()) return false;
      out.append(step.content).append(text);
      return true;
    case Kind::kStrip:
      out = strip(text, step.left, step.right);
      return true;
  }
  return false;
}

Result<bool> Normalizer::run(std::string_view text, bool prepend, std::string& out) const {
  std::string now;
  bool changed = false;
  const size_t limit =
      kSlack + kMaxGrowth * text.size();  // for all steps together; a limit for each step would multiply
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (!prepend && steps_[i].kind == NormalizeStep::Kind::kPrepend) continue;
    KVILT_ASSIGN(const bool stepped, apply(i, changed ? std::string_view(now) : text, limit, out));
    if (!stepped) continue;
    KVILT_TRY(check_growth(limit, out.size()));
    changed = true;
    std::swap(now, out);
  }
  out = std::move(now);
  return changed;
}

}  // namespace kvilt
