#include "engine/clean_copier.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvilt {

void CleanCopier::asked(const Sequence& s, std::span<const TokenMark> missing) {
  if (missing.empty() || waiting_.size() >= kMaxWaiting) return;
  const std::span<const int32_t> tokens = s.tokens;
  const auto before = tokens.first(static_cast<size_t>(s.request.prompt.marks[0].begin));
  const Digest behind = asked_.key(s.domains.exact, before);  // once: it may be a long history, and the marks hundreds
  AskCounter::Asker asker(asked_, tokens);
  for (const TokenMark& mark : missing) {
    if (waiting_.size() >= kMaxWaiting) return;
    const auto document = tokens.subspan(mark.begin, mark.end - mark.begin);
    const Digest key = asked_.key(behind, document);
    if (waits(key) || !asked_.asked(key, asker)) continue;
    asked_.forget(key);
    Document next{key, {{before.begin(), before.end()}, {}}, s.domains.exact, s.owner};
    next.prompt.add_marked(document);
    waiting_.push_back(std::move(next));
  }
}

bool CleanCopier::waits(const Digest& key) const {
  return (now_ && now_->key == key) || std::ranges::find(waiting_, key, &Document::key) != waiting_.end();
}

std::unique_ptr<Sequence> CleanCopier::start() {
  CHECK(!now_ && !waiting_.empty());
  now_ = std::move(waiting_.front());
  waiting_.pop_front();
  auto s = sequence(now_->prompt, "prefix", {.exact = now_->domain}, now_->owner);
  s->request.clean_copy = true;
  return s;
}

// Nothing of a copy that was broken off stays: one that is never done in time must not keep the others from their turn.
void CleanCopier::interrupt() {
  if (auto document = std::exchange(now_, {}); document && ++document->interrupts < kMostInterrupts)
    waiting_.push_back(*std::move(document));
}

}  // namespace kvilt
