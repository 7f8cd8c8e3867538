// tier/spread_tier.h: several tiers as one: each piece is in one of them.
// Role:       several Redis beside each other, with more memory and more network than one (engine/load.cc).
// Idea:       rendezvous hashing (Thaler and Ravishankar, 1998): a piece goes to the place whose name and the piece's id
//             give the highest number, of those that can be asked now. Processes that know the same names agree without
//             a word, and a place that comes or goes moves no other's pieces. What continues a chain goes where the chain
//             is, so that each place by itself has all of what it names a prefix.
// Invariants: where a piece is was heard from the place itself, so names may change from one start to the next. A place
//             that is gone takes its own pieces with it and nobody else's: they stay its own until it says that they are
//             removed, also when it was away for long (RedisOptions::patience), and then go to the others.
// Cost:       16 bytes a piece that is stored.
// Threads:    as Tier.
// Not here:   copies: a piece is in one place, and is computed again where that is lost.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tier/piece_id.h"
#include "tier/tier.h"

namespace kvilt {

class SpreadTier : public Tier {
 public:
  struct Place {
    std::string name;  // the same for all processes, and no other place's
    std::unique_ptr<Tier> tier;
  };
  explicit SpreadTier(std::vector<Place> places);  // REQUIRES: not empty

  // Errors: the first place's that has one. A place that cannot be reached is none: it is news then.
  Result<std::vector<StoredPiece>> known(const Digest& maker, uint32_t token_bytes) override;
  // Larger than those of all places: what continues a piece may be in any of them.
  uint64_t new_id() override { return ids_.next(); }
  Status put(const StoredPiece& piece, std::span<const std::byte> values, std::vector<uint64_t>& removed) override;
  Status get(uint64_t id, int32_t chunk, std::vector<std::byte>& out) override;
  void touch(uint64_t id) override;
  void remove(uint64_t id) override;
  Status clear() override;
  Status flush() override;
  int64_t bytes() const override;
  int64_t pieces() const override;
  std::optional<Sharing> sharing() const override;
  // One of them can be asked.
  bool ready() const override;
  News news() override;

 private:
  Tier* find(uint64_t id) const;  // null: nobody has it
  bool take(uint64_t id, size_t place);
  size_t best(uint64_t id) const;

  std::vector<Place> places_;
  std::vector<uint64_t> seeds_;  // of the names
  std::unordered_map<uint64_t, size_t> place_of_;
  PieceIds ids_;
};

}  // namespace kvilt
