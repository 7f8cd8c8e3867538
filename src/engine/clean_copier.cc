#include "engine/clean_copier.h"

#include <utility>

#include "base/check.h"

namespace kvilt {

void CleanCopier::asked(const Sequence& s, std::span<const TokenMark> missing) {
  if (missing.empty()) return;
  const std::span<const int32_t> tokens = s.tokens;
  const auto before = tokens.first(static_cast<size_t>(s.request.prompt.marks[0].begin));
  for (const TokenMark& mark : missing) {
    const auto document = tokens.subspan(mark.begin, mark.end - mark.begin);
    const std::string_view domain(reinterpret_cast<const char*>(&s.domains.exact), sizeof s.domains.exact);
    const Digest key = KeyedHash(secret_, "kvilt.asked").add(domain).add(before).add(document).finish();
    if (asked_.size() >= kMaxCounted && !asked_.contains(key)) asked_.clear();
    if (++asked_[key] < kOften || waiting_.size() >= kMaxWaiting) continue;
    asked_.erase(key);
    Document next{{before.begin(), before.end()}, {}, s.domains.exact};
    next.mark.begin = static_cast<int32_t>(next.tokens.size());
    next.tokens.insert(next.tokens.end(), document.begin(), document.end());
    next.mark.end = static_cast<int32_t>(next.tokens.size());
    waiting_.push_back(std::move(next));
  }
}

std::unique_ptr<Sequence> CleanCopier::start() {
  CHECK(!now_ && !waiting_.empty());
  now_ = std::move(waiting_.front());
  waiting_.pop_front();
  auto s = sequence({now_->tokens, {now_->mark}}, "prefix", {.exact = now_->domain});
  s->request.clean_copy = true;
  return s;
}

void CleanCopier::interrupt() {
  if (now_) waiting_.push_front(*std::exchange(now_, {}));
}

}  // namespace kvilt
