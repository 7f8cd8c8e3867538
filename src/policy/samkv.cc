// policy/samkv.cc: SamKV: a question reads few blocks of each document, in every layer others; the tokens of these
// blocks that lean on other text are computed again, over these blocks alone.
// Source:  SamKV (AAAI 2026), docs/papers.md#samkv: readings, defaults, where it differs.
// Stages:  1. for each document of four blocks or more of which nothing is stored yet, it alone: what a choice needs to
//             know of it (samkv_stats.h). That is stored with its KV.
//          2. The question over the first block and the last two of each document: its mean query.
//          3. samkv_choice.h chooses. The tokens to compute again run over all that some layer kept.
//          4. The question again, each layer over what it kept. So does the answer.
// Cost:    stage 1 is most of a prefill of the document, once; the others 5 to 20 % of a full one.
#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "policy/document_stage.h"
#include "policy/samkv_choice.h"

namespace kvilt {
namespace {

enum class Recompute : uint8_t { kNone, kRule, kAll };

struct SamKVParams {
  BlockChoice choice;
  int stable_begin = -1, stable_end = -1;  // -1: the last eighth, the end
  std::shared_ptr<const LayerMap> layers;  // in their place
  Recompute recompute = Recompute::kRule;
  std::optional<Fate> fate;
};

// How a prompt is read.
struct Reading {
  std::vector<Run> documents{};  // all pieces, as far as they lie before the question
  StudiedDocuments long_ones;    // those with a middle
  std::optional<Run> question;
  Runs middle{};       // of the long ones
  bool looks = false;  // a choice is to be made
};

class SamKV : public ReusePolicy {
 public:
  explicit SamKV(const SamKVParams& params) : params_(params) {}

  bool answer_sees_less() const override { return true; }
  std::vector<AnnexKind> wants_blocks() const override { return {kBlockStats}; }

  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    const Reading read = reading(layout);
    std::vector<Stage> stages;
    if (read.looks) {
      read.long_ones.add_stages(config, stages);
      stages.push_back(question_stage(layout, read, config));
    }
    const bool hides = params_.choice.keep < 1 && !read.looks && !read.middle.empty();
    if (params_.recompute != Recompute::kNone && !read.documents.empty()) {
      const Runs before{{layout.prefix, read.documents.back().end}};
      Stage repair = uniform_stage(hides ? subtract(before, read.middle) : before, config.L);
      repair.fate = params_.fate;
      repair.expected = 0.3;
      if (!repair.sets[0].empty()) stages.push_back(std::move(repair));
    }
    stages.push_back(uniform_stage(rows_of_question(layout, read.question), config.L));
    for (size_t s = 0; hides && s < stages.size(); ++s)
      stages[s].unseen.assign(static_cast<size_t>(config.L), read.middle);  // no question: nothing speaks for them
    return plan_for(layout, std::move(stages));
  }

  void refine(const PromptLayout& layout, const ModelConfig& config, int stage, std::span<const Probe> probes,
              Plan& plan) const override {
    const Reading read = reading(layout);
    if (stage != read.long_ones.stages()) return;  // the question's
    const std::vector<DocumentStats> stats = read.long_ones.stats(config, probes);
    const KeptBlocks kept = choose(read, config, stats, probes.back());
    std::vector<Runs> unseen(static_cast<size_t>(config.L));
    for (int l = 0; l < config.L; ++l) unseen[l] = subtract(read.middle, positions_of(read, kept[l]));
    if (params_.recompute != Recompute::kNone) {
      Stage& repair = plan.stages[stage + 1];
      set_repair(layout, read, kept, stats, repair);
      // Documents that are kept nowhere, not even their ends: nothing is computed again.
      if (std::ranges::all_of(repair.sets, &Runs::empty)) plan.stages.erase(plan.stages.begin() + stage + 1);
    }
    plan.stages.back().unseen = std::move(unseen);
  }

  std::vector<AnnexBlock> findings(const PromptLayout& layout, const ModelConfig& config, int stage,
                                   std::span<const Probe> probes) const override {
    return reading(layout).long_ones.findings(config, stage, probes);
  }

 private:
  Reading reading(const PromptLayout& layout) const {
    const BlockCut& cut = params_.choice.cut;
    Reading out{.long_ones = {layout, kBlockStats, cut}, .question = question_in(layout)};
    out.documents = documents_before(layout, out.question ? out.question->begin : layout.asked_end());
    for (const Run& piece : out.documents) {
      const Run middle = cut.middle(piece.size());
      if (middle.size() > 0) {
        out.long_ones.add(piece);
        const Run first = cut.tokens_of(middle.begin, piece.size()), last = cut.tokens_of(middle.end - 1, piece.size());
        out.middle = unite(out.middle, Runs{{piece.begin + first.begin, piece.begin + last.end}});
      }
    }
    out.middle = subtract(out.middle, Runs{{end_of_prompt(layout).begin, layout.prompt_len}});  // a row sees itself
    const bool given = params_.choice.keep >= 1 && params_.recompute != Recompute::kRule;
    out.looks = out.long_ones.size() > 0 && out.question && !given;
    return out;
  }

  Stage question_stage(const PromptLayout& layout, const Reading& read, const ModelConfig& config) const {
    Stage stage = uniform_stage(rows_of_question(layout, read.question), config.L);
    stage.probes = {query_probe(*read.question, all_layers(config.L))};
    stage.unseen.assign(static_cast<size_t>(config.L), read.middle);
    return stage;
  }

