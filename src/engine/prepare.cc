#include "engine/prepare.h"

#include <algorithm>
#include <utility>

#include "engine/mark_runs.h"
#include "engine/session.h"
#include "forward/annex_rows.h"
#include "kv/annex.h"
#include "kv/session_file.h"
#include "policy/mean_state.h"

namespace kvilt {
namespace {

// Rows of an exact prefix run all the same then, so that waiting for it saves next to nothing.
bool looks_with_all(const Sequence& s) {
  const std::optional<DecodeRule>& rule = s.policy->decode_rule();
  return rule && rule->by == DecodeRule::By::kAllRows;
}

// A policy in the words of PeerAsk.
std::vector<std::string> method_of(const PolicyChoice& policy) {
  std::vector<std::string> out{policy.name};
  for (const auto& [key, value] : policy.params) {
    out.push_back(key);
    out.push_back(value);
  }
  return out;
}

}  // namespace

// A prompt that is scored needs the logits of all its rows, and what is cached has none.
bool Preparer::uses_cache(const Sequence& s) const {
  return parts_.options.cache && !s.without_cache && !s.scores_prompt();
}

int64_t Preparer::available() const { return parts_.cache->store().free_pages() + parts_.cache->reclaimable(); }

// Without others it starts whatever it takes: the scheduler has the last word.
Admission Preparer::plan(Sequence& s, std::span<const std::unique_ptr<Sequence>> running) {
  const ModelConfig& config = parts_.model->config();
  if (config.is_long(static_cast<int64_t>(s.tokens.size()))) {  // what is cached is of short prompts
    s.without_cache = true;
    s.request.publish = false;
  }
  const auto begin = Clock::now();
  Sequence::Running& now = s.running;
  now.prefill_len = static_cast<int32_t>(s.tokens.size());
  PromptLayout layout;
  layout.prompt_len = now.prefill_len;
  bool ahead = !s.fetches.empty() && !s.fetches.back()->done;  // of what it waits for
  if (!ahead && !s.fetches.empty() && s.fetches.back()->session) take_session(s);
  if (ahead || s.session_len == 0 || s.without_cache) {
    std::optional<PromptLayout> found;
    if (!ahead) {
      found = place_found(s);
      ahead =
          !found;  // somebody else may wait for the same, and its first layers be there: nobody tells of these again
    }
    if (ahead) found = place_coming(s);
    if (!found) return Admission::kLater;
    layout = *std::move(found);
  } else if (const Status placed = place_session(s); placed.ok()) {
    layout.prefix = s.session_len;
    now.from_remote = s.asked_peer ? s.session_len : 0;
  } else if (placed.error().code == Code::kExhausted && !running.empty()) {
    return Admission::kNoRoom;
  } else {
    place(s, {}, {});  // it is computed instead
  }
  if (now.prefill_len > s.prompt_len) layout.answer = s.prompt_len;
  const bool scores = s.scores_prompt();
  now.row_cost = scores ? parts_.model->cost_with_head() : 1;
  now.prefill =
      std::make_unique<Prefill>(*s.policy, layout, config, scores ? s.prompt_len : s.request.evaluation.prompt_logits);
  const bool wants_state = s.request.season && parts_.options.season_states;
  const std::optional<AnnexKind> state = wants_state ? mean_state(config) : std::nullopt;
  if (state) now.prefill->keep_for_means(*state, normalize(runs_of(s.request.prompt.marks)));
  if (ahead) {
    if (!now.prefill->goes_by_layers()) return Admission::kLater;
    now.runs_on = s.fetches.back();
    now.ran_ahead = true;
    now.prefill->layers_there(now.runs_on->coming.layers);
  }
  if (uses_cache(s) && in_flight_.worth_waiting(s, running, config)) return Admission::kLater;
  if (s.request.explain == Explain::kFull && uses_cache(s)) now.notes.running = in_flight_.computed_by(s, running);
  const auto pages_of = [&](int64_t bytes) {
    const int64_t page = now.kv->shape().page_bytes();
    return (bytes + page - 1) / page;
  };
  if (const auto& rule = now.prefill->plan().decode) {
    now.keys = std::make_unique<SelectedKeys>(*rule, config, s.prompt_len, now.prefill_len);
    now.choosing = pages_of(chooser_bytes(*rule, config, now.prefill_len));
  }
  PageTable& kv = *now.kv;
  kv.keep(now.prefill->keeps(), parts_.options.chunk_tokens);
  const bool answers = s.max_len > now.prefill_len, copies = copies_placed(s);
  const KvShape& shape = kv.shape();
  now.promised = kv.private_pages() + now.prefill->pages_to_come(kv) + (copies ? kv.copy_pages() : 0) +
                 (s.policy->wants_int8() ? kv.int8_pages(layout.prefix) : 0) +
                 (answers ? int64_t{shape.L} * shape.G : 0);
  const int64_t outside = now.prefill->hidden_bytes() + now.prefill->probe_bytes() +
                          (scores ? PromptScores::bytes(s.prompt_len, s.request.prompt_logprobs) : 0);
  now.outside = pages_of(outside);
  if (s.request.season) {
    auto made = parts_.cache->means_to_make(s.tokens, s.request.prompt.marks, s.domains.seasoned,
                                            state ? state_bytes(*state, config.D) : 0);
    now.means = std::move(made.old);
    now.outside += made.pages;
  }
  s.usage.find_s = seconds(begin, Clock::now());
  return Admission::kReady;
}

void Preparer::start(Sequence& s) const {
  copy_placed(s);
  if (s.asked_peer && s.session_len > 0) {  // it is not kept: who is preempted computes again, with the same views
    s.request.session = nullptr;
    s.session_len = 0;
    s.session_pages = 0;
  }
  if (s.scores_prompt()) s.running.scores.emplace(s.request.prompt.ids, s.request.prompt_logprobs);
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
    s.usage.chain = s.running.chain.pos > 0 ? layout.prefix - s.running.exact.pos : 0;
    s.usage.seasoned = layout.seasoned;
    s.usage.near = layout.near;
    s.usage.folded = s.request.prompt.folded;
    s.usage.disk = s.running.from_disk;
    s.usage.remote = s.running.from_remote;
    s.usage.reused = static_cast<int>(count(layout.reused()));
    s.usage.fresh = s.usage.prompt - s.usage.prefix - s.usage.reused;
  }
  s.tokens.reserve(s.max_len);
}

