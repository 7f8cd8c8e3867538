// policy/multi_infllm.cc: Multi-InfLLM: the documents' cached KV as one long context, of which a question reads the
// beginning, the end, and in every layer the blocks whose mean key its mean query meets best. Nothing is recomputed.
// Angle:   keys keep their positions; with angle=single the question finds all keys before the end as far back as the
//          end is long (Stage::far).
// Source:  InfLLM (arXiv:2402.04617); over several documents: the baseline of SamKV's paper, docs/papers.md#multi-infllm.
// Stages:  1. each document by itself where nothing is stored of it (document_stage.h): mean keys of its blocks.
//          2. Layer 0 up to its cut: the question's queries. 3. The other layers, with a cut at each.
// Cost:    naive's rows, with a product of the mean query and all mean keys in each layer; less attention.
#include <algorithm>
#include <cmath>
#include <utility>

#include "policy/document_stage.h"

namespace kvilt {
namespace {

struct InfLLMParams {
  int32_t init = 128, local = 4096, block = 128, topk = 16;
  double keep = 0;            // > 0: topk follows from it
  bool single_angle = false;  // the question sees what is before the last `local` positions at that distance
  BlockCut cut() const { return {.block = block, .initial = 0, .local = 0}; }
};

// A block that a question may read or not.
struct InfLLMBlock {
  Run positions;
  size_t document;
  int32_t number;
};
struct InfLLMContext {
  StudiedDocuments documents;  // those with such blocks
  Run question;
  std::vector<InfLLMBlock> blocks{};
  Runs middle{};
  int64_t topk = 0;
};

class MultiInfLLM : public ReusePolicy {
 public:
  explicit MultiInfLLM(const InfLLMParams& params) : params_(params) {}
  bool answer_sees_less() const override { return true; }
  std::vector<AnnexKind> wants_blocks() const override { return {kBlockMeans}; }

  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    const InfLLMContext in = context(layout);
    const Runs rows = rows_of_question(layout, question_in(layout));
    Stage first = uniform_stage(rows, 0), others = uniform_stage(rows, config.L);
    if (const int32_t before = in.question.begin - params_.local; params_.single_angle && before > 0)
      others.far = {.rows = in.question.begin, .before = before, .distance = params_.local};
    if (std::cmp_less_equal(in.blocks.size(), in.topk)) return plan_for(layout, {others});
    std::vector<Stage> stages;
    in.documents.add_stages(config, stages);
    first.unseen.assign(static_cast<size_t>(config.L), in.middle);  // a cut's rows attend in vain: to little
    others.unseen = first.unseen;
    first.cuts = {0};
    for (int l = 1; l < config.L; ++l) others.cuts.push_back(l);
    for (Stage* stage : {&first, &others}) stage->probes = {query_probe(in.question, stage->cuts)};
    stages.push_back(std::move(first));
    stages.push_back(std::move(others));
    return plan_for(layout, std::move(stages));
  }

  void refine(const PromptLayout& layout, const ModelConfig& config, int stage, std::span<const Probe> probes,
              Plan& plan) const override {
    const InfLLMContext in = context(layout);
    const int documents = in.documents.stages();
    if (stage < documents || std::cmp_less_equal(in.blocks.size(), in.topk)) return;
    int layer = stage == documents ? 0 : config.L - 1;  // of this cut: the deepest that has been asked
    const auto asked = [&](int l) {
      return std::ranges::any_of(probes.back().sums[l], [](double q) { return q != 0; });
    };
    while (layer > 1 && !asked(layer)) --layer;
    if (!asked(layer)) return;
    std::vector<std::vector<float>> keys;  // of each document's blocks
    for (size_t i = 0; i < in.documents.size(); ++i)
      keys.push_back(in.documents.layer_of(i, config, probes, layer).block_keys);
    plan.stages.back().unseen[layer] = subtract(in.middle, chosen(in, config, keys, probes.back().sums[layer]));
  }

  std::vector<AnnexBlock> findings(const PromptLayout& layout, const ModelConfig& config, int stage,
                                   std::span<const Probe> probes) const override {
    return context(layout).documents.findings(config, stage, probes);
  }

 private:
  // Blocks that lie in the beginning or the end in part belong to it.
  InfLLMContext context(const PromptLayout& layout) const {
    const BlockCut cut = params_.cut();
    InfLLMContext out{.documents = {layout, kBlockMeans, cut},
                      .question = question_in(layout).value_or(end_of_prompt(layout))};
    const int32_t local = out.question.begin - params_.local;
    int64_t tokens = 0, always = 0;
    for (const Run& piece : documents_before(layout, out.question.begin)) {
      tokens += piece.size();
      const size_t before = out.blocks.size();
      for (int32_t b = 0; b < cut.blocks(piece.size()); ++b) {
        const Run of = cut.tokens_of(b, piece.size());
        const Run at{piece.begin + of.begin, piece.begin + of.end};
        const bool initial = at.begin<layout.pieces.front().begin + params_.init, near = at.end> local;
        if (initial || near) {
          always += at.size();
          continue;
        }
        out.blocks.push_back({at, out.documents.size(), b});
        out.middle.push_back(at);
      }
      if (out.blocks.size() > before) out.documents.add(piece);
    }
    out.middle = normalize(std::move(out.middle));
    const double share = params_.keep * static_cast<double>(tokens) - static_cast<double>(always);
    out.topk = params_.keep >= 1  ? std::ssize(out.blocks)
               : params_.keep > 0 ? static_cast<int64_t>(std::max(0.0, share) / params_.block)
                                  : params_.topk;
    return out;
  }

  // The topk blocks of a layer; lower positions first on a tie.
  static Runs chosen(const InfLLMContext& in, const ModelConfig& config, const std::vector<std::vector<float>>& keys,
                     const std::vector<double>& query) {
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < in.blocks.size(); ++i) {
      const InfLLMBlock& block = in.blocks[i];
      const float* key = keys[block.document].data() + block.number * config.G * config.E;
      double score = 0;
      for (int h = 0; h < config.H; ++h) {
        for (int e = 0; e < config.E; ++e)
          score += query[h * config.E + e] * double{key[h / (config.H / config.G) * config.E + e]};
      }
      order.emplace_back(std::isnan(score) ? HUGE_VAL : -score, i);  // so that an order is one
    }
    std::ranges::stable_sort(order);
    Runs out;
    for (int64_t n = 0; n < in.topk; ++n) out.push_back(in.blocks[order[n].second].positions);
    return normalize(std::move(out));
  }

  const InfLLMParams params_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_multi_infllm(PolicyParams& p) {
  InfLLMParams params;
  params.init = p.integer("init", 128, 0, 1 << 24);
  params.local = p.integer("local", 4096, 0, 1 << 24);
  params.block = p.integer("block", 128, kLeastBlock, 1 << 16);
  params.topk = p.integer("topk", 16, 0, 1 << 24);
  params.keep = p.number("keep,budget", 0, 0, 1);
  params.single_angle = p.choice("angle", "true", {"true", "single"}) == "single";
  return std::make_unique<MultiInfLLM>(params);
}

}  // namespace kvilt
