#include "engine/drafts.h"

#include <algorithm>

namespace kvilt {
namespace {

// Measurements that hear of every row, or say what the tokens are, go step by step.
bool may_draft(const Sequence& s) {
  const Evaluation& asked = s.request.evaluation;
  const Sequence::Running& now = s.running;
  const bool measured = !asked.forced.empty() || asked.all_logits || asked.held_mass;
  return !measured && !now.keys && !now.own_kv && now.kv->whole();
}

}  // namespace

bool ends_answer(const Sequence& s, const ModelConfig& config, int32_t id) {
  const SamplingParams& params = s.request.sampling;
  const auto in = [id](const std::vector<int32_t>& ids) { return std::ranges::find(ids, id) != ids.end(); };
  return s.request.evaluation.forced.empty() && ((!params.ignore_eos && in(config.eos_ids)) || in(params.stop_ids));
}

void Drafts::begin_step(std::span<const std::unique_ptr<Sequence>> running) {
  if (most_ > 0) length_.begin(cost_, static_cast<int>(std::ranges::count_if(running, &Sequence::decoding)));
}

// No draft goes beyond the answer's last token, nor to where a LongRoPE model has other angles.
int Drafts::longest(const Sequence& s, const ModelConfig& config) const {
  const auto size = static_cast<int32_t>(s.tokens.size());
  int most = s.request.draft < 0 ? most_ : std::min(most_, s.request.draft);
  most = std::min(most, s.max_len - size - 1);
  while (most > 0 && config.is_long(size + most) && !config.is_long(size)) --most;
  return most;
}

void Drafts::propose(Sequence& s, const ModelConfig& config, int most) {
  if (most_ == 0 || !may_draft(s)) return;
  std::vector<int32_t>& draft = s.running.draft;
  for (std::vector<int32_t>* list : {&draft, &s.running.ahead, &s.running.drawn}) {
    list->reserve(static_cast<size_t>(most_) + 1);  // in its first step, so that no later one allocates
  }
  most = std::min(most, longest(s, config));
  if (most <= 0) return;
  if (const std::vector<int32_t>& given = s.request.evaluation.drafts; !given.empty()) {
    const auto from = std::min(given.size(), static_cast<size_t>(s.completion.completion_tokens));
    const auto count = std::min(given.size() - from, static_cast<size_t>(most));
    draft.assign(given.begin() + static_cast<ptrdiff_t>(from), given.begin() + static_cast<ptrdiff_t>(from + count));
  } else {
    DraftFinder& finder = finders_.try_emplace(s.id, secret_).first->second;
    const DraftFinder::Texts texts{s.tokens, cached_, s.domains.exact, s.domains.approximate};
    finder.read(texts);
    finder.propose(
        texts, most, [this](double chance) { return length_.add(chance); }, draft);
  }
  const auto end = std::ranges::find_if(draft, [&](int32_t id) { return ends_answer(s, config, id); });
  draft.erase(end, draft.end());  // nothing follows it
}

}  // namespace kvilt
