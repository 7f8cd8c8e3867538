#include "engine/disk_cache.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "tier/piece_record.h"

namespace kvilt {
namespace {

int64_t queue_bytes(const PageStore& store) {
  const int64_t pool = store.pages() * store.shape().page_bytes();
  return std::clamp<int64_t>(pool / 8, int64_t{16} << 20, int64_t{256} << 20);
}

std::unique_ptr<ContentIndex> empty_index(const HashSecret& secret, int min_segment) {
  return std::make_unique<ContentIndex>(secret, ContentIndexOptions::for_min_tokens(min_segment));
}

}  // namespace

Result<std::unique_ptr<DiskCache>> DiskCache::open(std::unique_ptr<Tier> tier, const HashSecret& secret,
                                                   const Digest& maker, ContentCache& cache, int min_segment) {
  std::unique_ptr<DiskCache> out(new DiskCache(std::move(tier), secret, maker, cache, min_segment));
  KVILT_TRY(out->announce());
  return out;
}

DiskCache::DiskCache(std::unique_ptr<Tier> tier, const HashSecret& secret, const Digest& maker, ContentCache& cache,
                     int min_segment)
    : tier_(std::move(tier)),
      sharing_(tier_->sharing()),
      secret_(secret),
      maker_(maker),
      cache_(cache),
      min_segment_(min_segment),
      token_bytes_(cache.store().shape().token_bytes()),
      index_(empty_index(secret, min_segment)),
      io_(queue_bytes(cache.store())) {}

DiskCache::~DiskCache() = default;

Status DiskCache::announce() {
  KVILT_ASSIGN(std::vector<StoredPiece> known, tier_->known(maker_, static_cast<uint32_t>(token_bytes_)));
  for (StoredPiece& piece : known) announce(piece);
  count();
  update();
  return {};
}

void DiskCache::announce(StoredPiece& piece) {
  SegmentInfo info{std::move(piece.tokens), index_->domain(piece.domain), piece.exact, piece.parent,
                   piece.parent_tokens};
  if (piece.exact && !piece.prefix) info.found_as = FoundAs::kPieces;
  const uint64_t id = piece.id;
  if (info.parent == 0 ? piece.pos != 0 : !continues(piece)) {
    if (piece.exact) info.found_as = FoundAs::kPieces;
    info.parent = 0;
    info.parent_tokens = 0;
  }
  // First: what the index has is here, also where memory ends.
  stored_.at(id) = {.pos = piece.pos, .behind = piece.behind, .serial = ++announced_, .blocks = piece.blocks};
  if (!index_->insert(id, std::move(info))) {
    index_->erase(id);
    stored_.erase(id);
    return;
  }
  for (const Run& mark : piece.marks) index_->add_mark(id, mark.begin, mark.end);
  for (const CleanNote& note : piece.clean) index_->add_clean(id, note);
}

// REQUIRES: index_ has it.
DiskCache::Stored& DiskCache::stored(uint64_t id) {
  Stored* const known = stored_.find(id);
  CHECK(known);
  return *known;
}

// What it continues may have been removed, or be another piece under the same id.
bool DiskCache::continues(const StoredPiece& piece) {
  if (!index_->contains(piece.parent)) return false;
  const auto count = static_cast<int32_t>(index_->info(piece.parent).tokens.size());
  return piece.parent_tokens > 0 && piece.parent_tokens <= count &&
         stored(piece.parent).pos + piece.parent_tokens == piece.pos &&
         piece.behind == behind(piece.parent, piece.parent_tokens);
}

// Its tokens are hashed once, also where many continue it at one place: a writer asks, and whoever announces.
Digest DiskCache::behind(uint64_t parent, int32_t tokens) {
  Stored& from = stored(parent);
  if (from.ends_at != tokens) {
    const std::span<const int32_t> all = index_->info(parent).tokens;
    from.end = digest_behind(secret_, from.behind, all.first(static_cast<size_t>(tokens)));
    from.ends_at = tokens;
    tokens_hashed_ += tokens;
  }
  return from.end;
}

void DiskCache::forget(uint64_t id) {
  ++forgotten_;
  index_->erase(id);
  stored_.erase(id);
  queued_.erase(id);
  whole_.clear();
}

void DiskCache::attach(Hooks hooks) {
  hooks_ = std::move(hooks);
  touch_pages();
  if (sharing_) io_.every(sharing_->news_every, [this] { take_news(); });
}

// What is read first after a start goes into pages that nobody has touched, and these cost the I/O thread as much as all
// else of a read. So some get their memory before anybody asks; between two parts a read may run.
void DiskCache::touch_pages() {
  constexpr int64_t kTouched = int64_t{256} << 20, kPart = int64_t{8} << 20;
  const PageStore& store = cache_.store();
  const int64_t end = std::min(kTouched, store.pages() * store.shape().page_bytes());
  if (index_->segments() == 0) return;
  try {
    for (int64_t at = 0; at < end; at += kPart)
      io_.write([&store, at, end] { store.touch(at, std::min(at + kPart, end)); }, 0, {});
  } catch (const std::bad_alloc&) {  // they are touched when they are written
  }
}

// The I/O thread.
void DiskCache::take_news() {
  const auto heard = std::make_shared<Heard>();
  Tier::News& news = heard->news;
  const bool was_ready = tier_->ready();
  try {
    news = tier_->news();
  } catch (const std::bad_alloc&) {
    news.errors = 1;  // a tier that could not say it says it again
  }
  count();
  const bool ready = tier_->ready();
  if (news.empty() && ready == was_ready) return;
  std::ranges::sort(news.removed);  // not on the engine thread: it may be all that there was
  heard->cleared = cleared_;
  heard->came_back = news.came_back || (ready && !was_ready);
  say([this, heard] { told(heard); });
}

void DiskCache::told(const std::shared_ptr<Heard>& heard) {
  stats_.errors += static_cast<uint64_t>(heard->news.errors);
  unheard_.push_back(heard);
  if (!hears_) hear();
}

// In parts, since what others stored or removed may be much, and between two parts requests go on: in the order in
// which it was told, what went before what came. What was told before a clear() is gone.
void DiskCache::hear() {
  constexpr size_t kTokens = size_t{1} << 15;  // below 5 ms
  hears_ = false;
  const bool left = anything_leaves();
  bool enters = false;
  size_t pieces = 0, tokens = 0;
  const auto room = [&] { return pieces < kHeardAtOnce && tokens < kTokens; };
  while (!unheard_.empty() && room()) {
    const std::shared_ptr<Heard> now = unheard_.front();
    const std::vector<uint64_t>& removed = now->news.removed;
    std::vector<StoredPiece>& stored = now->news.stored;
    for (; now->forgotten < removed.size() && room(); ++pieces) {
      const uint64_t id = removed[now->forgotten++];
      if (index_->contains(id)) tokens += index_->info(id).tokens.size();
      forget(id);
    }
    for (; now->taken < stored.size() && room(); ++pieces) {
      StoredPiece& piece = stored[now->taken++];
      tokens += piece.tokens.size();
      if (now->cleared == epoch_ && !index_->contains(piece.id)) announce(piece);
    }
    if (now->forgotten < removed.size() || now->taken < stored.size()) break;
    if (now->came_back) enter_all(), enters = true;
    unheard_.pop_front();
  }
  if (!unheard_.empty()) {
    hooks_.post([this] { hear(); });
    hears_ = true;  // after it: where memory ends nobody was told to go on
  }
  enters || (left && !anything_leaves()) ? store_entered() : update();
}

bool DiskCache::anything_leaves() const {
  return std::ranges::any_of(unheard_, [](const auto& heard) { return !heard->leaving().empty(); });
}

// It was removed and is not forgotten yet: under its id the tier may have another piece by now.
bool DiskCache::leaves(uint64_t id) const {
  return std::ranges::any_of(unheard_,
                             [id](const auto& heard) { return std::ranges::binary_search(heard->leaving(), id); });
}

// What the tier says of itself. The I/O thread.
void DiskCache::count() {
  bytes_ = tier_->bytes();
  pieces_ = tier_->pieces();
}

void DiskCache::add_parts(std::vector<TenantPool>& tenants) const {
  for (TenantPool& tenant : tenants) {
    const Tier::Part part = tier_->part_of(tenant.tenant);
    tenant.disk_bytes += part.bytes;
    tenant.disk_share_bytes += part.share;
  }
}

void DiskCache::finish() {
  if (hooks_.post) store_all();
  io_.finish();
  update();
}

// What was known may be much: the I/O thread gives its memory back.
void DiskCache::clear() {
  const auto known = std::make_shared<std::pair<std::unique_ptr<ContentIndex>, StepMap<Stored>>>();
  known->first = empty_index(secret_, min_segment_);
  ++epoch_;
  drop_layered(true);
  give_way();
  queued_bytes_ -= io_.drop_writes();
  entered_.clear();
  queued_.clear();
  whole_.clear();
  std::swap(known->first, index_);
  std::swap(known->second, stored_);
  io_.read([this, known] {
    bool failed = true;
    try {
      failed = !tier_->clear().ok();
    } catch (const std::bad_alloc&) {
    }
    ++cleared_;
    count();
    say([this, failed] {
      stats_.errors += failed ? 1 : 0;
      update();
    });
  });
  update();
}

void DiskCache::update() {
  stats_.bytes = bytes_;
  stats_.pieces = pieces_;
  stats_.tokens = static_cast<int64_t>(index_->tokens());
  stats_.queued_bytes = queued_bytes_;
  stats_.ready = tier_->ready();
}

}  // namespace kvilt
