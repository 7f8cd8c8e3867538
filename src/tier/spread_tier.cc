#include "tier/spread_tier.h"

#include <algorithm>

#include "base/check.h"
#include "base/checksum.h"
#include "base/error.h"
#include "tier/piece_record.h"

namespace kvilt {
namespace {

// The finaliser of splitmix64: ids follow each other, and its values do not.
uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace

SpreadTier::SpreadTier(std::vector<Place> places) : places_(std::move(places)) {
  CHECK(!places_.empty());
  for (const Place& place : places_) seeds_.push_back(checksum(std::as_bytes(std::span(place.name))));
}

Tier* SpreadTier::find(uint64_t id) const {
  const auto at = place_of_.find(id);
  return at == place_of_.end() ? nullptr : places_[at->second].tier.get();
}

size_t SpreadTier::best(uint64_t id) const {
  size_t best = 0;
  uint64_t highest = 0;
  bool found = false;
  for (size_t i = 0; i < places_.size(); ++i) {
    const uint64_t score = mixed(seeds_[i] ^ mixed(id));
    if (!places_[i].tier->ready() || (found && score < highest)) continue;
    best = i;
    highest = score;
    found = true;
  }
  return best;
}

Result<std::vector<StoredPiece>> SpreadTier::known(const Digest& maker, uint32_t token_bytes) {
  std::vector<StoredPiece> out;
  for (size_t i = 0; i < places_.size(); ++i) {
    KVILT_ASSIGN(std::vector<StoredPiece> here, places_[i].tier->known(maker, token_bytes));
    for (StoredPiece& piece : here) {
      if (take(piece.id, i)) out.push_back(std::move(piece));
    }
  }
  return out;
}

// False: another place has a piece of this id, which somebody drew by chance too. That one is known, this one is not.
bool SpreadTier::take(uint64_t id, size_t place) {
  ids_.heard(id);
  return place_of_.emplace(id, place).first->second == place;
}

Status SpreadTier::put(const StoredPiece& piece, std::span<const std::byte> values, std::vector<uint64_t>& removed) {
  if (piece.parent >= piece.id) return id_too_small(piece);
  const auto parent = place_of_.find(piece.prefix ? piece.parent : 0);
  if (piece.prefix && piece.parent != 0 && parent == place_of_.end())
    return error(Code::kNotFound, "what piece {} continues is not stored", piece.id);
  const size_t at = parent != place_of_.end() ? parent->second : best(piece.id);
  const size_t before = removed.size();
  const Status done = places_[at].tier->put(piece, values, removed);
  for (size_t i = before; i < removed.size(); ++i) place_of_.erase(removed[i]);
  if (done.ok()) place_of_[piece.id] = at;
  return done;
}

Status SpreadTier::get(uint64_t id, int32_t chunk, std::vector<std::byte>& out) {
  Tier* const tier = find(id);
  if (!tier) return error(Code::kNotFound, "piece {} is in none of the places", id);
  Status got = tier->get(id, chunk, out);
  if (!got.ok() && (got.error().code == Code::kNotFound || got.error().code == Code::kCorrupt)) place_of_.erase(id);
  return got;
}

void SpreadTier::touch(uint64_t id) {
  if (Tier* const tier = find(id)) tier->touch(id);
}

void SpreadTier::remove(uint64_t id) {
  if (Tier* const tier = find(id)) tier->remove(id);
  place_of_.erase(id);
}

Status SpreadTier::clear() {
  Status out;
  for (const Place& place : places_) {
    if (Status done = place.tier->clear(); !done.ok() && out.ok()) out = done;
  }
  place_of_.clear();
  return out;
}

Status SpreadTier::flush() {
  Status out;
  for (const Place& place : places_) {
    if (Status done = place.tier->flush(); !done.ok() && out.ok()) out = done;
  }
  return out;
}

int64_t SpreadTier::bytes() const {
  int64_t out = 0;
  for (const Place& place : places_) out += place.tier->bytes();
  return out;
}

int64_t SpreadTier::pieces() const {
  int64_t out = 0;
  for (const Place& place : places_) out += place.tier->pieces();
  return out;
}

std::optional<Tier::Sharing> SpreadTier::sharing() const {
  std::optional<Sharing> out;
  for (const Place& place : places_) {
    const auto of = place.tier->sharing();
    if (!of) continue;
    out = out ? Sharing{std::min(out->news_every, of->news_every), std::max(out->patience, of->patience)} : *of;
  }
  return out;
}

bool SpreadTier::ready() const {
  return std::ranges::any_of(places_, [](const Place& place) { return place.tier->ready(); });
}

Tier::News SpreadTier::news() {
  News out;
  for (size_t i = 0; i < places_.size(); ++i) {
    Tier& tier = *places_[i].tier;
    const bool was_ready = tier.ready();
    News here = tier.news();
    out.came_back |= here.came_back || (tier.ready() && !was_ready);
    out.errors += here.errors;
    for (const uint64_t id : here.removed) {
      const auto at = place_of_.find(id);
      if (at == place_of_.end() || at->second != i) continue;  // another place has it
      place_of_.erase(at);
      out.removed.push_back(id);
    }
    for (StoredPiece& piece : here.stored) {
      if (take(piece.id, i)) out.stored.push_back(std::move(piece));
    }
  }
  return out;
}

}  // namespace kvilt