// A request whose KV is on disk, or else in the shared store, waits for it: twice at most, since what others wait for may
// not be all of its own.
bool Preparer::waits_for_disk(Sequence& s, const ContentCache::Wanted& wanted, const ContentCache::Found& found) const {
  constexpr int kMostFetches = 2;
  if (looks_with_all(s)) return false;
  const auto of_stores = std::ssize(s.fetches) - (s.asked_peer ? 1 : 0);
  if (of_stores >= kMostFetches || (!s.fetches.empty() && s.fetches.back()->late)) return false;
  const auto uses = [&](const PromptLayout& layout) { return s.policy->uses(layout, parts_.model->config()); };
  const DiskCache::Question question{
      s.tokens, s.request.prompt.marks, s.domains, wanted, parts_.model->config().ropes(s.running.prefill_len), uses,
      s.owner};
  for (const auto& store : parts_.stores) {
    auto fetch = store->fetch(question, found);
    if (!fetch) continue;
    s.fetches.push_back(std::move(fetch));
    return true;
  }
  return false;
}

// A request whose prompt is computed exactly, from a beginning that is known here on, waits once for what the prefill
// server computes of the rest. Heads with windows wait for the session that they leave there. What a policy reuses
// approximately, and what rows do that see few keys otherwise, is this server's.
bool Preparer::waits_for_peer(Sequence& s, const ContentCache::Wanted& wanted, const ContentCache::Found& found) const {
  if (!parts_.peer || s.asked_peer || s.idle_work || !wanted.prefix || wanted.make_clean) return false;
  if (!s.request.publish || looks_with_all(s)) return false;  // what comes is cached, here and there
  const ModelConfig& config = parts_.model->config();
  if (!found.layout.pieces.empty() && s.policy->uses(found.layout, config)) return false;
  PromptLayout exact;
  exact.prompt_len = found.layout.prompt_len;
  exact.prefix = found.layout.prefix;
  const Prefill prefill(*s.policy, exact, config);
  const Plan& plan = prefill.plan();
  const bool narrowed = plan.narrowed();
  if (!prefill.layout().dense || plan.stages.size() > 1) return false;  // what has a second look may narrow yet
  // From a beginning that is known here windows go on from exact KV; layers that share KV have views of their own.
  if (narrowed && (!plan.only_windows(0) || !config.kv_readers.empty())) return false;
  const Request& asked = s.request;
  const std::string name_space = asked.namespaces.empty() ? "" : asked.namespaces[0];
  auto fetch = parts_.peer->fetch({.prompt = s.tokens,
                                   .marks = asked.prompt.marks,
                                   .space = {asked.tenant, name_space, asked.cache_salt},
                                   .domain = s.domains.exact,
                                   .known = found.layout.prefix,
                                   .ropes = config.ropes(s.running.prefill_len),
                                   .owner = s.owner,
                                   .method = narrowed ? method_of(asked.policy) : std::vector<std::string>()});
  if (!fetch) return false;
  s.asked_peer = true;
  s.fetches.push_back(std::move(fetch));
  return true;
}

