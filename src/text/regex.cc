// text/regex.cc: see regex.h.
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "base/error.h"
#include "base/work_clock.h"

namespace kvilt {
namespace {

// White_Space as Oniguruma and Rust have it. PCRE2's own \s has U+180E as well, which Unicode took out in 6.3.
constexpr std::string_view kSpaceSet = "\\p{Z}\\t-\\r\\x{85}";

// Oniguruma's \s, \S and \h (a hexadecimal digit) in PCRE2's terms; set operations and nested sets are refused.
Result<std::string> translate(std::string_view in) {
  std::string out;
  int set_start = -1;  // position of the set's first member; -1 outside of sets
  for (size_t i = 0; i < in.size(); ++i) {
    const bool in_set = set_start >= 0;
    const char c = in[i], next = i + 1 < in.size() ? in[i + 1] : '\0';
    if (c == '\\' && next != '\0') {
      ++i;
      if (next == 's') {
        out.append(in_set ? "" : "[").append(kSpaceSet).append(in_set ? "" : "]");
      } else if (next == 'S' && !in_set) {
        out.append("[^").append(kSpaceSet).append("]");
      } else if (next == 'h') {
        out.append(in_set ? "0-9a-fA-F" : "[0-9a-fA-F]");
      } else {
        out.push_back('\\');
        out.push_back(next);
      }
      continue;
    }
    if (!in_set && c == '[') {
      out.push_back(c);
      if (next == '^') {
        out.push_back('^');
        ++i;
      }
      set_start = static_cast<int>(i + 1);
      continue;
    }
    if (in_set && c == ']' && static_cast<int>(i) != set_start) {
      set_start = -1;
    } else if (in_set && c == '[' && next == ':') {
      const size_t end = in.find(":]", i + 2);
      if (end == std::string_view::npos)
        return error(Code::kInvalidArgument, "regular expression {}: [: without :]", in);
      out.append(in.substr(i, end + 2 - i));
      i = end + 1;
      continue;
    } else if (in_set && (c == '[' || (c == '&' && next == '&'))) {
      return error(Code::kUnsupported, "regular expression {}: nested sets and set operations are not supported", in);
    }
    out.push_back(c);
  }
  return out;
}

struct MatchScratch {  // one per thread: PCRE2's match data and limits
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  // Of the TimeLimit: the thread's own time that must not be passed, and a time before which it cannot be.
  int64_t deadline = INT64_MAX, look_at = INT64_MAX;
  MatchScratch() {
    if (context != nullptr) pcre2_set_heap_limit(context, 64 << 10);  // KiB; only backtracking patterns need any
  }
  ~MatchScratch() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
};
MatchScratch& scratch() {
  thread_local MatchScratch s;
  return s;
}

// Asked once a match: 5 ns for the coarse clock, exact to some milliseconds. The thread's own costs a system call.
bool time_is_over(MatchScratch& s) {
  if (s.look_at == INT64_MAX) return false;
  const int64_t now = clock_ns(CLOCK_MONOTONIC_COARSE);
  if (now <= s.look_at) return false;
  const int64_t left = s.deadline - clock_ns(CLOCK_THREAD_CPUTIME_ID);
  s.look_at = now + left;
  return left <= 0;
}

constexpr size_t kMaxPattern = 64 << 10;
constexpr size_t kStepsACall = 1'000'000'000;  // some seconds: how late a TimeLimit may notice

}  // namespace

void Regex::Free::operator()(void* code) const { pcre2_code_free(static_cast<pcre2_code*>(code)); }

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPattern)
    return error(Code::kUnsupported, "a regular expression of {} bytes is too long", pattern.size());
  KVILT_ASSIGN(const std::string translated, translate(pattern));
  int number = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT, &number,
                    &at, nullptr);
  if (code == nullptr) {
    unsigned char message[160] = {};
    pcre2_get_error_message(number, message, sizeof message);
    return error(Code::kInvalidArgument, "regular expression {}: {} at {}", pattern, reinterpret_cast<char*>(message),
                 at);
  }
  Regex regex;
  regex.code_ = std::shared_ptr<void>(code, Free());
  regex.pattern_ = pattern;
  regex.at_start_ = pattern.find("\\G") != std::string_view::npos;
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without JIT, pcre2_match interprets
  return regex;
}

