// index/content_index.cc: see content_index.h.
#include "index/content_index.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace kvilt {
namespace {
uint64_t mask_of(int bits) {
  CHECK(bits >= 0 && bits <= 64);
  return bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
}
}  // namespace

ContentIndexOptions ContentIndexOptions::for_min_tokens(int32_t min_tokens) {
  return {.window = std::clamp(min_tokens / 2 + min_tokens % 2, 4, 16)};
}

ContentIndex::ContentIndex(const HashSecret& secret, ContentIndexOptions options)
    : domains_(secret),
      segments_(secret, options.window, mask_of(options.key_bits)),
      chains_(secret, mask_of(options.key_bits)),
      clean_(secret),
      secret_(secret),
      key_mask_(mask_of(options.key_bits)) {
  CHECK(options.window >= 4 && options.window <= 64);
}

DomainId ContentIndex::domain(std::string_view fingerprint, std::string_view name_space, std::string_view salt,
                              std::string_view tenant) {
  return domains_.id(fingerprint, name_space, salt, tenant);
}

void ContentIndex::count_seasoned(const SegmentInfo& info, int sign) {
  if (info.contexts == 0) return;
  seasoned_.by_contexts[std::min<size_t>(static_cast<size_t>(info.contexts), seasoned_.by_contexts.size() - 1)] += sign;
  seasoned_.tokens += sign * std::ssize(info.tokens);
}

ToldDomain ContentIndex::told_domain(const SegmentInfo& info) const {
  ToldDomain told{.open = domains_.open(info.domain), .exact = info.exact};
  std::memcpy(&told.digest, domains_.digest(info.domain)->data(), sizeof told.digest);
  return told;
}

bool ContentIndex::tell_more(int64_t tokens) {
  return teller_.tell(table_, chains_, tokens,
                      [this](const SegmentRecord& segment) { return told_domain(segment.info); });
}

std::vector<std::pair<uint64_t, int32_t>> ContentIndex::block_keys(SegmentId id, Run tokens) const {
  const uint32_t slot = table_.find(id);
  if (slot == kNoSegment) return {};
  return chains_.keys(table_, slot, tokens);
}