ContentCache::Wanted Preparer::wanted_of(const Sequence& s) const {
  return {.prefix = s.policy->wants_prefix(),
          .pieces = s.policy->wants_pieces(),
          .unmarked = s.policy->wants_unmarked(),
          .clean_only = s.clean_only,
          .seasoned = s.from_seasoned,
          .near = s.near ? parts_.options.min_near : 0,
          .look_alikes = s.policy->wants_look_alikes(),
          .shared_context = s.policy->wants_shared_context(),
          .chosen_by = s.policy->chooses_by(),
          .make_clean = s.request.clean_copy};
}

// What it waits for as its prefix, whose first layers are there: memory's beginning, and behind it what is coming.
// Nothing: it goes on waiting. So does who would use more than that of the cache, or tells what it used.
std::optional<PromptLayout> Preparer::place_coming(Sequence& s) const {
  const Fetch::Coming& coming = s.fetches.back()->coming;
  const auto end = static_cast<int32_t>(coming.prompt.size());
  if (coming.parts.empty() || coming.layers == 0 || coming.broken || end >= s.running.prefill_len) return std::nullopt;
  const bool plain = uses_cache(s) && s.policy->wants_prefix() && !s.request.clean_copy && s.session_len == 0 &&
                     s.request.namespaces.size() <= 1 && s.request.explain == Explain::kNo && !s.idle_work;
  if (!plain || !std::equal(coming.prompt.begin(), coming.prompt.end(), s.tokens.begin())) return std::nullopt;
  ContentCache::Found found = parts_.cache->find(s.tokens, s.request.prompt.marks, s.domains, wanted_of(s));
  const int32_t begin = found.layout.prefix;
  const bool more = std::ranges::any_of(found.layout.pieces, [&](const Run& run) { return run.end > end; });
  if (more || found.chain.pos > 0 || begin < coming.parts.front()->pos() || begin >= end) return std::nullopt;
  found.drop_pieces();
  for (const auto& part : coming.parts) {
    const int32_t skip = std::max(0, begin - part->pos());
    if (skip < part->count()) found.placements.emplace_back(part, skip, part->count() - skip, part->pos() + skip);
  }
  found.layout.prefix = end;
  s.running.from_disk = end - begin;
  s.running.from_remote = 0;
  s.running.exact = found.exact;
  place(s, std::move(found.placements), std::move(found.overlays));
  return std::move(found.layout);
}