std::string Regex::quote(std::string_view literal) {
  std::string out;
  for (const char c : literal) {
    if (std::string_view("\\^$.[]|()?*+{}#-&").find(c) != std::string_view::npos) out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

Regex::Search::Search(const Regex& regex, std::string_view subject) : regex_(&regex), subject_(subject) {}

Regex::TimeLimit::TimeLimit(double seconds) : outermost_(scratch().deadline == INT64_MAX) {
  if (!outermost_) return;
  const auto time = static_cast<int64_t>(seconds * 1e9);
  scratch().deadline = clock_ns(CLOCK_THREAD_CPUTIME_ID) + time;
  scratch().look_at = clock_ns(CLOCK_MONOTONIC_COARSE) + time;
}

Regex::TimeLimit::~TimeLimit() {
  if (outermost_) scratch().deadline = scratch().look_at = INT64_MAX;
}

Error Regex::Search::too_much(int code) const {
  const std::string why = code == 0 ? "takes too long" : fmt::format("exceeds its limits (PCRE2 error {})", code);
  size_t shown = std::min<size_t>(subject_.size(), 40);
  while (shown < subject_.size() && (static_cast<uint8_t>(subject_[shown]) & 0xC0) == 0x80) --shown;
  return error(Code::kInvalidArgument,
               "the tokenizer's regular expression {} {} on a text of {} bytes that begins '{}'", regex_->pattern_, why,
               subject_.size(), subject_.substr(0, shown));
}

Result<bool> Regex::Search::find(size_t from, ByteRange& match) {
  MatchScratch& s = scratch();
  if (s.data == nullptr || s.context == nullptr)
    return error(Code::kExhausted, "no memory for a regular expression match");
  const auto* code = static_cast<const pcre2_code*>(regex_->code_.get());
  const auto* text = reinterpret_cast<PCRE2_SPTR>(subject_.data());
  // n spaces cost GPT-2's patterns n steps back; a few steps a byte is ample, and the constant is for short subjects.
  // The limit is for each place where a match may begin, of which a call tries a window.
  const size_t steps = std::min<size_t>(1'000'000 + 16 * subject_.size(), UINT32_MAX);
  const size_t window = regex_->at_start_ ? subject_.size() + 1 : std::max<size_t>(1, kStepsACall / steps);
  pcre2_set_match_limit(s.context, static_cast<uint32_t>(steps));
  for (size_t begin = from;;) {
    pcre2_set_offset_limit(s.context, begin + window - 1);
    int rc = pcre2_match(code, text, subject_.size(), begin, PCRE2_NO_UTF_CHECK, s.data, s.context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(code, text, subject_.size(), begin, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s.data, s.context);
    }
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) return too_much(rc);
    if (time_is_over(s)) return too_much(0);
    if (rc >= 0) break;
    begin += window;
    while (begin < subject_.size() && (static_cast<uint8_t>(subject_[begin]) & 0xC0) == 0x80) ++begin;
    if (begin > subject_.size()) return false;
  }
  const PCRE2_SIZE* v = pcre2_get_ovector_pointer(s.data);
  match = {v[0], v[1]};
  if (match.end < match.begin || match.begin < from) match.begin = match.end = from;  // \K in a lookaround
  return true;
}

Result<bool> Regex::Search::next(ByteRange& match) {
  for (;;) {
    if (from_ > subject_.size()) return false;
    KVILT_ASSIGN(const bool found, find(from_, match));
    if (!found) return false;
    const bool empty = match.begin == match.end;
    // An empty match right after the previous one does not count; the search goes on a character later.
    if (empty && match.begin == last_end_ && any_) {
      do ++from_;
      while (from_ < subject_.size() && (static_cast<uint8_t>(subject_[from_]) & 0xC0) == 0x80);
      continue;
    }
    from_ = match.end;
    last_end_ = match.end;
    any_ = true;
    return true;
  }
}

}  // namespace kvilt
