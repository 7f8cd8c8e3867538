#include "plan/head_patterns.h"

#include <algorithm>

namespace kvilt {

KeyPattern key_pattern(const HeadPattern& pattern) {
  KeyPattern out;
  switch (pattern.is) {
    case HeadPattern::Is::kAShape:
      out.by = KeyPattern::By::kFixed;
      out.sink = pattern.sink;
      out.window = pattern.window;
      break;
    case HeadPattern::Is::kLines:
      out.by = KeyPattern::By::kSample;
      out.lines.rule = LineRule::kCounts;
      out.lines.columns = pattern.columns;
      out.lines.distances = pattern.distances;
      // The first columns and the nearest distances are of these, never more.
      out.lines.first = std::min(out.lines.first, pattern.columns);
      out.lines.nearest = std::min(out.lines.nearest, pattern.distances);
      break;
    case HeadPattern::Is::kBlocks:
      out.by = KeyPattern::By::kBlocks;
      out.blocks.most = pattern.blocks;
      break;
  }
  return out;
}

SparseRule rule_of(const HeadPattern& pattern) {
  SparseRule out;
  static_cast<KeyPattern&>(out) = key_pattern(pattern);
  out.sampled = kLookingRows;
  out.sample_last = true;
  return out;
}

SparseRule rule_of(const SparseMap& map) {
  SparseRule out = rule_of(HeadPattern{});
  auto heads = std::make_shared<std::vector<KeyPattern>>();
  for (const HeadPattern& pattern : map.heads) heads->push_back(key_pattern(pattern));
  out.heads = std::move(heads);
  return out;
}

}  // namespace kvilt
