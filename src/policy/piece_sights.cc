#include "policy/piece_sights.h"

namespace kvilt {

std::vector<Sight> piece_sights(const PromptLayout& layout, const Runs& chosen, const Runs& computed, RowsRead read) {
  const Runs prefix = layout.prefix > 0 ? Runs{{0, layout.prefix}} : Runs{};
  const Runs common = unite(prefix, unite(computed, chosen));
  if (chosen.empty()) return {};
  if (read == RowsRead::kRecomputed) return {{chosen, common}};
  std::vector<Sight> out;
  for (const Run& piece : layout.pieces) {
    Runs rows = intersect(chosen, Runs{piece});
    if (!rows.empty()) out.push_back({std::move(rows), unite(common, Runs{piece})});
  }
  return out;
}

}  // namespace kvilt
