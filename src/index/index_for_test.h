// index/index_for_test.h: an index and texts for it, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <numeric>
#include <vector>

#include "index/content_index.h"

namespace kvilt {

using Ids = std::vector<int32_t>;

class IndexTest : public ::testing::Test {
 protected:
  Ids fresh(int32_t count) {  // ids that occur nowhere else
    Ids ids(count);
    std::iota(ids.begin(), ids.end(), next_id_);
    next_id_ += count;
    return ids;
  }
  static Ids join(std::initializer_list<Ids> parts) {
    Ids all;
    for (const Ids& p : parts) all.insert(all.end(), p.begin(), p.end());
    return all;
  }
  static Ids part(const Ids& ids, int32_t begin, int32_t end) { return {ids.begin() + begin, ids.begin() + end}; }

  int32_t next_id_ = 1000;
  ContentIndex index_{HashSecret::fixed(1)};
  DomainId domain_ = index_.domain("model", "space", "salt");
};

}  // namespace kvilt
