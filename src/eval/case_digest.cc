#include "eval/case_digest.h"

#include <span>

#include "base/checksum.h"
#include "base/error.h"

namespace kvilt {
namespace {

// Bytes in which no two different lists of parts are the same.
class Parts {
 public:
  Parts& add(std::string_view text) {
    number(text.size());
    bytes_ += text;
    return *this;
  }
  Parts& number(uint64_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Parts& ids(const std::vector<int32_t>& ids) {
    number(ids.size());
    bytes_.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
    return *this;
  }
  Parts& part(const CasePart& part) {
    return add(part.text).number(part.known).number(part.warmed).ids(part.ids).add(part.was);
  }
  Parts& parts(const std::vector<CasePart>& parts) {
    number(parts.size());
    for (const CasePart& each : parts) part(each);
    return *this;
  }
  std::string digest() const { return fmt::format("{:016x}", checksum(std::as_bytes(std::span(bytes_)))); }

 private:
  std::string bytes_;
};

}  // namespace

std::string digest_of(std::initializer_list<std::string_view> parts) {
  Parts out;
  for (const std::string_view part : parts) out.add(part);
  return out.digest();
}

std::string case_digest(const EvalCase& from) {
  Parts out;
  out.number(from.chat).number(from.turns.size());
  for (const CaseTurn& turn : from.turns) out.add(turn.role).parts(turn.parts);
  out.add(from.lead).ids(from.begun).number(from.answers.size());
  for (const std::string& answer : from.answers) out.add(answer);
  out.number(static_cast<uint64_t>(from.metric)).parts(from.warm_only).number(from.history.size());
  for (const PastRequest& past : from.history) {
    out.ids(past.prompt.ids).number(past.prompt.marks.size());
    for (const TokenMark& mark : past.prompt.marks)
      out.number(static_cast<uint64_t>(mark.begin)).number(static_cast<uint64_t>(mark.end));
    out.ids(past.answer);
  }
  return out.ids(from.truth).digest();
}

Status digest_cases(std::vector<CaseSource>& sources) {
  for (CaseSource& source : sources) {
    if (!source.made_of.empty()) {
      source.digest = digest_of({source.made_of});
      continue;
    }
    KVILT_ASSIGN(const EvalCase made, source.make());
    source.digest = case_digest(made);
  }
  return {};
}

}  // namespace kvilt
