#include "policy/carry_groups.h"

namespace kvilt {

std::vector<CarryGroup> carry_groups(const std::vector<Run>& pieces, bool across) {
  std::vector<CarryGroup> out;
  for (const Run& piece : pieces) {
    const int32_t parts = (piece.size() + kMostCarried - 1) / kMostCarried;
    for (int32_t i = 0; i < parts; ++i) {
      const Run part{piece.begin + static_cast<int32_t>(int64_t{piece.size()} * i / parts),
                     piece.begin + static_cast<int32_t>(int64_t{piece.size()} * (i + 1) / parts)};
      if (!across || out.empty() || part.end - out.back().range().begin > kMostCarried) out.emplace_back();
      out.back().parts.push_back(part);
    }
  }
  return out;
}

}  // namespace kvilt
