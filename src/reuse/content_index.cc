// reuse/content_index.cc: see content_index.h.
#include "reuse/content_index.h"

#include <algorithm>
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
      chains_(secret, mask_of(options.key_bits)) {
  CHECK(options.window >= 4 && options.window <= 64);
}

DomainId ContentIndex::domain(std::string_view fingerprint, std::string_view name_space, std::string_view salt) {
  return domains_.id(fingerprint, name_space, salt);
}

void ContentIndex::insert(RunId id, RunInfo info) {
  CHECK(info.parent_tokens >= 0);
  const uint32_t slot = runs_.add(id, std::move(info));
  RunRecord& run = runs_[slot];
  tokens_ += run.info.tokens.size();
  const Digest* digest = domains_.digest(run.info.domain);
  if (digest == nullptr) return;
  run.indexed = true;
  domains_.hold(run.info.domain);
  segments_.insert(runs_, slot, *digest);
  if (run.info.exact) chains_.insert(runs_, slot, *digest);
}

void ContentIndex::erase(RunId id) {
  const uint32_t slot = runs_.find(id);
  if (slot == kNoRun) return;
  RunRecord& run = runs_[slot];
  tokens_ -= run.info.tokens.size();
  if (run.indexed) {
    segments_.erase(runs_, slot, *domains_.digest(run.info.domain));
    chains_.erase(runs_, slot);
    domains_.release(run.info.domain);
  }
  runs_.remove(slot);
}

void ContentIndex::add_mark(RunId id, int32_t begin, int32_t end) {
  const uint32_t slot = runs_.find(id);
  CHECK(slot != kNoRun);
  if (!runs_[slot].indexed) return;
  segments_.add_mark(runs_, slot, *domains_.digest(runs_[slot].info.domain), {begin, end});
}

std::vector<Piece> ContentIndex::find_prefix(std::span<const int32_t> prompt, DomainId domain, int32_t limit) const {
  const Digest* digest = domains_.digest(domain);
  if (digest == nullptr || limit <= 0) return {};
  return chains_.find(runs_, prompt.first(std::min(prompt.size(), static_cast<size_t>(limit))), domain, *digest);
}

std::vector<Piece> ContentIndex::find_segments(std::span<const int32_t> prompt, int32_t from, DomainId domain,
                                               int32_t min_tokens, std::span<const MarkRange> marks,
                                               SearchCost* cost) const {
  const Digest* digest = domains_.digest(domain);
  from = std::max(from, 0);
  min_tokens = std::max(min_tokens, 1);
  if (digest == nullptr || static_cast<size_t>(from) >= prompt.size()) return {};
  SearchCost own;
  const SegmentIndex::Query query{prompt, from, domain, digest, min_tokens, marks};
  std::vector<Stretch> known = segments_.find(runs_, query, cost != nullptr ? *cost : own);
  std::vector<Piece> pieces;
  for (const Stretch& s : choose_coverage(std::move(known), min_tokens)) {
    pieces.push_back({runs_[s.run].id, s.offset, s.end - s.begin, s.begin});
  }
  return pieces;
}

bool ContentIndex::is_prefix(RunId id) const {
  const uint32_t slot = runs_.find(id);
  return slot != kNoRun && runs_[slot].chain.start >= 0;
}

size_t ContentIndex::bytes() const { return runs_.bytes() + domains_.bytes() + segments_.bytes() + chains_.bytes(); }

}  // namespace kvilt
