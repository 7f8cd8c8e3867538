// engine/retention.cc: what the content cache keeps with preference: owners and their shares, pins, frozen texts.
// Idea:       all three are marks on extents, and decide in which line an extent waits when nobody uses it
//             (kv/idle_extents.h). A frozen text has a name, by which it is thawed; the list under the name keeps the
//             extents' objects, but never their pages.
// Invariants: an extent that is evicted is in no list any more.
// Threads:    the engine thread.
#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/content_cache.h"
#include "engine/mark_runs.h"
#include "engine/piece_lists.h"

namespace kvilt {

void ContentCache::set_shares(const std::map<std::string, double>& shares,
                              const std::map<std::string, double>& others) {
  for (const auto& [tenant, share] : shares) add_owner(tenant, share);
  for (const auto& [tenant, share] : others) {
    if (!owners_.contains(tenant)) add_owner(tenant, 0);
  }
}

OwnerId ContentCache::add_owner(const std::string& tenant, double share) {
  const OwnerId owner = store_.idle().add_owner(share);
  tenants_.resize(owner + 1);
  tenants_[owner] = tenant;
  owners_.emplace(tenant, owner);
  return owner;
}

OwnerId ContentCache::owner(const std::string& tenant) {
  if (const auto known = owners_.find(tenant); known != owners_.end()) return known->second;
  if (tenant.empty()) owners_.emplace(tenant, 0);  // so that its pool is told like any other's
  if (tenant.empty() || owners_.size() >= kMostOwners) return 0;
  return add_owner(tenant, 0);
}

// Every step asks: names are written when there are more of them.
void ContentCache::tenant_pools(std::vector<TenantPool>& out) const {
  const IdleExtents& idle = store_.idle();
  if (out.size() != owners_.size()) {
    out.clear();
    for (const auto& [tenant, owner] : owners_) out.push_back({.tenant = tenant});
  }
  auto to = out.begin();
  for (const auto& [tenant, owner] : owners_) {
    to->held = idle.held_by(owner);
    to->share = idle.own_share(owner);
    (to++)->pinned = idle.pinned_by(owner);
  }
}

namespace {

// Of cached segments.
void add_extents(const std::vector<SegmentPart>& parts, std::vector<ExtentKeep>& out) {
  for (const SegmentPart& part : parts) {
    for (const ExtentKeep& extent : part.kv->extents_of(part.of_kv(part.positions())).list) {
      if (extent && !extent->segments.empty()) out.push_back(extent);
    }
  }
}

}  // namespace

// What the request reads and wrote itself, and what others have published of the same text.
std::vector<ExtentKeep> ContentCache::extents_of(const Own& own, int32_t end) const {
  std::vector<ExtentKeep> out;
  add_extents(view_of(own.kv, {0, end}), out);
  const auto known = index_.find_prefix(own.tokens.first(static_cast<size_t>(end)), own.domains.exact, end);
  std::ranges::move(extents_of(known), std::back_inserter(out));
  return out;
}

std::vector<ExtentKeep> ContentCache::extents_of(std::span<const Piece> pieces) const {
  std::vector<ExtentKeep> out;
  for (const Piece& piece : pieces) {
    if (const CachedSegment* segment = segments_.find(piece.segment))
      add_extents(segment->within(piece.segment_offset, piece.count), out);
  }
  return out;
}

// Where prompts with other text before it find the part whole: exact KV before that of the request's policy.
std::vector<Piece> ContentCache::holders_of(const Own& own, const TokenMark& part) const {
  const Run whole{0, part.end - part.begin};
  const auto text = own.tokens.subspan(static_cast<size_t>(part.begin), static_cast<size_t>(whole.size()));
  std::vector<Piece> out;
  for (const auto kind : {&ContentDomains::exact, &ContentDomains::approximate}) {
    own.domains.each([&](const ContentDomains& of) {
      if (of.*kind != 0) fill_gaps(index_.find_pieces(text, 0, of.*kind, min_segment_, {&whole, 1}), min_segment_, out);
    });
  }
  int32_t held = 0;
  for (const Piece& piece : out) held += piece.count;
  if (held < whole.size()) out.clear();
  return out;
}

void ContentCache::retain(const Own& own, int32_t end, Retention retention) {
  if (!own.kv.whole()) return;
  for (const ExtentKeep& extent : extents_of(own, end)) {
    if (extent->retention() < retention) extent->retain(retention);
  }
}

void ContentCache::freeze(const Own& own, const std::string& tenant, const std::string& name) {
  if (own.kv.whole()) freeze(extents_of(own, own.layout.prompt_len), tenant, name);
}

// No name that somebody gives ends so (server/knowledge_writer.h), and who thaws the name thaws this too.
constexpr const char* kMakeshift = "until there is a clean copy";

void ContentCache::freeze(const Own& own, const std::string& tenant, std::span<const FrozenPart> parts) {
  const std::vector<Piece> clean = find_clean(own.tokens, runs_of(own.marks), own.domains);
  for (const FrozenPart& part : parts) {
    if (part.withdrawn && *part.withdrawn) continue;
    const auto copy = std::ranges::find(clean, part.tokens.begin, &Piece::pos);
    if (copy != clean.end()) {
      thaw(tenant, part.name + kMakeshift);
      freeze(extents_of({&*copy, 1}), tenant, part.name);
    } else if (const std::vector<Piece> pieces = holders_of(own, part.tokens); !pieces.empty()) {
      freeze(extents_of(pieces), tenant, part.name + kMakeshift);
    }
  }
}

void ContentCache::freeze(const std::vector<ExtentKeep>& extents, const std::string& tenant, const std::string& name) {
  const auto [it, fresh] = frozen_.try_emplace(tenant + '\0' + name);
  Frozen& frozen = it->second;
  if (fresh) {
    frozen.number = ++last_frozen_;
    frozen_by_number_.emplace(frozen.number, it);
  }
  for (const ExtentKeep& extent : extents) {
    const auto same = [&](const ExtentKeep& kept) { return kept.get() == extent.get(); };
    if (std::ranges::none_of(frozen.extents, same)) frozen.extents.push_back(extent);
    extent->freeze(frozen.number);  // again where it had to give way meanwhile
  }
}

void ContentCache::thaw(const std::string& tenant, const std::string& name) {
  const std::string first = tenant + '\0' + name;
  for (auto it = frozen_.lower_bound(first); it != frozen_.end() && it->first.starts_with(first);) {
    for (const ExtentKeep& extent : it->second.extents) extent->thaw(it->second.number);
    frozen_by_number_.erase(it->second.number);
    it = frozen_.erase(it);
  }
}

void ContentCache::thaw_all() {
  for (const auto& [name, frozen] : frozen_) {
    for (const ExtentKeep& extent : frozen.extents) extent->thaw(frozen.number);
  }
  frozen_by_number_.clear();
  frozen_.clear();
}

int64_t ContentCache::frozen_extents() const {
  int64_t sum = 0;
  for (const auto& [name, frozen] : frozen_) sum += std::ssize(frozen.extents);
  return sum;
}

// It leaves: no name keeps it. A name without extents stays, for what is computed anew under it.
void ContentCache::forget_frozen(Extent& extent) {
  for (const uint64_t number : extent.frozen_for()) {
    const auto named = frozen_by_number_.find(number);
    if (named == frozen_by_number_.end()) continue;
    std::erase_if(named->second->second.extents, [&](const ExtentKeep& kept) { return kept.get() == &extent; });
  }
  extent.thaw();
}

}  // namespace kvilt
