#include "server/prompt_logprobs.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "server/openai_response.h"

namespace kvilt::server {
namespace {

constexpr size_t kMostEntries = size_t{1} << 18;  // tokens and likely ones, of one HTTP request
// The same of answers. More, since clients that ask for them seldom say max_tokens, and what may come is then the rest of
// the context, of which an answer takes a small part: one answer with 20 likely ones has room for 199,728 tokens.
constexpr size_t kMostOfAnswers = size_t{1} << 22;

Json listed_entry(const Engine& engine, int32_t id, float logprob, int rank) {
  return {{"logprob", finite(logprob)}, {"rank", rank}, {"decoded_token", engine.token_text(id)}};
}

}  // namespace

size_t characters(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

Status check_prompt_logprobs(const PromptLogprobs& shown, size_t tokens) {
  if (shown.most() < 0) return {};
  const size_t each = static_cast<size_t>(shown.most()) + 1, most = kMostEntries / each;
  if (tokens <= most) return {};
  return error(
      Code::kInvalidArgument,
      "log probabilities of {} tokens of prompts, with {} likely ones each, are more than one answer holds; send "
      "{} tokens at once (n times the prompts count), or ask for fewer",
      tokens, shown.most(), most);
}

Status check_answer_logprobs(const SamplingParams& sampling, int choices, const std::vector<int>& lengths,
                             int context) {
  if (sampling.logprobs < 0) return {};
  size_t tokens = 0;
  for (const int length : lengths) {
    const int left = std::max(0, context - length);
    tokens += static_cast<size_t>(sampling.max_tokens < 0 ? left : std::min(left, sampling.max_tokens));
  }
  tokens *= static_cast<size_t>(choices);
  const size_t most = kMostOfAnswers / (static_cast<size_t>(sampling.logprobs) + 1);
  if (tokens <= most) return {};
  const size_t answers = lengths.size() * static_cast<size_t>(choices);
  return error(Code::kInvalidArgument,
               "log probabilities of {} tokens of answers, which is what may come of {}, with {} likely ones each, are "
               "more than is kept of what is not streamed; set max_tokens to {} at most, ask for fewer answers or "
               "likely ones, or stream",
               tokens, answers, sampling.logprobs, most / answers);
}

Json prompt_logprobs_json(const Engine& engine, const std::vector<TokenLogprob>& prompt, int top) {
  Json out = Json::array();
  for (const TokenLogprob& token : prompt) {
    if (out.empty()) {  // nothing stands before it
      out.push_back(nullptr);
      continue;
    }
    Json entry = {{std::to_string(token.id), listed_entry(engine, token.id, token.logprob, token.rank)}};
    for (size_t i = 0; i < std::min(token.top.size(), static_cast<size_t>(top)); ++i) {
      const auto& [id, logprob] = token.top[i];
      entry.emplace(std::to_string(id), listed_entry(engine, id, logprob, static_cast<int>(i) + 1));
    }
    out.push_back(std::move(entry));
  }
  return out;
}

std::vector<size_t> offsets_in(const Engine& engine, const std::string& text, const std::vector<TokenLogprob>& tokens) {
  std::vector<size_t> out;
  size_t at = 0, characters_before = 0;
  for (const TokenLogprob& token : tokens) {
    out.push_back(characters_before);
    const std::string bytes = engine.token_text(token.id);
    const std::string_view rest = std::string_view(text).substr(at);
    size_t taken = 0;
    if (rest.starts_with(bytes) || at > 0) {  // in the middle of a text that was normalised: about as much
      taken = std::min(bytes.size(), rest.size());
    } else if (bytes.starts_with(' ') && rest.starts_with(bytes.substr(1))) {  // a space that the text never had
      taken = bytes.size() - 1;
    }
    characters_before += characters(rest.substr(0, taken));
    at += taken;
  }
  return out;
}

}  // namespace kvilt::server
