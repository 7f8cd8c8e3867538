// kv/annex.h: annexes: typed side data that is cached with the KV of some tokens, and goes when that goes.
// Idea:       an annex is bytes in pages of the pool, owned by the extent in which its tokens have their slots. So it is
//             counted with the pool's pages, evicted and dropped with the KV, and cut where the KV is cut: nothing else
//             keeps account of it. Its positions are those of the request that computed them, as a segment's are.
// Kinds:      base/annex_kind.h. A kind by token has a row of equal size for each; any other is one block about a run of
//             tokens, which lies in the extent of the last of them. To add one: a name in AnnexOf, by_token(), and
//             whoever computes it calls KvSegment::attach() when the segment is published (engine/content_cache.cc,
//             attach_kept, does it for what Plan::keep names).
// Invariants: immutable. A row is never read of a token whose KV has left. The same row is kept once: who attaches it
//             again changes nothing. Rows stay while their extent has KV that a segment keeps.
// Threads:    the engine thread.
// Cost:       whole pages: up to one page a run of tokens in an extent is not filled.
// Not here:   the sessions' file, which carries none (docs/formats/session.md); cache folders (engine/spill.cc).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/annex_kind.h"
#include "base/runs.h"
#include "kv/page_store.h"

namespace kvilt {

class KvSegment;
struct Placement;

class Annex {
 public:
  // REQUIRES: the store has pages_for(bytes) free pages; of a kind by token all rows have the same size.
  Annex(PageStore& store, AnnexKind kind, Run positions, std::span<const std::byte> bytes);
  ~Annex();
  Annex(const Annex&) = delete;
  Annex& operator=(const Annex&) = delete;
  static int64_t pages_for(const PageStore& store, int64_t bytes) {
    return (bytes + store.shape().page_bytes() - 1) / store.shape().page_bytes();
  }

  AnnexKind kind() const { return kind_; }
  Run positions() const { return positions_; }
  int64_t bytes() const { return bytes_; }
  int64_t pages() const { return static_cast<int64_t>(pages_.size()); }
  void read(int64_t offset, std::span<std::byte> out) const;
  // Of a kind by token. REQUIRES: pos is one of positions(); out has the row's size.
  void row(int32_t pos, std::span<std::byte> out) const;

 private:
  void give_back();
  PageStore& store_;
  const AnnexKind kind_;
  const Run positions_;
  const int64_t bytes_;
  std::vector<PageId> pages_;
};

// What is known of a kind of what was placed, in the positions of the request that placed it.
// Those with a row.
Runs annexed(std::span<const Placement> placements, AnnexKind kind);
// Of one position, without a look at all others.
bool has_annex_row(std::span<const Placement> placements, AnnexKind kind, int32_t pos);
// Copies the row of `pos`. REQUIRES: it has one.
void annex_row(std::span<const Placement> placements, AnnexKind kind, int32_t pos, std::span<std::byte> out);
// Blocks all of whose tokens one placement holds: where they are now, and the annex. Valid while the placement is.
struct PlacedAnnex {
  Run positions;
  const Annex* annex = nullptr;
};
std::vector<PlacedAnnex> annex_blocks(std::span<const Placement> placements, AnnexKind kind);

// All blocks about tokens at these of a segment's positions, each once. Valid while these have their slots.
std::vector<const Annex*> blocks_within(const KvSegment& segment, Run positions);

}  // namespace kvilt
