#include "engine/idle_work.h"

#include <utility>

namespace kvilt {
namespace {

class NullSink : public TokenSink {
  void on_tokens(const TokenDelta&) override {}
  void on_finish(Completion) override {}
};

}  // namespace

std::shared_ptr<TokenSink> IdleWork::nobody() { return std::make_shared<NullSink>(); }

std::unique_ptr<Sequence> IdleWork::sequence(Prompt prompt, const char* policy, const ContentDomains& domains,
                                             OwnerId owner) {
  auto s = std::make_unique<Sequence>();
  s->id = kId;
  s->idle_work = true;
  s->submitted = Clock::now();
  s->domains = domains;
  s->owner = owner;
  s->policy = make_policy(policy, {}).value();
  s->request.policy.name = policy;
  s->request.sampling.max_tokens = 0;
  s->tokens = prompt.ids;
  s->prompt_len = s->max_len = static_cast<int32_t>(prompt.ids.size());
  s->request.prompt = std::move(prompt);
  s->sampler.emplace(s->request.sampling, 1, s->tokens);
  s->sink = nobody();
  return s;
}

}  // namespace kvilt
