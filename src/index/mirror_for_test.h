// index/mirror_for_test.h: a copy of the index that is made of what its listener hears.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "index/index_listener.h"

namespace kvilt {

class Mirror : public IndexListener {
 public:
  void blocks_stored(const ToldDomain& domain, const ToldBlocks& told) noexcept override {
    ++calls;
    EXPECT_TRUE(!told.parent || blocks.count(*told.parent)) << "a block came before the one that it continues";
    EXPECT_EQ(told.tokens.size(), told.keys.size() * 16);
    for (size_t i = 0; i < told.keys.size(); ++i) {
      const auto ids = told.tokens.subspan(i * 16, 16);
      const auto [it, fresh] = blocks.try_emplace(told.keys[i], ids.begin(), ids.end());
      EXPECT_TRUE(std::ranges::equal(it->second, ids));
      again += fresh ? 0 : 1;
    }
    open = open && domain.open;
  }
  void blocks_removed(const ToldDomain&, std::span<const uint64_t> keys) noexcept override {
    ++calls;
    for (const uint64_t key : keys) unknown += blocks.erase(key) == 0 ? 1 : 0;
  }
  void piece_stored(const ToldDomain&, SegmentId id, std::span<const int32_t> tokens) noexcept override {
    pieces[id].assign(tokens.begin(), tokens.end());
  }
  void piece_removed(const ToldDomain&, SegmentId id) noexcept override { unknown += pieces.erase(id) == 0 ? 1 : 0; }
  void cleared() noexcept override { blocks.clear(), pieces.clear(), ++clears; }

  std::vector<uint64_t> keys() const {
    std::vector<uint64_t> out;
    for (const auto& [key, ids] : blocks) out.push_back(key);
    return out;
  }

  std::map<uint64_t, std::vector<int32_t>> blocks;
  std::map<SegmentId, std::vector<int32_t>> pieces;
  int calls = 0, again = 0, unknown = 0, clears = 0;  // again: blocks that were there; unknown: that were not
  bool open = true;
};

}  // namespace kvilt