void Preparer::take_layers(Sequence& s) const {
  Sequence::Running& now = s.running;
  if (now.runs_on->coming.broken) return;
  if (!now.prefill->has_slots()) now.band_pages = -1;  // the band may end later now
  if (!now.runs_on->done) return now.prefill->layers_there(now.runs_on->coming.layers);
  const int32_t prefix = now.prefill->layout().prefix;
  const std::vector<Piece> chain = parts_.cache->index().find_prefix(s.tokens, s.domains.exact, prefix);
  int32_t came = 0;
  for (const Piece& piece : chain)
    came += std::ranges::count(now.runs_on->segments, piece.segment) > 0 ? piece.count : 0;
  // Where others' KV stands meanwhile, it holds no pages of that.
  if (end_of(chain).pos < prefix || came < now.from_disk) return;
  now.exact = end_of(chain);
  now.runs_on.reset();
  now.prefill->layers_there(parts_.model->config().L);
}

// What the cache has of the tokens, as far as the policy uses it. Nothing: more of it is on its way from elsewhere.
std::optional<PromptLayout> Preparer::place_found(Sequence& s) const {
  ContentCache::Found found;
  found.layout.prompt_len = s.running.prefill_len;
  if (uses_cache(s)) {
    const ContentCache::Wanted wanted = wanted_of(s);
    found = parts_.cache->find(s.tokens, s.request.prompt.marks, s.domains, wanted);
    if (waits_for_disk(s, wanted, found) || waits_for_peer(s, wanted, found)) return std::nullopt;
    const Runs pieces = found.layout.reused();
    if (!pieces.empty() && !s.policy->uses(found.layout, parts_.model->config())) {
      s.running.notes.declined = pieces;
      found.drop_pieces();
    }
  }
  if (s.request.explain != Explain::kNo) note(s, found);
  s.running.from_disk = s.running.from_remote = 0;
  for (const auto& fetch : s.fetches)
    (fetch->remote ? s.running.from_remote : s.running.from_disk) += found.tokens_of(fetch->segments);
  s.running.exact = found.exact;
  s.running.chain = found.chain;
  s.running.elsewhere = parts_.cache->elsewhere(found, s.domains);
  place(s, std::move(found.placements), std::move(found.overlays));
  const ModelConfig& config = parts_.model->config();
  std::vector<AnnexKind> kinds = s.policy->wants_annexes(config);
  if (found.layout.seasoned > 0) {  // nothing else has what a policy does without
    for (const AnnexKind& kind : s.policy->takes_annexes(config)) kinds.push_back(kind);
  }
  for (const AnnexKind& kind : kinds) {
    const Runs known = annexed(s.running.kv->first_placements(), kind);
    found.layout.annexes.emplace_back(kind, intersect(known, found.layout.reused()));
  }
  for (const AnnexKind& kind : s.policy->wants_blocks()) {
    for (const auto& [positions, annex] : annex_blocks(s.running.kv->first_placements(), kind)) {
      AnnexBlock block{kind, positions, std::vector<std::byte>(static_cast<size_t>(annex->bytes()))};
      annex->read(0, block.bytes);
      found.layout.blocks.push_back(std::move(block));
    }
  }
  return std::move(found.layout);
}

// What was found, and with Explain::kFull what marks would have let it use.
void Preparer::note(Sequence& s, const ContentCache::Found& found) const {
  FoundNotes& notes = s.running.notes;
  notes.refused = !uses_cache(s) || !(s.policy->wants_prefix() || s.policy->wants_pieces());
  notes.pieces_refused = !s.policy->wants_pieces();
  notes.begun = found.begun;
  const PromptLayout& layout = found.layout;
  for (const Piece& piece : found.known) {
    const bool prefix = piece.pos < layout.prefix;
    if (!prefix && layout.pieces.empty()) break;  // they were declined
    PromptPatch patch = parts_.cache->patch_of(piece, prefix ? PatchKind::kPrefix : PatchKind::kReused);
    patch.near = !prefix && includes(found.near, Runs{{piece.pos, piece.pos + piece.count}});
    notes.patches.push_back(patch);
  }
  if (s.request.explain != Explain::kFull || notes.refused || !s.policy->wants_pieces() || s.policy->wants_unmarked())
    return;
  const auto all = parts_.cache->find(s.tokens, s.request.prompt.marks, s.domains, {.clean_only = s.clean_only});
  notes.unmarked = subtract(all.layout.reused(), layout.reused());
}

