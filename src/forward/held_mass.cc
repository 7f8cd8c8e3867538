#include "forward/held_mass.h"

#include <algorithm>
#include <cmath>

namespace kvilt {

HeldMass held_mass(const PreparedModel& model, const PageTable& kv, const RowsAt& rows, std::span<const int> heads,
                   ThreadPool& pool) {
  const ModelConfig& c = model.config();
  const int64_t group = c.H / c.G, all = std::ssize(rows.pos);
  std::vector<int64_t> measured;
  LookingRows looking(model);
  for (int64_t r = 0; r < all; ++r) {
    if (all > 1 && rows.pos[r] % kHeldEvery != 0) continue;
    measured.push_back(r);
    looking.add(rows.pos[r], rows.q.row(r));
  }
  HeldMass out;
  if (measured.empty() || heads.empty()) return out;
  looking.find_keys(kv, rows.layer, heads, rows.pos[measured.back()] + 1);
  looking.attend(kv.shape().dtype, pool);
  for (size_t i = 0; i < heads.size(); ++i) {
    for (int64_t r = 0; r < looking.rows(); ++r) {
      const float* seen = rows.lse + (heads[i] * all + measured[r]) * group;
      for (int64_t h = 0; h < group; ++h) {
        const double share = std::exp(double{seen[h]} - double{looking.lse(i)[r * group + h]});
        if (std::isfinite(share)) out += {std::min(1.0, share), 1};
      }
    }
  }
  return out;
}

}  // namespace kvilt
