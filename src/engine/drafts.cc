#include "engine/drafts.h"

#include <algorithm>

namespace kvilt {
namespace {

constexpr int kMostLeft = 32;  // tokens that a constraint leaves, in one draft
constexpr double kSure = .8;   // a chance from which on a token is drafted whatever a row costs

// Measurements that hear of every row, or say what the tokens are, go step by step.
bool may_draft(const Sequence& s) {
  const Evaluation& asked = s.request.evaluation;
  const Sequence::Running& now = s.running;
  const bool measured = !asked.forced.empty() || asked.all_logits || asked.held_mass;
  return !measured && !now.keys && !now.own_kv && now.kv->whole();
}

// At most so many. No draft goes beyond the answer's last token, nor to where a LongRoPE model has other angles.
int longest(const Sequence& s, const ModelConfig& config, int most) {
  const auto size = static_cast<int32_t>(s.tokens.size());
  most = std::min(most, s.max_len - size - 1);
  while (most > 0 && config.is_long(size + most) && !config.is_long(size)) --most;
  return most;
}

}  // namespace

bool ends_answer(const Sequence& s, const ModelConfig& config, int32_t id) {
  const SamplingParams& params = s.request.sampling;
  const auto in = [id](const std::vector<int32_t>& ids) { return std::ranges::find(ids, id) != ids.end(); };
  return s.request.evaluation.forced.empty() && ((!params.ignore_eos && in(config.eos_ids)) || in(params.stop_ids));
}

void Drafts::begin_step(std::span<const std::unique_ptr<Sequence>> running) {
  decodes_ = static_cast<int>(std::ranges::count_if(running, &Sequence::decoding));
  length_.begin(cost_, decodes_);
}

void Drafts::add_foreseen(const ForeseenTokens& foreseen, int most, std::vector<int32_t>& draft) {
  double chance = 1;
  for (size_t i = 0; i < foreseen.size() && std::ssize(draft) < most; ++i) {
    const auto [id, alone] = foreseen.at(i);
    chance *= alone;
    // A token that is sure to come costs its row now or later.
    if (chance >= kSure) {
      length_.take(chance);
    } else if (!length_.add(chance)) {
      return;
    }
    draft.push_back(id);
  }
}

void Drafts::add_found(const Sequence& s, int most, std::vector<int32_t>& draft) {
  Answer& answer = answers_.try_emplace(s.id, secret_).first->second;
  const DraftFinder::Texts texts{s.tokens, cached_, s.domains.exact, s.domains.approximate};
  const double share = cost_.known() ? cost_.row_share(decodes_) : 0;
  answer.account.settle(s.usage.drafted, s.usage.accepted, share);
  answer.finder.read(texts);
  const auto worth = [&](double chance) {
    if (!length_.pays(chance) || !answer.account.allow(chance, share)) return false;
    length_.take(chance);
    return true;
  };
  answer.finder.propose(texts, most, worth, draft);
}

void Drafts::propose(Sequence& s, const ModelConfig& config, const ForeseenTokens* foreseen, int most) {
  const int asked = s.request.draft;
  const int found = asked < 0 ? most_ : std::min(most_, asked);
  const int left = !foreseen ? 0 : asked < 0 ? kMostLeft : std::min(kMostLeft, asked);
  if (std::max(found, left) == 0 || !may_draft(s)) return;
  std::vector<int32_t>& draft = s.running.draft;
  for (std::vector<int32_t>* list : {&draft, &s.running.ahead, &s.running.drawn}) {
    list->reserve(static_cast<size_t>(std::max(most_, kMostLeft)) + 1);  // in its first step: no later one allocates
  }
  most = std::min(most, longest(s, config, std::max(found, left)));
  if (most <= 0) return;
  if (const std::vector<int32_t>& given = s.request.evaluation.drafts; !given.empty()) {
    const auto from = std::min(given.size(), static_cast<size_t>(s.completion.completion_tokens));
    const auto count = std::min({given.size() - from, static_cast<size_t>(most), static_cast<size_t>(found)});
    draft.assign(given.begin() + static_cast<ptrdiff_t>(from), given.begin() + static_cast<ptrdiff_t>(from + count));
  } else {
    if (foreseen) add_foreseen(*foreseen, std::min(most, left), draft);
    if (found > 0) add_found(s, std::min(most, found), draft);
  }
  const auto end = std::ranges::find_if(draft, [&](int32_t id) { return ends_answer(s, config, id); });
  draft.erase(end, draft.end());  // nothing follows it
}

}  // namespace kvilt
