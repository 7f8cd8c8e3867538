#include "forward/key_chooser.h"

#include <algorithm>
#include <utility>

#include "forward/heavy_chooser.h"
#include "forward/last_queries.h"
#include "forward/layer_chooser.h"
#include "forward/page_chooser.h"

namespace kvilt {
namespace {

// Nobody looks: the nearest keys, or random ones.
class BlindChooser : public KeyChooser {
 public:
  BlindChooser(const DecodeRule& rule, int layers) : rule_(rule), layers_(layers) {}
  std::vector<Runs> choose(const KeySource&, LayerRow at, const float*, std::span<const int> heads,
                           ChoiceCost&) override {
    return choose_keys(rule_, at.layer, layers_, std::vector<std::vector<double>>(heads.size()), at.pos);
  }

 private:
  const DecodeRule rule_;
  const int layers_;
};

}  // namespace

int64_t chooser_bytes(const DecodeRule& rule, const ModelConfig& c, int32_t keys) {
  const int64_t heads = int64_t{c.L} * c.G;
  int64_t bytes = heads * std::min(rule.budget, keys) * static_cast<int64_t>(sizeof(KvSpan));
  if (rule.by == DecodeRule::By::kAttention) bytes += int64_t{c.L} * c.H * c.E * rule.queries * 4;
  if (rule.by == DecodeRule::By::kPages) {
    const int64_t pages = (keys + rule.page - 1) / rule.page * 3 / 2;  // some of an answer among them
    // Among so few that all are taken there are no bounds yet, so no whole blocks.
    bytes += heads * (keys > rule.budget ? PageBounds::bytes(c.E, pages) : pages * 2 * c.E * int64_t{sizeof(float)});
  }
  if (rule.by == DecodeRule::By::kAllRows) bytes += heads * keys * static_cast<int64_t>(sizeof(double));
  return bytes;
}

bool choose_alone(const DecodeRule& rule) { return rule.own_share >= 1 && rule.by != DecodeRule::By::kRandom; }

std::vector<Runs> choose_side_by_side(ThreadPool& pool, const DecodeRule& rule, LayerRow at, int num_layers,
                                      std::span<const std::vector<double>> scores) {
  if (!choose_alone(rule) || rule.takes_all(at.layer, num_layers, at.pos))
    return choose_keys(rule, at.layer, num_layers, scores, at.pos);
  std::vector<Runs> out(scores.size());
  pool.parallel_for(std::ssize(scores), [&](int64_t i, int) {
    out[i] = std::move(choose_keys(rule, at.layer, num_layers, {&scores[i], 1}, at.pos).front());
  });
  return out;
}

std::unique_ptr<KeyChooser> make_key_chooser(const DecodeRule& rule, const ModelConfig& config, int32_t prompt_len,
                                             int32_t prefill_len) {
  switch (rule.by) {
    case DecodeRule::By::kAttention:
      return std::make_unique<LastQueries>(rule, config, prompt_len, prefill_len);
    case DecodeRule::By::kPages:
      return std::make_unique<PageChooser>(rule, config);
    case DecodeRule::By::kLayer:
      return std::make_unique<LayerChooser>(rule, config);
    case DecodeRule::By::kAllRows:
      return std::make_unique<HeavyChooser>(rule, config, prefill_len);
    case DecodeRule::By::kNearest:
    case DecodeRule::By::kRandom:
      break;
  }
  return std::make_unique<BlindChooser>(rule, config.L);
}

}  // namespace kvilt