  KeptBlocks choose(const Reading& read, const ModelConfig& config, const std::vector<DocumentStats>& stats,
                    const Probe& question) const {
    BlockChoice choice = params_.choice;
    choice.stable = stable_layers_of(config);
    choice.documents = static_cast<int32_t>(read.documents.size());
    for (const Run& document : read.documents) choice.all_blocks += choice.cut.blocks(document.size());
    std::vector<std::vector<double>> query = question.sums;
    for (std::vector<double>& of_layer : query) {
      for (double& q : of_layer) q /= read.question->size();
    }
    return choose_blocks(choice, {config.H, config.G, config.E}, query, stats);
  }

  std::vector<int> stable_layers_of(const ModelConfig& config) const {
    if (params_.layers) return params_.layers->stable;
    const int end = params_.stable_end < 0 ? config.L : std::clamp(params_.stable_end, 1, config.L);
    const int from = params_.stable_begin < 0 ? config.L - (config.L + 7) / 8 : params_.stable_begin;
    const int begin = std::clamp(from, 0, end - 1);
    std::vector<int> out(static_cast<size_t>(end - begin));
    std::iota(out.begin(), out.end(), begin);
    return out;
  }

  // Blocks of the long documents as positions.
  Runs positions_of(const Reading& read, const std::vector<std::vector<int32_t>>& blocks) const {
    Runs out;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const Run& document = read.long_ones[i];
      for (const int32_t b : blocks[i]) {
        const Run of = params_.choice.cut.tokens_of(b, document.size());
        out.push_back({document.begin + of.begin, document.begin + of.end});
      }
    }
    return normalize(std::move(out));
  }

  // What is computed again: in each layer of what it kept; all that any layer kept is seen meanwhile, as it is.
  void set_repair(const PromptLayout& layout, const Reading& read, const KeptBlocks& kept,
                  const std::vector<DocumentStats>& stats, Stage& repair) const {
    Runs documents, some;
    for (const Run& document : read.documents) documents = unite(documents, Runs{document});
    const Runs before = intersect(layout.fresh(), Runs{{0, read.documents.back().end}});
    const Runs always = unite(before, subtract(documents, read.middle));
    repair.sets.clear();
    for (size_t l = 0; l < kept.size(); ++l) {
      const Runs here = positions_of(read, kept[l]);
      some = unite(some, here);
      Runs outliers;
      for (size_t i = 0; i < stats.size(); ++i) {
        const int32_t begin = read.long_ones[i].begin;
        for (const Run& run : stats[i].layers[l].attention.outliers)
          outliers.push_back({begin + run.begin, begin + run.end});
      }
      const bool all = params_.recompute == Recompute::kAll;
      repair.sets.push_back(unite(always, all ? here : intersect(here, normalize(std::move(outliers)))));
    }
    repair.sets.push_back(repair.sets.back());
    std::iota(repair.write.begin(), repair.write.end(), 0);
    repair.unseen.assign(kept.size(), subtract(read.middle, some));
  }

  const SamKVParams params_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_samkv(PolicyParams& p) {
  SamKVParams params;
  BlockChoice& choice = params.choice;
  choice.cut.block = p.integer("block", 64, kLeastBlock, 1 << 16);
  choice.cut.initial = p.integer("initial", 1, 0, 1 << 16);
  choice.cut.local = p.integer("local", 2, 0, 1 << 16);
  choice.keep = p.number("keep,budget", 0, 0, 1);
  choice.bias = p.flag("bias", true);
  if (choice.keep == 0) {
    using Anchor = BlockChoice::Anchor;
    choice.literal = p.flag("literal", false);
    const std::string anchor = p.choice("anchor", "ends", {"ends", "first", "last"});
    choice.anchor = anchor == "first" ? Anchor::kFirst : anchor == "last" ? Anchor::kLast : Anchor::kEnds;
    choice.middle_only = p.choice("total", "all", {"all", "middle"}) == "middle";
  }
  choice.shared = p.choice("blocks", "layer", {"layer", "shared"}) == "shared";
  choice.by_range = p.choice("norm", "query", {"query", "range"}) == "range";
  if (choice.bias) choice.cosine_by_head = p.choice("cosine", "layer", {"layer", "head"}) == "head";
  params.stable_begin = p.integer("stable_begin", -1, -1, 1 << 16);
  params.stable_end = p.integer("stable_end", -1, -1, 1 << 16);
  if (params.stable_begin < 0 && params.stable_end < 0) params.layers = p.layer_map("layers");
  const std::string recompute = p.choice("recompute", "rule", {"rule", "none", "all"});
  params.recompute = recompute == "none" ? Recompute::kNone : recompute == "all" ? Recompute::kAll : Recompute::kRule;
  const bool fuses = p.choice("fate", "overwrite", {"overwrite", "fuse"}) == "fuse";
  const double theta = p.number("theta", -1, -1, 1);
  if (theta < 0 && theta != -1) p.wrong("parameter 'theta' is a share from 0 to 1, or -1: the cosine");
  if (theta >= 0 && !fuses) p.wrong("parameter 'theta' is for fate=fuse");
  if (fuses) params.fate = Fate{.share = std::max(0.0, theta), .by_cosine = theta < 0};
  return std::make_unique<SamKV>(params);
}

}  // namespace kvilt
