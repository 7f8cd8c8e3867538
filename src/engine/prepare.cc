#include "engine/prepare.h"

#include <algorithm>
#include <utility>

#include "kv/session_file.h"

namespace kvilt {
namespace {

// Another request computes and will publish the very prompt.
bool same_prompt_runs(std::span<const std::unique_ptr<Sequence>> running, const Sequence& s) {
  return std::ranges::any_of(running, [&](const auto& other) {
    return other->running.prefill && other->domain == s.domain && other->tokens == s.tokens && other->request.publish;
  });
}

}  // namespace

bool Preparer::uses_cache(const Sequence& s) const { return parts_.options.cache && !s.without_cache; }

Admission Preparer::prepare(Sequence& s, std::span<const std::unique_ptr<Sequence>> running, uint64_t moment) const {
  if (parts_.model->config().is_long(static_cast<int64_t>(s.tokens.size()))) {  // what is cached is of short prompts
    s.without_cache = true;
    s.request.publish = false;
  }
  if (uses_cache(s) && s.policy->wants_prefix() && same_prompt_runs(running, s)) return Admission::kLater;
  const bool may_wait = !running.empty();
  if (s.no_room_at == moment && may_wait) return Admission::kNoRoom;
  if (!start(s, may_wait)) {
    s.running = {};
    s.no_room_at = moment;
    return Admission::kNoRoom;
  }
  if (!s.started) {
    s.started = true;
    s.first_step = Clock::now();
    s.usage.queued_s = seconds(s.submitted, s.first_step);
  }
  if (s.completion.completion_tokens == 0) {  // also when it starts again: the account is of what is done now
    s.completion.logits.prompt.clear();       // of a prefill that was broken off
    const PromptLayout& layout = s.running.prefill->layout();
    s.usage.prompt = s.prompt_len;
    s.usage.prefix = layout.prefix;
    s.usage.reused = static_cast<int>(count(layout.reused()));
    s.usage.fresh = s.usage.prompt - s.usage.prefix - s.usage.reused;
  }
  s.tokens.reserve(s.max_len);
  return Admission::kReady;
}

// Returns false where there is no room while others run. Without others it starts all the same: the scheduler has the
// last word.
bool Preparer::start(Sequence& s, bool may_wait) const {
  const bool with_session = s.session_len > 0 && !s.without_cache;
  s.running.prefill_len = static_cast<int32_t>(s.tokens.size());
  PromptLayout layout;
  layout.prompt_len = s.running.prefill_len;
  if (!with_session) {
    layout = place_found(s);
  } else if (place_session(s)) {
    layout.prefix = s.session_len;
  } else if (may_wait) {
    return false;
  } else {
    place(s, {});  // it is computed instead
  }
  if (s.running.prefill_len > s.prompt_len) layout.answer = s.prompt_len;
  s.running.prefill =
      std::make_unique<Prefill>(*s.policy, layout, parts_.model->config(), s.request.evaluation.prompt_logits);
  PageTable& kv = *s.running.kv;
  kv.keep(s.running.prefill->keeps(), parts_.options.chunk_tokens);
  const auto writes = s.running.prefill->writes();
  const bool copy = parts_.options.placement == PlacementMode::kCopy;
  const bool fits = parts_.cache->make_room(kv.pages_for(writes.sets, writes.write) + (copy ? kv.copy_pages() : 0));
  if (!fits && may_wait) return false;
  copy_placed(s);
  if (fits) {  // taken at once: the next one that is let in must not count on the same pages
    kv.add(writes.sets, writes.write);
    s.running.prefill->slots_added();
  }
  return true;
}

// What the cache has of the tokens, as far as the policy uses it.
PromptLayout Preparer::place_found(Sequence& s) const {
  ContentCache::Found found;
  found.layout.prompt_len = s.running.prefill_len;
  if (uses_cache(s)) {
    found = parts_.cache->find(s.tokens, s.request.prompt.marks, s.domain,
                               {s.policy->wants_prefix(), s.policy->wants_pieces(), s.repaired,
                                s.policy->wants_unmarked(), s.clean_only, s.request.clean_copy});
    if (!found.layout.pieces.empty() && !s.policy->uses(found.layout, parts_.model->config())) found.drop_pieces();
  }
  place(s, std::move(found.placements));
  return std::move(found.layout);
}

// The request's session as its page table. False: there is no room for it now.
bool Preparer::place_session(Sequence& s) const {
  if (!parts_.cache->make_room(s.session_pages)) return false;
  auto session = import_session(parts_.cache->store(), parts_.model->config().ropes(s.running.prefill_len),
                                parts_.file->fingerprint, std::span<const std::byte>(s.request.session->bytes));
  if (!session.ok()) return false;
  s.running.kv = std::move(session->table);
  return true;
}

// A new page table that holds what was found and nothing else.
void Preparer::place(Sequence& s, std::vector<Placement> placements) const {
  s.running.kv =
      std::make_unique<PageTable>(parts_.cache->store(), parts_.model->config().ropes(s.running.prefill_len));
  for (Placement& placement : placements) s.running.kv->place(std::move(placement), s.policy->wants_realigned());
}

void Preparer::place_again(Sequence& s) const {
  const auto first = s.running.kv->first_placements();
  place(s, {first.begin(), first.end()});
  copy_placed(s);
}

// With --placement copy, if there is room: else what was placed stays where it is.
void Preparer::copy_placed(Sequence& s) const {
  PageTable& kv = *s.running.kv;
  if (parts_.options.placement != PlacementMode::kCopy || !parts_.cache->make_room(kv.copy_pages())) return;
  const double bytes = static_cast<double>(count(kv.known(0))) * static_cast<double>(kv.shape().token_bytes());
  kv.copy_in(parts_.model->backend(), parts_.model->attend_shape(kv.shape().dtype));
  s.work.bytes += 2 * bytes;
}

}  // namespace kvilt
