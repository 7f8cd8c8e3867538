#include "server/llama_writer.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "server/openai_response.h"
#include "server/sse.h"

namespace kvilt::server {
namespace {

// llama.cpp's word for the end, and ours in its terms.
const char* stop_type(const Completion& end) {
  if (end.finish == Finish::kLength) return "limit";
  return end.stop_text.empty() ? "eos" : "word";
}

double rate(int tokens, double seconds) { return seconds > 0 ? tokens / seconds : 0; }
double each(int tokens, double seconds) { return tokens > 0 ? 1000 * seconds / tokens : 0; }

Json timings_of(const Completion& end) {
  const PromptUsage& prompt = end.usage;
  const int cached = prompt.prefix + prompt.reused - prompt.recomputed, computed = prompt.prompt - cached;
  const double before = std::max(0.0, prompt.ttft_s - prompt.queued_s),
               after = std::max(0.0, end.total_s - prompt.ttft_s);
  return {{"cache_n", cached},
          {"prompt_n", computed},
          {"prompt_ms", 1000 * before},
          {"prompt_per_token_ms", each(computed, before)},
          {"prompt_per_second", rate(computed, before)},
          {"predicted_n", end.completion_tokens},
          {"predicted_ms", 1000 * after},
          {"predicted_per_token_ms", each(end.completion_tokens, after)},
          {"predicted_per_second", rate(end.completion_tokens, after)}};
}

// "timings/prompt_n" of an answer, under that name; what it does not have is left out.
Json chosen(const Json& answer, const std::vector<std::string>& fields) {
  Json out = Json::object();
  for (const std::string& field : fields) {
    const Json* at = &answer;
    for (size_t begin = 0; at && begin <= field.size();) {
      const size_t end = std::min(field.find('/', begin), field.size());
      const auto it = at->is_object() ? at->find(field.substr(begin, end - begin)) : at->end();
      at = it == at->end() ? nullptr : &*it;
      begin = end + 1;
    }
    if (at) out[field] = *at;
  }
  return out;
}

class LlamaWriter final : public AnswerWriter {
 public:
  explicit LlamaWriter(LlamaForm form) : id_(answer_id("cmpl-")), form_(std::move(form)) {}

  const std::string& id() const override { return id_; }

  Json whole(const std::vector<Choice>& choices, const UsageSum&) const override {
    Json answers = Json::array();
    for (const Choice& choice : choices) {
      Json one = last(choice, choice.text, has_line_end(choice.text));
      if (form_.return_tokens) one["tokens"] = choice.ids;
      if (choice.with_logprobs) one["completion_probabilities"] = probabilities(choice.logprobs);
      answers.push_back(form_.fields.empty() ? std::move(one) : chosen(one, form_.fields));
    }
    return form_.several ? answers : answers.at(0);
  }

  std::string begin(std::vector<Choice>&) override { return {}; }

  std::string grown(Choice& choice) override {
    if (choice.text.empty()) return {};
    if (has_line_end(choice.text)) with_lines_.insert(choice.index);
    const std::string event = said(choice);
    choice.text.clear();
    choice.ids.clear();
    choice.logprobs.clear();
    return event;
  }

  // Tokens whose text was held back, and the end token, come before the last event, which has none.
  std::string ended(const Choice& choice) override {
    const std::string left = choice.ids.empty() ? "" : said(choice);
    return left + sse_event(last(choice, "", with_lines_.contains(choice.index)));
  }
  std::string done(const std::vector<Choice>&, const UsageSum&) override { return {}; }
  std::string failed(const ApiError& error) override { return "data: " + error_body(error) + "\n\n"; }
  std::string ping() override { return std::string(kSseComment); }
  std::string progress(int choice, const PromptProgress& now) const override {
    return sse_event({{"index", choice},
                      {"content", ""},
                      {"tokens", Json::array()},
                      {"stop", false},
                      {"id_slot", -1},
                      {"prompt_progress", progress_json(now)}});
  }

 private:
  bool fills_context(const Completion& end) const {
    return end.finish == Finish::kLength && end.usage.prompt + end.completion_tokens >= form_.engine->info().context;
  }

  // For each token the likeliest ones: the model's, or what it was drawn from.
  Json probabilities(const std::vector<TokenLogprob>& tokens) const {
    const auto entry = [this](int32_t id, float logprob) {
      const std::string text = form_.engine->token_text(id);
      Json out{{"id", id}, {"token", text}, {"bytes", bytes_of(text)}};
      if (form_.post_sampling_probs) {
        out["prob"] = std::exp(logprob);
      } else {
        out["logprob"] = finite(logprob);
      }
      return out;
    };
    return with_top(tokens, entry, form_.post_sampling_probs ? "top_probs" : "top_logprobs");
  }

  // What a stream has not sent of it yet.
  std::string said(const Choice& choice) const {
    Json out{
        {"index", choice.index}, {"content", choice.text}, {"tokens", choice.ids}, {"stop", false}, {"id_slot", -1}};
    if (choice.with_logprobs) out["completion_probabilities"] = probabilities(choice.logprobs);
    return sse_event(out);
  }

  static bool has_line_end(const std::string& text) { return text.find('\n') != std::string::npos; }

  Json last(const Choice& choice, const std::string& content, bool has_lines) const {
    const Completion& end = *choice.end;
    return {{"index", choice.index},
            {"content", content},
            {"tokens", Json::array()},
            {"id_slot", -1},
            {"stop", true},
            {"model", form_.model},
            {"tokens_predicted", end.completion_tokens},
            {"tokens_evaluated", end.usage.prompt},
            {"tokens_cached", end.usage.prompt + end.completion_tokens},
            {"generation_settings", form_.settings},
            {"has_new_line", has_lines},
            {"truncated", form_.truncated || fills_context(end)},
            {"stop_type", stop_type(end)},
            {"stopping_word", end.stop_text},
            {"timings", timings_of(end)},
            {"kvilt", kvilt_usage(end.usage)}};
  }

  const std::string id_;
  const LlamaForm form_;
  std::set<int> with_lines_;  // of a stream: choices in which a line end was sent
};

}  // namespace

std::unique_ptr<AnswerWriter> llama_writer(LlamaForm form) { return std::make_unique<LlamaWriter>(std::move(form)); }

}  // namespace kvilt::server
