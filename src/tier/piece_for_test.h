// tier/piece_for_test.h: stored pieces and their bytes, and a folder that goes with the test.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tier/annex_record.h"
#include "tier/tier.h"

namespace kvilt {

inline constexpr uint32_t kTokenBytes = 24;

inline StoredPiece piece_for_test(uint64_t id, int32_t tokens, uint64_t parent = 0) {
  StoredPiece piece;
  piece.id = id;
  piece.maker[0] = 7;
  piece.domain[3] = 9;
  piece.exact = piece.prefix = true;
  piece.parent = parent;
  piece.pos = parent == 0 ? 0 : 300;
  piece.parent_tokens = parent == 0 ? 0 : 300;
  piece.token_bytes = kTokenBytes;
  for (int32_t i = 0; i < tokens; ++i) piece.tokens.push_back(static_cast<int32_t>(id % 1000) * 1000 + i);
  return piece;
}

inline std::vector<std::byte> values_for_test(const StoredPiece& piece) {
  std::vector<std::byte> out(static_cast<size_t>(piece.bytes()));
  for (size_t i = 0; i < out.size(); ++i) {  // no two ids have the same bytes
    out[i] = static_cast<std::byte>((piece.id * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u) >> 56);
  }
  return out;
}

// Of two kinds, about tokens that any piece of three has.
inline std::vector<StoredAnnex> annexes_for_test(uint8_t seed = 1) {
  return {{2, 0, {0, 3}, std::vector<std::byte>(13, std::byte{seed})}, {77, 5, {1, 2}, {std::byte{9}}}};
}

inline Result<std::vector<std::byte>> chunk_of(Tier& tier, uint64_t id, int32_t chunk) {
  std::vector<std::byte> out;
  KVILT_TRY(tier.get(id, chunk, out));
  return out;
}

class FolderForTest {
 public:
  FolderForTest() {
    std::string name = testing::TempDir() + "kvilt_tier_XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~FolderForTest() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kvilt