std::vector<uint64_t> ContentIndex::block_keys() const {
  std::vector<uint64_t> keys;
  table_.each_by_id([&](uint32_t slot) {
    if (table_[slot].chain.start < 0) return;
    const BlockChanges blocks = chains_.blocks(table_, slot);
    keys.insert(keys.end(), blocks.keys.begin(), blocks.keys.end());
  });
  std::ranges::sort(keys);
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

bool ContentIndex::insert(SegmentId id, SegmentInfo info) {
  CHECK(info.parent_tokens >= 0);
  const uint32_t slot = table_.add(id, std::move(info));
  SegmentRecord& segment = table_[slot];
  tokens_ += segment.info.tokens.size();
  count_seasoned(segment.info, 1);
  const Digest* digest = domains_.digest(segment.info.domain);
  if (digest == nullptr) return false;
  segment.indexed = true;
  domains_.hold(segment.info.domain);
  if (segment.info.found_as != FoundAs::kChain) segments_.insert(table_, slot, *digest);
  if (segment.info.found_as != FoundAs::kChain && near_) near_->insert(table_, slot, *digest);
  if (segment.info.found_as != FoundAs::kChain && continuations_) continuations_->insert(table_, slot);
  BlockChanges changes;
  if (segment.info.in_tree()) chains_.insert(table_, slot, *digest, teller_.on() ? &changes : nullptr);
  if (teller_.on()) teller_.inserted(told_domain(segment.info), table_, chains_, slot, changes);
  return segment.info.found_as != FoundAs::kChain || segment.chain.start >= 0;
}

std::vector<SegmentId> ContentIndex::erase(SegmentId id) {
  std::vector<SegmentId> left;
  const uint32_t slot = table_.find(id);
  if (slot == kNoSegment) return left;
  SegmentRecord& segment = table_[slot];
  tokens_ -= segment.info.tokens.size();
  count_seasoned(segment.info, -1);
  if (segment.indexed) {
    const Digest& digest = *domains_.digest(segment.info.domain);
    if (segment.info.found_as != FoundAs::kChain) segments_.erase(table_, slot, digest);
    if (segment.info.found_as != FoundAs::kChain && near_) near_->erase(table_, slot, digest);
    BlockChanges changes;
    left = chains_.erase(table_, slot, teller_.on() ? &changes : nullptr);
    if (teller_.on()) teller_.removed(told_domain(segment.info), segment, changes);
    domains_.release(segment.info.domain);
  }
  clean_.erase(id);
  table_.remove(slot);
  return left;
}

std::vector<SegmentId> ContentIndex::truncate(SegmentId id, int32_t tokens) {
  const uint32_t slot = table_.find(id);
  CHECK(slot != kNoSegment && tokens > 0 && tokens <= table_[slot].size());
  SegmentRecord& segment = table_[slot];
  tokens_ -= segment.info.tokens.size() - static_cast<size_t>(tokens);
  const bool pieces = segment.indexed && segment.info.found_as != FoundAs::kChain;
  const Digest* digest = domains_.digest(segment.info.domain);
  clean_.truncate(id, tokens);  // a copy that was cut would hide the whole ones
  if (pieces) segments_.erase_end(table_, slot, *digest, tokens);
  if (pieces && near_) near_->truncate(table_, slot, *digest, tokens);
  count_seasoned(segment.info, -1);
  BlockChanges changes;
  const bool tells = teller_.on() && segment.indexed;
  std::vector<SegmentId> left = chains_.truncate(table_, slot, tokens, tells ? &changes : nullptr);
  if (tells) teller_.removed(told_domain(segment.info), segment, changes);
  count_seasoned(segment.info, 1);
  if (pieces) segments_.insert(table_, slot, *digest);
  if (tells && segment.chain.start < 0) teller_.inserted(told_domain(segment.info), table_, chains_, slot, {});
  return left;
}

// visit(tokens) until it says false: of the text before the piece where its KV was computed what is in one segment, the
// last ones first. Whether it went back to position 0.
template <class Visit>
bool ContentIndex::each_before(const Piece& piece, Visit visit) const {
  SegmentId id = piece.segment;
  for (int32_t end = piece.segment_offset;;) {
    const uint32_t slot = table_.find(id);
    if (slot == kNoSegment || end > table_.text(slot).size) return false;  // what it continued has left
    if (!visit(table_.text(slot).before(end))) return false;
    const SegmentInfo& info = table_[slot].info;
    if (!info.exact || info.found_as != FoundAs::kBoth) return false;
    if (info.parent == 0) return true;
    id = info.parent;
    end = info.parent_tokens;
  }
}

int32_t ContentIndex::shared_context(std::span<const int32_t> prompt, const Piece& piece, int32_t limit) const {
  int32_t pos = piece.pos;
  const bool whole = each_before(piece, [&](std::span<const int32_t> text) {
    if (piece.pos - pos >= limit) return false;
    const int32_t same = common_suffix(text, prompt.first(static_cast<size_t>(pos)));
    pos -= same;
    return same == std::ssize(text);
  });
  return whole && pos == 0 ? INT32_MAX : piece.pos - pos;
}

bool ContentIndex::same_beginning(std::span<const int32_t> prompt, const Piece& piece, int32_t apart) const {
  int64_t before = 0;
  const bool known = each_before(piece, [&](std::span<const int32_t> text) {
    before += std::ssize(text);
    return before <= int64_t{piece.pos} + apart;
  });
  const int64_t same = std::max<int64_t>(std::max<int64_t>(before, piece.pos) - apart, apart);
  if (!known || same > std::min<int64_t>(before, piece.pos)) return false;
  int64_t at = before;
  return each_before(piece, [&](std::span<const int32_t> text) {
    at -= std::ssize(text);
    const int64_t count = std::min<int64_t>(same - at, std::ssize(text));
    return count <= 0 ||
           common_suffix(text.first(static_cast<size_t>(count)),
                         prompt.first(static_cast<size_t>(at + count))) == count;  // its end differs first
  });
}

const SegmentInfo& ContentIndex::info(SegmentId id) const {
  const uint32_t slot = table_.find(id);
  CHECK(slot != kNoSegment);
  return table_[slot].info;
}

Runs ContentIndex::marks(SegmentId id) const {
  const uint32_t slot = table_.find(id);
  CHECK(slot != kNoSegment);
  Runs out;
  for (const MarkEntry& mark : table_[slot].marks) out.push_back({mark.begin, mark.end});
  return out;
}

void ContentIndex::add_mark(SegmentId id, int32_t begin, int32_t end) {
  const uint32_t slot = table_.find(id);
  CHECK(slot != kNoSegment);
  if (!table_[slot].indexed) return;
  segments_.add_mark(table_, slot, *domains_.digest(table_[slot].info.domain), {begin, end});
}

void ContentIndex::add_clean(SegmentId id, int32_t offset, std::span<const int32_t> prompt, Run mark) {
  const uint32_t slot = table_.find(id);
  CHECK(slot != kNoSegment && offset >= 0 && offset + mark.size() <= table_[slot].size());
  if (table_[slot].indexed) clean_.add(table_[slot].info.domain, prompt, mark, id, offset);
}

void ContentIndex::add_clean(SegmentId id, const CleanNote& note) {
  const uint32_t slot = table_.find(id);
  CHECK(slot != kNoSegment && note.tokens.begin >= 0 && note.tokens.end <= table_[slot].size());
  const SegmentInfo& info = table_[slot].info;
  const auto ids = std::span(info.tokens).subspan(note.tokens.begin, note.tokens.size());
  if (table_[slot].indexed) clean_.add(info.domain, ids, note, id);
}

std::vector<CleanNote> ContentIndex::clean_notes(SegmentId id) const { return clean_.notes(id); }

std::vector<Piece> ContentIndex::find_clean(std::span<const int32_t> prompt, DomainId domain,
                                            std::span<const Run> marks) const {
  std::vector<Piece> pieces = clean_.find(domain, prompt, marks);
  std::erase_if(pieces, [&](const Piece& piece) {
    const uint32_t slot = table_.find(piece.segment);
    if (slot == kNoSegment || table_[slot].info.domain != domain) return true;
    const SegmentText& text = table_.text(slot);
    return common_prefix(text.from(piece.segment_offset), prompt.subspan(piece.pos, piece.count)) < piece.count;
  });
  return pieces;
}

std::vector<Piece> ContentIndex::find_prefix(std::span<const int32_t> prompt, DomainId domain, int32_t limit,
                                             const ChainEnd& from, SearchCost* cost) const {
  const Digest* digest = domains_.digest(domain);
  if (digest == nullptr || limit <= 0) return {};
  SearchCost own;
  return chains_.find(table_, prompt.first(std::min(prompt.size(), static_cast<size_t>(limit))), domain, *digest, from,
                      cost != nullptr ? *cost : own);
}

std::vector<Piece> ContentIndex::find_pieces(std::span<const int32_t> prompt, int32_t from, DomainId domain,
                                             int32_t min_tokens, std::span<const Run> marks, SearchCost* cost) const {
  const Digest* digest = domains_.digest(domain);
  from = std::max(from, 0);
  min_tokens = std::max(min_tokens, 1);
  if (digest == nullptr || static_cast<size_t>(from) >= prompt.size()) return {};
  SearchCost own;
  const SegmentIndex::Query query{prompt, from, domain, digest, min_tokens, marks};
  return pieces_of(segments_.find(table_, query, cost != nullptr ? *cost : own), min_tokens);
}

std::vector<Piece> ContentIndex::pieces_of(std::vector<Candidate> candidates, int32_t least) const {
  std::vector<Piece> pieces;
  for (const Candidate& c : choose_coverage(std::move(candidates), least)) {
    pieces.push_back({table_[c.segment].id, c.offset, c.end - c.begin, c.begin});
  }
  return pieces;
}

void ContentIndex::keep_near() {
  if (near_) return;
  near_.emplace(secret_, key_mask_);
  near_left_ = table_.slots();
}

bool ContentIndex::near_more(int64_t tokens) {
  constexpr int64_t kSlot = 16;  // a slot costs as much as so many tokens at most
  for (; near_left_ > 0 && tokens > 0; --near_left_) {
    const uint32_t slot = near_left_ - 1;
    const SegmentRecord& segment = table_[slot];
    tokens -= kSlot;
    if (!segment.indexed || segment.info.found_as == FoundAs::kChain) continue;
    near_->insert(table_, slot, *domains_.digest(segment.info.domain), NearIndex::Age::kOld);
    tokens -= segment.size();
  }
  return near_left_ > 0;
}

std::vector<Piece> ContentIndex::find_near(const NearQuery& query, DomainId domain, SearchCost* cost) const {
  const Digest* digest = domains_.digest(domain);
  if (digest == nullptr || !near_) return {};
  Runs taken;
  std::vector<Candidate> known;
  for (const Piece& piece : query.known) {
    taken.push_back({piece.pos, piece.pos + piece.count});
    known.push_back({piece.pos, piece.pos + piece.count, table_.find(piece.segment), piece.segment_offset});
  }
  const Runs gaps = subtract(query.within, normalize(std::move(taken)));
  const int32_t least = std::max(query.least, NearIndex::kSeed);
  SearchCost own;
  const NearIndex::Query asked{query.prompt, gaps, known, domain, digest, least, query.together};
  return pieces_of(near_->find(table_, asked, cost != nullptr ? *cost : own), least);
}

void ContentIndex::keep_continuations() {
  if (continuations_) return;
  Continuations all(secret_);  // takes its place when it is whole: memory may end here
  table_.each_by_id([&](uint32_t slot) {
    if (table_[slot].indexed && table_[slot].info.found_as != FoundAs::kChain) all.insert(table_, slot);
  });
  continuations_.emplace(std::move(all));
}

std::optional<Continuation> ContentIndex::find_continuation(std::span<const int32_t> text, DomainId domain) const {
  return continuations_ && domain != 0 ? continuations_->find(table_, text, domain) : std::nullopt;
}

std::span<const int32_t> ContentIndex::text(SegmentId id) const {
  const uint32_t slot = table_.find(id);
  return slot == kNoSegment ? std::span<const int32_t>() : table_.text(slot).from(0);
}

bool ContentIndex::is_prefix(SegmentId id) const {
  const uint32_t slot = table_.find(id);
  return slot != kNoSegment && table_[slot].chain.start >= 0;
}

size_t ContentIndex::bytes() const {
  return table_.bytes() + domains_.bytes() + segments_.bytes() + chains_.bytes() + clean_.bytes() +
         (near_ ? near_->bytes() : 0) + (continuations_ ? continuations_->bytes() : 0);
}

}  // namespace kvilt