// What the prefill server left of the prompt becomes the request's session, if its heads keep what this server's policy
// would let them keep: maps are files, and may differ.
void Preparer::take_session(Sequence& s) const {
  const auto session = s.fetches.back()->session;
  auto taken = std::make_shared<Fetch>();
  taken->done = taken->remote = true;
  s.fetches.back() = std::move(taken);  // who else waited has its own
  const ModelConfig& config = parts_.model->config();
  auto summary = check_session(session->bytes, parts_.cache->store().shape(), parts_.file->fingerprint);
  PromptLayout layout;
  layout.prompt_len = s.running.prefill_len;
  const auto T = std::ssize(s.tokens);
  const bool fits = summary.ok() && summary->positions == T - 1 &&
                    std::equal(s.tokens.begin(), s.tokens.end() - 1, summary->tokens.begin()) &&
                    config.is_long(T - 1) == config.is_long(T) &&
                    summary->keeps == Prefill(*s.policy, layout, config).keeps();
  if (!fits) return parts_.peer->refuse_session(method_of(s.request.policy));
  s.request.session = session;
  s.session_len = summary->positions;
  s.session_pages = summary->pages;
  s.policy = session_policy(std::move(summary->keeps));
}

// The request's session as its page table. False: there is no room for it now.
Status Preparer::place_session(Sequence& s) const {
  if (!make_room_(s.session_pages, s.owner)) return error(Code::kExhausted, "no pages are free for the session");
  KVILT_ASSIGN(auto session,
               import_session(parts_.cache->store(), parts_.model->config().ropes(s.running.prefill_len),
                              parts_.file->fingerprint, std::span<const std::byte>(s.request.session->bytes)));
  s.running.kv = std::move(session.table);
  s.running.kv->give_to(s.owner);
  return {};
}

// A new page table that holds what was found and nothing else.
void Preparer::place(Sequence& s, std::vector<Placement> placements, std::vector<Placement> overlays) const {
  s.running.kv =
      std::make_unique<PageTable>(parts_.cache->store(), parts_.model->config().ropes(s.running.prefill_len));
  s.running.kv->give_to(s.owner);
  for (Placement& placement : placements) s.running.kv->place(std::move(placement), s.policy->wants_realigned());
  for (Placement& placement : overlays) s.running.kv->overlay(std::move(placement));
}

void Preparer::place_again(Sequence& s) const {
  const auto first = s.running.kv->first_placements(), over = s.running.kv->overlays();
  place(s, {first.begin(), first.end()}, {over.begin(), over.end()});
  copy_placed(s);
}

// What a session holds stays where it is: heads that see little hold only some of its pages.
bool Preparer::copies_placed(const Sequence& s) const {
  return parts_.options.placement == PlacementMode::kCopy && s.session_len == 0;
}

// With --placement copy, or pieces that are read as 8 bits, if there is room: else what was placed stays as it is.
void Preparer::copy_placed(Sequence& s) const {
  PageTable& kv = *s.running.kv;
  if (const int32_t from = s.running.prefill->layout().prefix;
      s.policy->wants_int8() && parts_.cache->make_room(kv.int8_pages(from), s.owner))
    kv.read_as_int8(from);
  if (!copies_placed(s) || !parts_.cache->make_room(kv.copy_pages(), s.owner)) return;
  const double bytes = static_cast<double>(count(kv.known(0))) * static_cast<double>(kv.shape().token_bytes());
  kv.copy_in(parts_.model->backend(), parts_.model->attend_shape(kv.shape().dtype));
  s.work.bytes += 2 * bytes;
}

}  // namespace kvilt
