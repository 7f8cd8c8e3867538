// A plan made of bytes: what validate() passes, next_band() must walk through without a gap.
#include <algorithm>

#include "base/check.h"
#include "plan/plan.h"

using namespace kvilt;

namespace {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  int small(int n) { return at_ == end_ ? 0 : *at_++ % n; }
  int32_t any() {  // mostly small, seldom extreme
    const int x = small(256);
    return x < 250 ? x - 4 : x == 250 ? INT32_MIN : x == 251 ? INT32_MAX : x == 252 ? INT32_MAX - 1 : -1;
  }
  Runs runs() {
    Runs out;
    for (int n = small(4); n > 0; --n) {
      const int32_t begin = any(), end = any();
      out.push_back({begin, end});
    }
    return out;
  }

 private:
  const uint8_t *at_, *end_;
};

Stage stage(Bytes& in, int L) {
  Stage out;
  out.layer_end = in.small(8) == 0 ? in.any() : in.small(L + 1);
  for (int n = 1 + in.small(3); n > 0; --n) out.sets.push_back(in.runs());
  const int layers = in.small(16) == 0 ? in.small(16) : std::clamp(out.layer_end, 0, 64) + 1;
  for (int l = 0; l < layers; ++l) out.write.push_back(static_cast<uint16_t>(in.small(4)));
  for (int n = in.small(3); n > 0; --n) out.cuts.push_back(in.small(8) == 0 ? in.any() : in.small(L + 1));
  for (int n = in.small(3); n > 0; --n) {
    ProbeSpec probe;
    for (int k = in.small(3); k > 0; --k) probe.layers.push_back(in.small(8) == 0 ? in.any() : in.small(L + 1));
    probe.rows = in.runs();
    out.probes.push_back(probe);
  }
  for (int n = in.small(3); n > 0; --n) {
    RowEntry entry;
    entry.state.layer = in.small(8) == 0 ? in.any() : in.small(L + 1);
    entry.rows = in.runs();
    out.entries.push_back(entry);
  }
  for (int n = in.small(4) == 0 ? L : 0; n > 0; --n) out.unseen.push_back(in.runs());
  for (int n = in.small(4) == 0 ? in.small(3) : 0; n > 0; --n) {
    Sight sight;
    sight.rows = in.runs();
    sight.keys = in.small(2) == 0 ? sight.rows : in.runs();
    out.sights.push_back(sight);
  }
  if (in.small(4) == 0) out.far = {in.any(), in.any(), in.any()};
  return out;
}

// Every layer of the stage runs once, in order; rows nest with depth, but for those that enter.
void walk(const Plan& plan, const Stage& stage, const ModelConfig& config) {
  const Runs last = {{plan.prompt_len - 1, plan.prompt_len}};
  const Runs whole = {{0, plan.prompt_len}};
  for (int layer = 0;;) {
    const Band band = next_band(stage, layer, config.L, stage.layer_end == config.L ? last : Runs{});
    CHECK(band.layer_begin == layer && band.layer_end >= layer && band.layer_end <= stage.layer_end);
    for (size_t l = 0; l < band.in.size(); ++l) {
      CHECK(is_normal(band.in[l]) && is_normal(band.out[l]) && includes(whole, band.in[l]));
      CHECK(includes(band.in[l], band.out[l]) && includes(band.rows, band.in[l]));
      if (l == 0) continue;
      const RowEntry* entry = stage.entry_at(layer + static_cast<int>(l));
      CHECK(band.in[l] == (entry ? unite(band.out[l - 1], entry->rows) : band.out[l - 1]));
      if (entry) CHECK(intersect(band.out[l - 1], entry->rows).empty());
    }
    if (band.cut) CHECK(includes(band.rows, band.cut_rows));
    if (band.last) break;
    CHECK(band.cut && band.layer_end > layer);
    layer = band.layer_end;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes in(data, size);
  ModelConfig config;
  config.L = 1 + in.small(6);
  config.G = 1 + in.small(3);
  Plan plan;
  plan.prompt_len = in.any();
  if (in.small(4) == 0) plan.views.push_back({{in.any(), in.any()}, in.any()});
  for (int n = in.small(4) == 0 ? config.L * config.G : 0; n > 0; --n)
    plan.head_view.push_back(static_cast<uint16_t>(in.small(3)));
  const Runs known = in.runs();
  for (int n = in.small(3); n >= 0; --n) plan.stages.push_back(stage(in, config.L));
  if (in.small(4) == 0) plan.keep.push_back({AnnexOf::kHiddenInt8, in.any()});
  const Status valid = validate(plan, config, known);
  if (!valid.ok()) return 0;
  if (const auto& far = plan.stages.back().far)
    CHECK(0 <= far->before && far->before <= far->rows && far->rows <= plan.prompt_len && far->distance >= 0);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    walk(plan, plan.stages[s], config);
    if (plan.prompt_len <= 512) picture(plan, static_cast<int>(s), 3);
  }
  return 0;
}
