#include "engine/clean_copier.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvilt {

void CleanCopier::asked(const Sequence& s, std::span<const TokenMark> missing) {
  if (missing.empty() || !waiting_.has_room(s.owner)) return;
  const std::span<const int32_t> tokens = s.tokens;
  const auto before = tokens.first(static_cast<size_t>(s.request.prompt.marks[0].begin));
  const Digest behind = asked_.key(s.domains.exact, before);  // once: it may be a long history, and the marks hundreds
  AskCounter::Asker asker(asked_, tokens);
  for (const TokenMark& mark : missing) {
    if (!waiting_.has_room(s.owner)) return;
    const auto document = tokens.subspan(mark.begin, mark.end - mark.begin);
    if (before.size() + document.size() > kMaxTokens) continue;
    const Digest key = asked_.key(behind, document);
    if (waits(key) || !asked_.asked(key, asker)) continue;
    asked_.forget(key);
    Document next{key, {{before.begin(), before.end()}, {}}, s.domains.exact, s.owner};
    next.prompt.add_marked(document);
    waiting_.push(std::move(next));
  }
}

bool CleanCopier::waits(const Digest& key) const {
  const auto is = [&](const Document& document) { return document.key == key; };
  return (now_ && is(*now_)) || std::ranges::any_of(waiting_, is);
}

std::unique_ptr<Sequence> CleanCopier::start() {
  CHECK(!now_ && !waiting_.empty());
  now_ = waiting_.pop();
  auto s = sequence(now_->prompt, "prefix", {.exact = now_->domain}, now_->owner);
  s->request.clean_copy = true;
  return s;
}

// Nothing of a copy that was broken off stays: one that is never done in time must not keep the others from their turn.
void CleanCopier::interrupt() {
  if (auto document = std::exchange(now_, {}); document && ++document->interrupts < kMostInterrupts)
    waiting_.push(*std::move(document));
}

}  // namespace kvilt
