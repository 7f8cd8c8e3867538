#include "engine/peer_cache.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/sealer.h"
#include "engine/mark_runs.h"
#include "kv/kv_rows.h"

namespace kvilt {
namespace {

// Without a row, where it is not known how long computing takes, and at least: another machine may be in a long step.
constexpr std::chrono::duration<double> kUnknownPatience{30}, kLeastPatience{2};
// A peer that hangs, and keeps its connection, would cost every request its patience.
constexpr std::chrono::seconds kFirstRest{5}, kLongestRest{80};

// A session is no larger than dense KV and this beside it: its frames, tokens and runs.
constexpr int64_t kMostBesideKv = int64_t{1} << 20;
constexpr int64_t kMostHeld = int64_t{512} << 20;  // of sessions that are asked for

// Rows that came are taken, also where memory ends meanwhile.
struct Taken {
  PeerLink& link;
  int64_t bytes;
  ~Taken() { link.took(bytes); }
};

}  // namespace

Digest peer_domain(const HashSecret& digests, const KeySpace& space) {
  return KeyedHash(digests, "kvilt.peer.domain").add(space.tenant).add(space.name_space).add(space.salt).finish();
}

PeerCache::PeerCache(Options options, ContentCache& cache)
    : least_(options.least),
      digests_(derived_key(options.link.key, "kvilt.peer.domains")),
      token_bytes_(cache.store().shape().token_bytes()),
      cache_(cache),
      link_(std::move(options.link)) {}

PeerCache::~PeerCache() = default;

// What comes is taken on the engine thread, and then its bytes are free.
template <class Kv>
std::function<void(Kv)> PeerCache::taken_by(void (PeerCache::*take)(const Kv&)) {
  return [this, take](Kv kv) {
    hooks_.post([this, take, kv = std::make_shared<const Kv>(std::move(kv))] {
      const Taken taken{link_, kv_bytes(*kv)};
      (this->*take)(*kv);
    });
  };
}

Status PeerCache::attach(Hooks hooks) {
  hooks_ = std::move(hooks);
  return link_.start({.rows = taken_by(&PeerCache::rows),
                      .part = taken_by(&PeerCache::part),
                      .end = [this](PeerEnd end) { hooks_.post([this, end] { this->end(end); }); },
                      .lost = [this] { hooks_.post([this] { lost(); }); },
                      .changed = [this] { hooks_.post([] {}); }});  // the figures follow
}

void PeerCache::finish() { link_.finish(); }

void PeerCache::clear() {
  while (!asked_.empty()) give_up(asked_.begin()->first);
}

// Who asks for what another waits for waits with it, but not for another's longer prompt: the prefill server itself
// computes what two asks share once. A session is of one prompt.
bool PeerCache::is_for(const Asked& asked, const Question& q, int32_t T) const {
  if (asked.domain != q.domain || asked.method != q.method) return false;
  const auto end = q.prompt.begin() + T;
  const auto common = std::mismatch(q.prompt.begin(), end, asked.tokens.begin(), asked.tokens.end()).first;
  const auto shared = common - q.prompt.begin();
  if (!q.method.empty()) return shared == T && shared == std::ssize(asked.tokens);
  return T - shared < least_ && std::ssize(asked.tokens) - shared < least_;
}

std::shared_ptr<const Fetch> PeerCache::fetch(const Question& q) {
  const auto T = static_cast<int32_t>(q.prompt.size()) - 1;  // the last token is computed here: its logits are wanted
  if (T - q.known < least_) return nullptr;
  if (!link_.ready() || Clock::now() < asks_from_) {
    ++stats_.absent;
    return nullptr;
  }
  for (const auto& [id, asked] : asked_) {
    if (is_for(asked, q, T)) return asked.fetch;
  }
  if (!q.method.empty() && !may_ask(q, T)) return nullptr;
  const std::span<const int32_t> tokens = q.prompt.first(static_cast<size_t>(T));
  const bool session = !q.method.empty();  // of which nothing comes before all is computed
  const ChainEnd reach = session ? ChainEnd{} : end_of(cache_.index().find_prefix(tokens, q.domain, T));
  Asked asked{.tokens = {tokens.begin(), tokens.end()},
              .marks = {},
              .domain = q.domain,
              .ropes = q.ropes,
              .owner = q.owner,
              .method = q.method,
              .next = reach.pos,
              .reach = reach,
              .bytes = {},
              .fetch = std::make_shared<Fetch>(),
              .until = patience_for(session ? int64_t{2} * T : T - q.known)};
  if (asked.next >= T) return nullptr;
  asked.marks = runs_of(q.marks);
  asked.fetch->remote = true;
  const uint64_t id = ++last_;
  if (!link_.ask({id, peer_domain(digests_, q.space), asked.next, asked.tokens, asked.method})) return nullptr;
  ++stats_.asked;
  return asked_.emplace(id, std::move(asked)).first->second.fetch;
}

// A session is of a prompt from its first token on. What comes is held beside the pool until its request starts.
bool PeerCache::may_ask(const Question& q, int32_t T) const {
  int64_t held = 0;
  for (const auto& [id, asked] : asked_) held += asked.method.empty() ? 0 : std::ssize(asked.tokens) * token_bytes_;
  return q.known == 0 && !not_answered_.contains(q.method) && bytes_of_method(q.method) <= PeerAsk::kMostMethodBytes &&
         (held == 0 || held + T * token_bytes_ <= kMostHeld);
}

void PeerCache::refuse_session(std::vector<std::string> method) {
  constexpr size_t kMostMethods = 64;
  if (not_answered_.size() >= kMostMethods) not_answered_.clear();
  const std::string name = method[0];
  if (!not_answered_.insert(std::move(method)).second) return;
  ++stats_.unanswered;
  spdlog::warn(
      "the prefill server's heads keep something else under policy {}: its --head-map is another one, or what "
      "it sends is damaged; such prompts are computed here",
      name);
}

// As long as computing would take here. A peer that is about as fast has shown a row long before.
Clock::time_point PeerCache::patience_for(int64_t tokens) const {
  const auto wait = pace_.known() ? std::max(pace_.time_for(tokens), kLeastPatience) : kUnknownPatience;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
}

// Null: nobody waits any more.
PeerCache::Asked* PeerCache::asked_by(uint64_t id) {
  const auto it = asked_.find(id);
  if (it != asked_.end()) return &it->second;
  if (id == 0 || id > last_) link_.drop();
  return nullptr;
}

void PeerCache::rows(const PeerRows& rows) {
  stats_.received_bytes += static_cast<uint64_t>(kv_bytes(rows));
  Asked* const of = asked_by(rows.id);
  if (!of) return;
  Asked& asked = *of;
  if (!asked.method.empty() || rows.pos != asked.next || rows.count > std::ssize(asked.tokens) - rows.pos) {
    link_.drop();  // lost() follows
    return;
  }
  asked.next += rows.count;
  adopt(asked, rows);
  asked.until = patience_for(std::ssize(asked.tokens) - asked.next);
  const bool there = look(asked, asked.next) == asked.next;
  if (there && asked.fetch.use_count() > 1) return;
  // Whoever asked went away; or there was no room, or the beginning left meanwhile: what follows would be of no use.
  if (!there) ++stats_.unanswered;
  give_up(rows.id);
}

void PeerCache::part(const PeerPart& part) {
  stats_.received_bytes += static_cast<uint64_t>(kv_bytes(part));
  Asked* const of = asked_by(part.id);
  if (!of) return;
  Asked& asked = *of;
  const auto T = std::ssize(asked.tokens);
  const bool fits = part.size <= T * (token_bytes_ + int64_t{sizeof(int32_t)}) + kMostBesideKv;
  if (asked.method.empty() || part.offset != std::ssize(asked.bytes) || !fits || asked.next == T) {
    link_.drop();  // lost() follows
    return;
  }
  asked.bytes.insert(asked.bytes.end(), part.bytes.begin(), part.bytes.end());
  asked.until = patience_for(T);
  if (std::ssize(asked.bytes) == part.size) finish_session(asked);
  if (asked.fetch.use_count() > 1) return;
  give_up(part.id);  // whoever asked went away
}

// All of it is here. Its end follows.
void PeerCache::finish_session(Asked& asked) {
  asked.next = static_cast<int32_t>(asked.tokens.size());
  stats_.received_tokens += asked.tokens.size();
  asked.fetch->session = std::make_shared<const ExportedSession>(ExportedSession{std::move(asked.bytes), 0, 0});
}

// How much of its first tokens memory has. A long prompt comes in hundreds of messages: it is hashed once.
int32_t PeerCache::look(Asked& asked, int32_t limit) {
  asked.reach = end_of(cache_.index().find_prefix(asked.tokens, asked.domain, limit, asked.reach));
  return asked.reach.pos;
}

// What memory has of it meanwhile is not kept twice. What no longer continues anything here is of no use.
void PeerCache::adopt(Asked& asked, const PeerRows& rows) {
  Run wanted{rows.pos, rows.pos + rows.count};
  const std::span<const int32_t> tokens = asked.tokens;
  const int32_t reach = look(asked, wanted.end);
  if (reach < wanted.begin || reach >= wanted.end) return;
  wanted.begin = reach;
  const int64_t pages = pages_for_rows(cache_.store(), wanted);
  if (!hooks_.make_room(pages, asked.owner)) return;
  const auto table = table_for_rows(cache_.store(), asked.ropes, wanted);
  table->give_to(asked.owner);
  copy_rows_in(*table, {rows.pos, rows.pos + rows.count}, rows.values, wanted);
  ContentCache::Returned returned;
  returned.tokens = tokens.subspan(static_cast<size_t>(wanted.begin), static_cast<size_t>(wanted.size()));
  returned.domain = asked.domain;
  returned.exact = true;
  returned.continues = tokens.first(static_cast<size_t>(wanted.begin));
  returned.reach = asked.reach;
  returned.marks = whole_within(asked.marks, wanted);
  const SegmentId id = cache_.adopt(*table, wanted, returned);
  if (id == 0) return;
  asked.fetch->segments.push_back(id);
  stats_.received_tokens += static_cast<uint64_t>(wanted.size());
}

void PeerCache::end(const PeerEnd& end) {
  const auto it = asked_.find(end.id);
  if (it == asked_.end()) return;
  const bool whole = it->second.next == std::ssize(it->second.tokens);
  if (end.how == PeerEnding::kWhole && !whole) link_.drop();
  if (!whole) ++stats_.unanswered;
  if (whole) rest_ = {};
  done(end.id);
}

// The connection ended.
void PeerCache::lost() {
  not_answered_.clear();  // it may come back with another map
  stats_.unanswered += asked_.size();
  while (!asked_.empty()) done(asked_.begin()->first);
}

void PeerCache::give_up(uint64_t id) {
  done(id);  // first: also where memory ends
  link_.cancel(id);
}

void PeerCache::done(uint64_t id) {
  const auto it = asked_.find(id);
  it->second.fetch->done = true;
  asked_.erase(it);
}

bool PeerCache::give_up_late() {
  std::vector<uint64_t> late, left;
  for (const auto& [id, asked] : asked_) {  // nothing of a session comes that would tell before all is computed
    if (!asked.method.empty() && asked.fetch.use_count() == 1) left.push_back(id);
  }
  for (const uint64_t id : left) give_up(id);
  for (const auto& [id, asked] : asked_) {
    if (Clock::now() >= asked.until) late.push_back(id);
  }
  for (const uint64_t id : late) {
    asked_.at(id).fetch->late = true;
    ++stats_.late;
    give_up(id);
  }
  if (!late.empty()) {
    rest_ = std::min(rest_ == rest_.zero() ? kFirstRest : 2 * rest_, kLongestRest);
    asks_from_ = Clock::now() + rest_;
  }
  return !late.empty();
}

std::optional<Clock::time_point> PeerCache::patience_ends() const {
  std::optional<Clock::time_point> out;
  for (const auto& [id, asked] : asked_) out = std::min(out.value_or(asked.until), asked.until);
  return out;
}

const PeerCounters& PeerCache::stats() {
  stats_.ready = link_.ready();
  stats_.failures = link_.failures();
  return stats_;
}

}  // namespace kvilt
