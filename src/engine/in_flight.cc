#include "engine/in_flight.h"

#include <algorithm>
#include <string>

#include "engine/content_cache.h"
#include "engine/mark_runs.h"
#include "index/clip_pieces.h"

namespace kvilt {
namespace {

constexpr int64_t kFewest = 64;   // tokens for which it is worth to wait, unless they are all that is missing ...
constexpr int64_t kShare = 4;     // ... and the share of the missing ones, 1 in kShare
constexpr int64_t kPatience = 4;  // the other's rows may be fewer than so many times the own

// Its prefill ends in the cache. What narrowed heads compute, or goes on from a session, does not.
bool publishes(const Sequence& other) {
  const Sequence::Running& now = other.running;
  return now.prefill && other.request.publish && other.session_len == 0 && now.kv->whole() &&
         !now.prefill->plan().narrowed();
}

bool waited_for(const Sequence& s, const Sequence& other) {
  return std::ranges::find(s.waited_for, other.id) != s.waited_for.end();
}

// What a policy computed serves the same prompt under the same policy, exact or not.
bool same_question(const Sequence& a, const Sequence& b) {
  return a.tokens.size() == b.tokens.size() && a.policy->identity() == b.policy->identity() &&
         a.domains.chain == b.domains.chain && a.domains.approximate == b.domains.approximate && a.tokens == b.tokens;
}

// Where the KV ends that the other's prefill leaves as exact: at its first piece, and at the chain that it goes on from.
int32_t exact_end(const Sequence& other) {
  const PromptLayout& layout = other.running.prefill->layout();
  const bool goes_on_from_a_chain = other.running.exact.pos < layout.prefix;
  return goes_on_from_a_chain ? other.running.exact.pos : layout.exact_end();
}

// How far the prompts are equal and the other's KV will be exact.
int32_t common_exact(const Sequence& s, const Sequence& other) {
  const auto most = std::min<ptrdiff_t>(exact_end(other), std::ssize(s.tokens) - 1);
  const auto end = s.tokens.begin() + most;
  return static_cast<int32_t>(std::mismatch(s.tokens.begin(), end, other.tokens.begin()).first - s.tokens.begin());
}

std::span<const int32_t> part_of(std::span<const int32_t> tokens, const Run& run) {
  return tokens.subspan(run.begin, run.size());
}

// The marked parts of the prompt of which `other` leaves a clean copy: its own first one, where all that it computes
// before that is a beginning of this prompt too (index/clean_pieces.h).
Runs clean_copies(const Sequence& s, const Sequence& other) {
  const Runs theirs = runs_of(other.request.prompt.marks);
  if (theirs.empty() || theirs[0].begin < other.running.prefill->layout().prefix || theirs[0].end > exact_end(other))
    return {};
  const std::span<const int32_t> own = s.tokens, others = other.tokens, text = part_of(others, theirs[0]);
  Runs out;
  for (const Run& mark : runs_of(s.request.prompt.marks)) {
    if (mark.begin < theirs[0].begin || !std::ranges::equal(part_of(own, mark), text)) continue;
    if (!std::ranges::equal(own.first(theirs[0].begin), others.first(theirs[0].begin))) return {};
    out.push_back(mark);
  }
  return out;
}

}  // namespace

InFlight::InFlight(int min_segment)
    : min_segment_(min_segment), index_(HashSecret::random(), ContentIndexOptions::for_min_tokens(min_segment)) {}

bool InFlight::worth_waiting(Sequence& s, std::span<const std::unique_ptr<Sequence>> running,
                             const ModelConfig& config) {
  const Prefill& own = *s.running.prefill;
  Others others;
  for (const auto& other : running) {
    const bool may = std::ssize(s.waited_for) < kMostWaits || waited_for(s, *other);
    if (may && s.domains.sees(other->domains.exact) && publishes(*other) &&
        other->running.prefill->rows_left() < kPatience * own.rows_left())
      others.push_back(other.get());
  }
  if (others.empty()) return false;
  const PromptLayout& layout = own.layout();
  const Runs fresh = layout.fresh();
  const int64_t missing = count(fresh);
  const auto wait_for = [&](std::span<const Sequence* const> list) {
    for (const Sequence* other : list) {
      if (!waited_for(s, *other)) s.waited_for.push_back(other->id);
    }
    return true;
  };
  const auto worth = [&](const Runs& served) {
    const int64_t gain = count(intersect(fresh, served));
    return (gain >= kFewest && gain * kShare >= missing) || (gain > 0 && gain + 1 >= missing);
  };
  for (const Sequence* other : others) {
    if (!s.policy->wants_prefix()) break;
    const bool same = layout.after_prefix().size() > 1 && same_question(s, *other);  // rows that look need no KV
    if (same || worth({{0, common_exact(s, *other)}})) return wait_for({&other, 1});
  }
  if (!s.policy->wants_pieces()) return false;
  update(running);
  Others used;
  const Runs found = subtract(pieces(s, others, used), Runs{{0, layout.prefix}});
  if (!worth(found)) return false;
  PromptLayout later = layout;
  const Runs more = subtract(found, layout.reused());
  later.pieces.insert(later.pieces.end(), more.begin(), more.end());  // not joined: each is measured by itself
  std::ranges::sort(later.pieces, {}, &Run::begin);
  later.shared_context.clear();
  if (s.policy->wants_look_alikes()) ContentCache::measure_look_alikes(s.tokens, later);
  return s.policy->uses(later, config) && wait_for(used);
}

Runs InFlight::computed_by(const Sequence& s, std::span<const std::unique_ptr<Sequence>> running) {
  Runs out;
  Others others;
  for (const auto& other : running) {
    if (!s.domains.sees(other->domains.exact) || !publishes(*other)) continue;
    others.push_back(other.get());
    if (s.policy->wants_prefix()) out.push_back({0, common_exact(s, *other)});
  }
  if (!others.empty() && s.policy->wants_pieces()) {
    update(running);
    Others used;
    const Runs found = pieces(s, others, used);
    out.insert(out.end(), found.begin(), found.end());
  }
  std::erase_if(out, [](const Run& run) { return run.begin >= run.end; });
  return normalize(std::move(out));
}

// The index has the new text of exactly those that run and publish.
void InFlight::update(std::span<const std::unique_ptr<Sequence>> running) {
  std::erase_if(entries_, [&](const Entry& entry) {
    const bool runs = std::ranges::any_of(
        running, [&](const auto& s) { return s->id == entry.id && s->starts == entry.start && publishes(*s); });
    if (runs) return false;
    for (SegmentId id = entry.begin; id < entry.end; ++id) index_.erase(id);
    return true;
  });
  for (const auto& s : running) {
    const bool known = std::ranges::any_of(entries_, [&](const Entry& entry) { return entry.id == s->id; });
    if (known || !publishes(*s)) continue;
    entries_.push_back({s->id, s->starts, next_, next_});
    const PromptLayout& layout = s->running.prefill->layout();
    const int32_t exact = exact_end(*s);
    for (const Run& run : layout.fresh()) {
      const DomainId domain = run.begin < exact ? s->domains.exact : s->domains.approximate;
      if (run.size() < min_segment_ || !layout.dense || domain == 0) continue;
      const auto first = s->tokens.begin() + run.begin;
      entries_.back().end = ++next_;  // first: memory may end in insert(), and half of it may be there
      index_.insert(next_ - 1, {.tokens = {first, first + run.size()}, .domain = like(domain)});
    }
  }
}

// The index' own domain for one of the cache's.
DomainId InFlight::like(DomainId of_cache) { return index_.domain({}, std::to_string(of_cache), {}); }

// Parts of the prompt that `others` compute, where the request may use them; used: those of them that do.
Runs InFlight::pieces(const Sequence& s, const Others& others, Others& used) {
  Runs out;
  if (s.clean_only) {
    for (const Sequence* other : others) {
      const Runs copies = clean_copies(s, *other);
      out.insert(out.end(), copies.begin(), copies.end());
      if (!copies.empty()) used.push_back(other);
    }
    return normalize(std::move(out));
  }
  const Runs marks = runs_of(s.request.prompt.marks), marked = normalize(marks);
  const int32_t from = s.running.prefill->layout().prefix;
  std::vector<Piece> known;
  s.domains.each([&](const ContentDomains& of) {
    for (const DomainId domain : {of.exact, of.approximate}) {
      if (domain == 0) continue;
      std::vector<Piece> in = index_.find_pieces(s.tokens, from, like(domain), min_segment_, {});
      if (!s.policy->wants_unmarked()) in = clip_pieces(in, marked, {marks, from, min_segment_});
      known.insert(known.end(), in.begin(), in.end());
    }
  });
  for (const Piece& piece : known) {
    const auto entry = std::ranges::find_if(
        entries_, [&](const Entry& e) { return e.begin <= piece.segment && piece.segment < e.end; });
    if (entry == entries_.end()) continue;
    const auto other = std::ranges::find(others, entry->id, [](const Sequence* o) { return o->id; });
    if (other == others.end()) continue;
    out.push_back({piece.pos, piece.pos + piece.count});
    if (std::ranges::find(used, *other) == used.end()) used.push_back(*other);
  }
  return normalize(out);
}

}  // namespace kvilt
