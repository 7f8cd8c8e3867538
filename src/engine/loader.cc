// engine/loader.cc: DiskCache's way back: what the tier has of a prompt is read and adopted.
// Idea:     only what the prompt needs is read, in chunks of an extent's size: the rest of its exact prefix, and pieces
//           that memory does not hold. A chunk is copied into the pool's pages while the next one is read; a part is
//           adopted when its last chunk is there. When all is there the request looks again, and finds it in memory.
#include <algorithm>
#include <cmath>
#include <new>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "engine/disk_cache.h"
#include "engine/mark_runs.h"
#include "kv/kv_rows.h"

namespace kvilt {
namespace {

// Of sorted, disjoint runs those that have something of `of`.
Runs touching(const Runs& runs, Run of) {
  const auto first = std::ranges::upper_bound(runs, of.begin, {}, &Run::end);
  return {first, std::ranges::lower_bound(first, runs.end(), of.end, {}, &Run::begin)};
}

}  // namespace

DomainId DiskCache::stored_domain(DomainId domain) {
  const Digest* digest = domain == 0 ? nullptr : cache_.index().domain_digest(domain);
  return digest ? index_->domain(*digest) : 0;
}

// A prompt has these: they, and what they continue, are the last to leave the tier. Memory answers for what it holds, and
// the tier would take what is always there for what nobody wants.
void DiskCache::use(std::span<const Piece> pieces) {
  constexpr int64_t kMost = 4096;  // at once, of a disk that hangs
  const auto now = Clock::now();
  const auto is_due = [&](const Piece& piece) {
    const Clock::time_point last = stored(piece.segment).used;
    return (last == Clock::time_point{} || now >= last + kUsedEvery) && !leaves(piece.segment);
  };
  if (std::ranges::none_of(pieces, is_due) || touching_.use_count() > kMost) return;
  try {
    std::vector<uint64_t> used;
    for (const Piece& piece : pieces) {
      if (is_due(piece)) used.push_back(piece.segment);
    }
    // The job holds a count of itself, and gives it back where it is dropped too.
    io_.write(
        [this, used, job = touching_] {
          for (const uint64_t id : used) tier_->touch(id);
        },
        0, {});
    for (const uint64_t id : used) stored(id).used = now;
  } catch (const std::bad_alloc&) {  // they only seem older than they are
  }
}

// The rest of the longest exact prefix, where that reaches further by a piece's length. It continues what memory has of
// the same namespace.
void DiskCache::add_prefix(const Question& q, const ContentCache::Found& found, std::vector<Part>& parts) {
  const auto limit = static_cast<int32_t>(q.prompt.size()) - 1;
  std::vector<Piece> chain;
  DomainId domain = 0;
  q.domains.each([&](const ContentDomains& of) {
    std::vector<Piece> stored = index_->find_prefix(q.prompt, stored_domain(of.exact), limit);
    if (end_of(stored).pos <= end_of(chain).pos) return;
    chain = std::move(stored);
    domain = of.exact;
  });
  if (!chain.empty()) use({&chain.back(), 1});
  if (end_of(chain).pos < found.layout.prefix + min_segment_) return;
  const int32_t known = std::min(found.exact.pos, end_of(cache_.index().find_prefix(q.prompt, domain, limit)).pos);
  for (const Piece& piece : chain) {
    const int32_t skip = std::max(0, known - piece.pos);
    if (skip >= piece.count) continue;
    if (!may_read(piece.segment)) return;
    parts.push_back({piece.segment, piece.segment_offset + skip, piece.count - skip, piece.pos + skip, domain, true});
  }
}

// Of the text behind the prefix what memory does not hold: clean copies, unless a mean serves there, then exact KV, then
// approximate.
void DiskCache::add_pieces(const Question& q, const ContentCache::Found& found, std::vector<Part>& parts) {
  const Runs marks = runs_of(q.marks);
  Runs have;
  const Runs marked = normalize(marks);
  const auto T = static_cast<int32_t>(q.prompt.size());
  int32_t from = found.layout.prefix;
  if (!parts.empty()) from = parts.back().pos + parts.back().count;
  for (const Run& run : found.layout.pieces) have.push_back(run);
  const auto add = [&](const Piece& piece, DomainId domain) {
    if (!may_read(piece.segment)) return;
    parts.push_back({piece.segment, piece.segment_offset, piece.count, piece.pos, domain, false});
    have.push_back({piece.pos, piece.pos + piece.count});
  };
  std::unordered_set<int32_t> clean;  // where clean ones begin, those that memory holds too
  std::vector<DomainId> where;
  q.domains.each([&](const ContentDomains& of) {
    for (const Piece& piece : cache_.index().find_clean(q.prompt, of.exact, marks)) clean.insert(piece.pos);
    where.push_back(of.exact);
  });
  for (const DomainId exact : where) {
    const std::vector<Piece> stored = index_->find_clean(q.prompt, stored_domain(exact), marks);
    use(stored);
    for (const Piece& piece : stored) {
      if (clean.contains(piece.pos) || piece.pos < from || piece.count < std::min(min_segment_, 8)) continue;
      // Nobody waits for what would not be used.
      if (q.wanted.seasoned && cache_.before_clean(q.prompt, found, {piece.pos, piece.pos + piece.count})) continue;
      add(piece, exact);
      clean.insert(piece.pos);
    }
  }
  if (q.wanted.clean_only) return;
  q.domains.each([&](const ContentDomains& of) { where.push_back(of.approximate); });
  for (const DomainId domain : where) {
    if (domain == 0) continue;
    have = normalize(std::move(have));
    const Runs known = have;  // the domain's pieces are disjoint
    const std::vector<Piece> stored = index_->find_pieces(q.prompt, from, stored_domain(domain), min_segment_, marks);
    use(stored);
    for (const Piece& piece : stored) {
      const Run all{piece.pos, piece.pos + piece.count};
      Runs lacking = subtract(Runs{all}, touching(known, all));
      if (!q.wanted.unmarked) lacking = intersect(lacking, touching(marked, all));
      for (const Run& run : lacking) {
        const auto mark = std::ranges::lower_bound(marks, run.begin, {}, &Run::begin);
        const bool whole = mark != marks.end() && mark->end <= run.end;
        if ((run.size() < min_segment_ && !whole) || run.size() < std::min(min_segment_, 8) || run.end == T) continue;
        add({piece.segment, piece.segment_offset + run.begin - piece.pos, run.size(), run.begin}, domain);
      }
    }
  }
}

std::vector<DiskCache::Part> DiskCache::missing(const Question& q, const ContentCache::Found& found) {
  std::vector<Part> parts;
  if (q.wanted.prefix && !q.wanted.make_clean) add_prefix(q, found, parts);
  const size_t prefix = parts.size();
  if (q.wanted.pieces) add_pieces(q, found, parts);
  if (parts.size() > prefix) {  // the policy has the last word on pieces
    PromptLayout would = found.layout;
    if (prefix > 0) would.prefix = parts[prefix - 1].pos + parts[prefix - 1].count;
    for (size_t i = prefix; i < parts.size(); ++i)
      would.pieces.push_back({parts[i].pos, parts[i].pos + parts[i].count});
    for (Run& piece : would.pieces) piece.begin = std::max(piece.begin, would.prefix);
    std::erase_if(would.pieces, [](const Run& piece) { return piece.begin >= piece.end; });
    std::ranges::sort(would.pieces, {}, &Run::begin);  // not joined: each is measured by itself
    would.shared_context.clear();
    if (q.wanted.look_alikes) ContentCache::measure_look_alikes(q.prompt, would);
    if (!q.uses(would)) parts.resize(prefix);
  }
  return parts;
}

// A request waits as long as computing would take, or a tenth of the tier's own patience where that is longer. For a disk
// it waits while that goes on, so long too, and at least as long as for one that hangs.
void DiskCache::begin_to_wait(Loading& loading) const {
  loading.began = Clock::now();
  if (reads_always_) return;
  int64_t tokens = 0;
  for (const Part& part : loading.parts) tokens += part.count;
  const std::chrono::duration<double> patience = sharing_ ? sharing_->patience : disk_patience_;
  if (pace_.known()) {
    const auto wait = std::max(pace_.time_for(tokens), sharing_ ? patience / 10 : patience);
    loading.at_most = loading.began + std::chrono::duration_cast<Clock::duration>(wait);
  } else if (sharing_) {
    loading.at_most = loading.began + std::chrono::duration_cast<Clock::duration>(patience);
  }
}

Clock::time_point DiskCache::ends(const Loading& loading) const {
  if (sharing_) return loading.at_most;
  return std::min(std::max(loading.began, moved_.load()) + disk_patience_, loading.at_most);
}

// A disk has not come back from what was given up: whoever asked it would wait in vain.
bool DiskCache::hangs() const {
  const bool moves = Clock::now() < moved_.load() + disk_patience_;  // then it is slow
  return !sharing_ && !moves && std::ranges::any_of(awaited_, [](const auto& loading) { return loading->fetch->late; });
}

// All chunks that hold a token of it are read whole.
int64_t DiskCache::bytes_of(const Part& part) const {
  const auto count = static_cast<int32_t>(index_->info(part.id).tokens.size());
  const int32_t first = part.offset / StoredPiece::kChunkTokens;
  const int32_t last = (part.offset + part.count - 1) / StoredPiece::kChunkTokens;
  return (chunk_run(last, count).end - chunk_run(first, count).begin) * token_bytes_;
}

// By what reading and computing took so far.
bool DiskCache::pays(const std::vector<Part>& parts) const {
  int64_t tokens = 0, bytes = reading_;
  for (const Part& part : parts) tokens += part.count, bytes += bytes_of(part);
  return reads_always_ || !pace_.known() || static_cast<double>(bytes) * read_s_ < pace_.time_for(tokens).count();
}

std::shared_ptr<const Fetch> DiskCache::fetch(const Question& q, const ContentCache::Found& found) {
  if (index_->segments() == 0 || (!q.wanted.prefix && !q.wanted.pieces) || !tier_->ready() || hangs()) return nullptr;
  std::vector<Part> parts = missing(q, found);
  if (parts.empty()) {
    ++stats_.misses;
    return nullptr;
  }
  for (const Part& part : parts) {  // somebody else waits for it already
    const auto other = fetches_.find(part.id);
    if (other == fetches_.end()) continue;
    if (auto fetch = other->second.lock(); fetch && !fetch->done && !fetch->left) return fetch;
  }
  if (!pays(parts)) {
    ++stats_.refused;
    // What was slow is tried again after a while, however many ask meanwhile.
    constexpr double kMost = 60;  // seconds at once: .3 of it is left
    const auto now = Clock::now(), last = std::exchange(refused_at_, now);
    if (last != Clock::time_point{}) read_s_ = std::pow(0.98, std::min(seconds(last, now), kMost)) * read_s_;
    return nullptr;
  }
  return begin(q, std::move(parts));
}

std::shared_ptr<const Fetch> DiskCache::begin(const Question& q, std::vector<Part> parts) {
  auto loading = std::make_shared<Loading>(Loading{.prompt = {q.prompt.begin(), q.prompt.end()},
                                                   .parts = {},
                                                   .ropes = q.ropes,
                                                   .epoch = epoch_,
                                                   .fetch = std::make_shared<Fetch>(),
                                                   .owner = q.owner});
  const auto fetch = loading->fetch;  // held before the I/O thread looks whether anybody does
  ++loading_;
  try {
    if (queue(q, parts, loading)) return fetch;
  } catch (const std::bad_alloc&) {
    if (layered_ == loading) layered_.reset();
    loading->layered.reset();
    fetch->coming = {};
  }
  finished(loading);
  return nullptr;
}

// False: others read as much as may be read at once. Where memory ends, nothing of it is queued.
bool DiskCache::queue(const Question& q, const std::vector<Part>& parts, const std::shared_ptr<Loading>& loading) {
  for (const Part& part : parts) {
    const int64_t bytes = bytes_of(part);
    if (reading_ > 0 && reading_ + bytes > kReadAhead) break;
    loading->parts.push_back(part);
    loading->parts.back().serial = stored(part.id).serial;
    reading_ += bytes;
    loading->bytes += bytes;
    fetches_[part.id] = loading->fetch;
  }
  if (loading->parts.empty()) return false;
  refused_at_ = Clock::now();
  begin_to_wait(*loading);
  loading->fetch->remote = sharing_.has_value();
  if (!reads_always_) awaited_.push_back(loading);
  if (may_layer(q, *loading) && reserve(*loading)) {
    layered_ = loading;
    io_.read([this, loading] { read_layers(loading); });
  } else {
    io_.read([this, loading] { read_parts(loading); });
  }
  ++stats_.loads;
  return true;
}

// The I/O thread.
void DiskCache::read_parts(const std::shared_ptr<Loading>& loading) {
  try {
    for (const Part& part : loading->parts) read(loading, part);
  } catch (const std::bad_alloc&) {  // what did not come is computed
  }
  say([this, loading] { finished(loading); });
}

// The I/O thread. Each chunk goes on as soon as it is there: it is copied while the next one is read. Where all who
// waited are gone, or will not wait longer, it ends there.
void DiskCache::read(const std::shared_ptr<Loading>& loading, const Part& part) {
  const auto start = Clock::now();
  const auto arriving = std::make_shared<Arriving>();
  const int32_t first = part.offset / StoredPiece::kChunkTokens;
  const int32_t last = (part.offset + part.count - 1) / StoredPiece::kChunkTokens;
  arriving->end = first * StoredPiece::kChunkTokens;
  int64_t bytes = 0;
  std::optional<Error> failed;
  try {
    const auto wanted = [&] {
      if (loading->fetch.use_count() == 1) loading->fetch->left = true;
      return !arriving->refused && !loading->fetch->left && (!sharing_ || Clock::now() < loading->at_most);
    };
    for (int32_t i = first; i <= last && wanted(); ++i) {
      auto chunk = std::make_shared<std::vector<std::byte>>(buffers_.take());
      const Status got = tier_->get(part.id, i, *chunk);
      moved_ = Clock::now();
      if (!got.ok()) {
        failed = got.error();
        break;
      }
      bytes += std::ssize(*chunk);
      hooks_.post_unheard([this, loading, part, arriving, i, chunk] {
        place(*loading, part, i, *chunk, arriving);
        buffers_.give(std::move(*chunk));
      });
    }
    if (!failed && wanted()) read_annexes(part.id, *arriving);
    if (bytes > 0) tier_->touch(part.id);
  } catch (const std::bad_alloc&) {
    failed = Error{Code::kExhausted, "no memory is left to read a cached piece"};
  }
  count();
  learn_pace(start, bytes);
  say([this, loading, part, arriving, failed] {
    const auto table = std::move(arriving->table);  // it ends here: the pool is the engine thread's
    arriving_.reset();
    failed ? refuse(part, *failed) : adopt(*loading, part, *arriving, table.get());
  });
}

// The I/O thread.
void DiskCache::learn_pace(Clock::time_point start, int64_t bytes) {
  if (bytes > 0) read_s_ = 0.7 * read_s_ + 0.3 * seconds(start, Clock::now()) / static_cast<double>(bytes);
}

// Computed instead: what came of the part before it failed is dropped with it.
void DiskCache::refuse(const Part& part, const Error& why) {
  if (why.code != Code::kNotFound) {
    ++stats_.errors;
    not_read_.warn(why.message);
  }
  if (why.code == Code::kNotFound || why.code == Code::kCorrupt) forget(part.id);
}

// And not another piece under its id.
bool DiskCache::is_there(const Part& part) const {
  const Stored* const known = stored_.find(part.id);
  return known && known->serial == part.serial && !leaves(part.id);
}

// Of the stored piece's tokens up to `end`, those that memory lacks. Empty: they are of no use any more.
Run DiskCache::lacking(Loading& loading, const Part& part, int32_t end) const {
  if (loading.epoch != epoch_ || !is_there(part)) return {};
  Run wanted{part.offset, std::min(part.offset + part.count, end)};
  if (wanted.size() < std::min(min_segment_, part.count)) return {};
  if (part.prefix) {
    const int32_t all = part.pos + part.count;
    loading.reach = end_of(cache_.index().find_prefix(loading.prompt, part.domain, all, loading.reach));
    wanted.begin += std::max(0, loading.reach.pos - part.pos);
  }
  return wanted.begin < wanted.end ? wanted : Run{};
}

// One chunk is there. What is no longer wanted, or has no room, gives its pages back at once.
void DiskCache::place(Loading& loading, const Part& part, int32_t chunk, std::span<const std::byte> bytes,
                      const std::shared_ptr<Arriving>& to) {
  if (to->refused || (!sharing_ && loading.fetch->late) || std::exchange(to->gap, true)) return;
  to->refused = !copy_in(loading, part, chunk, bytes, *to);
  to->gap = false;
  arriving_ = to;
  arriving_for_ = &loading;
  if (to->refused) give_way();
}

// The part's first chunk takes the pages of all of them.
bool DiskCache::copy_in(Loading& loading, const Part& part, int32_t chunk, std::span<const std::byte> bytes,
                        Arriving& to) {
  if (!to.table) {
    to.wanted = lacking(loading, part, part.offset + part.count);
    if (to.wanted.size() == 0) return false;
    to.base = stored(part.id).pos;
    const Run positions{to.base + to.wanted.begin, to.base + to.wanted.end};
    const int64_t pages = pages_for_rows(cache_.store(), positions);
    if (!hooks_.make_room(pages, loading.owner)) return false;
    to.table = table_for_rows(cache_.store(), loading.ropes, positions);
    to.table->give_to(loading.owner);
  }
  if (!is_there(part)) return false;
  const Run run = chunk_run(chunk, static_cast<int32_t>(index_->info(part.id).tokens.size()));
  if (run.begin != to.end || std::ssize(bytes) != run.size() * token_bytes_) return false;
  const Run here{to.base + std::max(run.begin, to.wanted.begin), to.base + std::min(run.end, to.wanted.end)};
  if (here.size() > 0) copy_rows_in(*to.table, {to.base + run.begin, to.base + run.end}, bytes, here);
  to.end = run.end;
  return true;
}

bool DiskCache::give_way() {
  if (drop_layered(false)) return true;
  const auto given = std::exchange(arriving_, nullptr);
  if (!given || !given->table) return false;
  given->refused = true;
  given->table.reset();
  return true;
}

// A part is there, as far as it came in time. What memory has of it meanwhile is not kept twice.
void DiskCache::adopt(Loading& loading, const Part& part, const Arriving& from, const PageTable* table) {
  if (!table || from.refused || from.gap) return;
  Run wanted = lacking(loading, part, from.end);
  wanted.begin = std::max(wanted.begin, from.wanted.begin);  // what memory had when the first chunk came was not copied
  if (wanted.begin >= wanted.end) return;
  const Run positions{from.base + wanted.begin, from.base + wanted.end};
  ContentCache::Returned returned;
  const SegmentInfo& info = index_->info(part.id);
  returned.tokens = std::span(info.tokens).subspan(wanted.begin, wanted.size());
  returned.domain = part.domain;
  returned.exact = info.exact;
  if (part.prefix) {
    returned.continues = std::span(loading.prompt).first(part.pos + wanted.begin - part.offset);
    returned.reach = loading.reach;
  }
  returned.marks = whole_within(index_->marks(part.id), wanted);
  returned.clean = whole_within(index_->clean_notes(part.id), wanted);
  const SegmentId id = cache_.adopt(*table, positions, returned);
  if (id == 0) return;
  attach_annexes(part, id, wanted, from, loading.owner);
  if (part.prefix && cache_.index().is_prefix(id)) mark_stored(id, annexes_of(id).size());
  loading.fetch->segments.push_back(id);
  stats_.loaded_tokens += static_cast<uint64_t>(wanted.size());
  stats_.loaded_bytes += static_cast<uint64_t>(wanted.size() * token_bytes_);
}

bool DiskCache::give_up_late() {
  bool late = false;
  for (const auto& loading : awaited_) {
    if (loading->fetch->done || Clock::now() < ends(*loading)) continue;
    loading->fetch->done = loading->fetch->late = late = true;
    ++stats_.late;
    if (!sharing_) drop(loading);
  }
  return late;
}

// Of a disk that hangs nothing is wanted that it gives later. The I/O thread reads into buffers of its own, and copies
// into coming pages only under the mutex that says whether they are gone: so they are free now.
void DiskCache::drop(const std::shared_ptr<Loading>& loading) {
  loading->fetch->left = true;
  hangs_.warn("what was read from it is computed instead");
  if (layered_ == loading) {
    drop_layered(true);
  } else if (arriving_ && arriving_for_ == loading.get()) {  // one before it may be in time
    const auto given = std::exchange(arriving_, nullptr);
    given->refused = true;
    given->table.reset();
  }
}

std::optional<Clock::time_point> DiskCache::patience_ends() const {
  std::optional<Clock::time_point> out;
  for (const auto& loading : awaited_) {
    if (!loading->fetch->done) out = std::min(out.value_or(ends(*loading)), ends(*loading));
  }
  return out;
}

void DiskCache::finished(const std::shared_ptr<Loading>& loading) {
  loading->fetch->done = true;
  reading_ -= loading->bytes;
  if (--loading_ == 0) buffers_.clear();
  std::erase(awaited_, loading);
  for (const Part& part : loading->parts) {
    if (const auto it = fetches_.find(part.id); it != fetches_.end() && it->second.lock() == loading->fetch)
      fetches_.erase(it);
  }
  update();
}

}  // namespace kvilt
