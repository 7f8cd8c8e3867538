#include "server/openai_response.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/sse.h"

namespace kvilt::server {
namespace {

std::string shown_token(int32_t id, const std::string& text, bool as_id) {
  return as_id ? "token_id:" + std::to_string(id) : text;
}

// A call that max_tokens cut is one, and the reason stays.
const char* finish_reason_of(const Choice& choice) {
  return choice.called && choice.end->finish == Finish::kStop ? "tool_calls" : finish_reason(choice.end->finish);
}

Json calls_delta(int index, Json call) {
  Json out{{"index", index}};
  out.update(call);
  return {{"tool_calls", Json::array({std::move(out)})}};
}

// A call that begins; its input or arguments grow.
Json new_call(const AnswerEvent& event) {
  if (event.custom) return {{"id", event.id}, {"type", "custom"}, {"custom", {{"name", event.text}, {"input", ""}}}};
  return {{"id", event.id}, {"type", "function"}, {"function", {{"name", event.text}, {"arguments", ""}}}};
}

// A message's content is one text: the words around a call would become one.
std::string content_of(const AnswerEvent& event) { return (event.apart ? "\n" : "") + event.text; }

// An event as a chunk's `delta`; null: nothing is said about it.
Json delta_of(const AnswerEvent& event) {
  switch (event.kind) {
    case AnswerEvent::Kind::kContent:
      return {{"content", content_of(event)}};
    case AnswerEvent::Kind::kReasoning:
      return {{"reasoning_content", event.text}};
    case AnswerEvent::Kind::kCallStart:
      return calls_delta(event.call, new_call(event));
    case AnswerEvent::Kind::kArguments:
      if (event.custom) return calls_delta(event.call, {{"custom", {{"input", event.text}}}});
      return calls_delta(event.call, {{"function", {{"arguments", event.text}}}});
    case AnswerEvent::Kind::kCallEnd:
      return nullptr;
  }
  return nullptr;
}

Json message_of(const Choice& choice) {
  std::string content = choice.text, reasoning;
  Json calls = Json::array();
  for (const AnswerEvent& event : joined(choice.events)) {
    if (event.kind == AnswerEvent::Kind::kContent) content += content_of(event);
    if (event.kind == AnswerEvent::Kind::kReasoning) reasoning += event.text;
    if (event.kind == AnswerEvent::Kind::kCallStart) calls.push_back(new_call(event));
    if (event.kind == AnswerEvent::Kind::kArguments) {
      Json& text = event.custom ? calls.back()["custom"]["input"] : calls.back()["function"]["arguments"];
      text.get_ref<std::string&>() += event.text;
    }
  }
  const bool silent = content.empty() && !calls.empty();
  Json out{{"role", "assistant"}, {"content", silent ? Json(nullptr) : Json(content)}, {"refusal", nullptr}};
  if (!reasoning.empty()) out["reasoning_content"] = std::move(reasoning);
  if (!calls.empty()) out["tool_calls"] = std::move(calls);
  return out;
}

Json stop_reason(const Completion& end) { return end.stop_text.empty() ? Json(nullptr) : Json(end.stop_text); }

Json logprobs_of(const Envelope& envelope, const Engine& engine, Choice& choice) {
  if (!choice.with_logprobs) return nullptr;
  const bool as_ids = envelope.tokens_as_ids;
  return envelope.chat ? chat_logprobs(engine, choice.logprobs, as_ids) : text_logprobs(engine, choice, as_ids);
}

Json chunk(const Envelope& envelope, Json choices, bool usage_follows) {
  Json json = {{"id", envelope.id},
               {"object", envelope.chat ? "chat.completion.chunk" : "text_completion"},
               {"created", envelope.created},
               {"model", envelope.model},
               {"system_fingerprint", envelope.fingerprint},
               {"choices", std::move(choices)}};
  if (usage_follows) json["usage"] = nullptr;
  return json;
}

}  // namespace

double finite(float logprob) { return std::isfinite(logprob) ? std::max(logprob, -9999.0f) : -9999.0; }

Json bytes_of(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

const char* finish_reason(Finish finish) {
  switch (finish) {
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kCancelled:
      return "abort";
    case Finish::kError:
      return "error";
  }
  return "error";
}

Envelope make_envelope(bool chat, std::string model, std::string fingerprint) {
  return {answer_id(chat ? "chatcmpl-" : "cmpl-"), std::move(model), static_cast<int64_t>(std::time(nullptr)), chat,
          std::move(fingerprint)};
}

Json usage_json(const UsageSum& usage) {
  const PromptUsage& prompt = usage.prompt();
  return {{"prompt_tokens", prompt.prompt},
          {"completion_tokens", usage.completion_tokens()},
          {"total_tokens", prompt.prompt + usage.completion_tokens()},
          {"prompt_tokens_details", {{"cached_tokens", prompt.prefix + prompt.reused - prompt.recomputed}}},
          {"kvilt", kvilt_usage(usage)}};
}

Json with_top(const std::vector<TokenLogprob>& tokens, FunctionRef<Json(int32_t id, float logprob)> entry,
              const char* top) {
  Json out = Json::array();
  for (const TokenLogprob& token : tokens) {
    Json item = entry(token.id, token.logprob);
    Json& others = item[top] = Json::array();
    for (const auto& [id, logprob] : token.top) others.push_back(entry(id, logprob));
    out.push_back(std::move(item));
  }
  return out;
}

Json chat_logprobs(const Engine& engine, const std::vector<TokenLogprob>& tokens, bool as_ids) {
  const auto entry = [&](int32_t id, float logprob) {
    const std::string text = engine.token_text(id);
    return Json{{"token", shown_token(id, text, as_ids)}, {"logprob", finite(logprob)}, {"bytes", bytes_of(text)}};
  };
  return {{"content", with_top(tokens, entry)}, {"refusal", nullptr}};
}

namespace {
// The columns of a text completion's log probabilities.
class TextColumns {
 public:
  TextColumns(const Engine& engine, bool as_ids) : engine_(engine), as_ids_(as_ids) {}

  // top: of the token's likely ones.
  void add(const TokenLogprob& token, size_t offset, size_t top) {
    add_name(token.id, offset);
    values_.push_back(finite(token.logprob));
    Json all = Json::object();
    add_top(all, token.id, token.logprob);
    for (size_t i = 0; i < std::min(token.top.size(), top); ++i) add_top(all, token.top[i].first, token.top[i].second);
    tops_.push_back(std::move(all));
  }
  void add_without_value(int32_t id, size_t offset) {
    add_name(id, offset);
    values_.push_back(nullptr);
    tops_.push_back(nullptr);
  }
  Json json() && {
    return {{"tokens", std::move(texts_)},
            {"token_logprobs", std::move(values_)},
            {"top_logprobs", std::move(tops_)},
            {"text_offset", std::move(offsets_)}};
  }

 private:
  std::string shown(int32_t id) const { return shown_token(id, engine_.token_text(id), as_ids_); }
  void add_name(int32_t id, size_t offset) {
    texts_.push_back(shown(id));
    offsets_.push_back(offset);
  }
  // Tokens whose text a client reads as the same share a place (parts of characters are replaced when JSON is dumped):
  // the likeliest keeps it.
  void add_top(Json& all, int32_t id, float logprob) const {
    std::string name = shown(id);
    if (std::ranges::any_of(name, [](char c) { return (c & 0x80) != 0; })) name = Json::parse(dump(name));
    Json& place = all[name];
    const double value = finite(logprob);
    if (place.is_null() || place.get<double>() < value) place = value;
  }

  const Engine& engine_;
  const bool as_ids_;
  Json texts_ = Json::array(), values_ = Json::array(), tops_ = Json::array(), offsets_ = Json::array();
};
}  // namespace

Json text_logprobs(const Engine& engine, Choice& choice, bool as_ids) {
  TextColumns columns(engine, as_ids);
  for (size_t i = 0; choice.shown.echoed >= 0 && i < choice.prompt.size(); ++i) {
    if (i == 0) {
      columns.add_without_value(choice.prompt[i].id, choice.prompt_offsets[i]);
    } else {
      columns.add(choice.prompt[i], choice.prompt_offsets[i], static_cast<size_t>(choice.shown.echoed));
    }
  }
  for (const TokenLogprob& token : choice.logprobs) {
    columns.add(token, choice.offset, token.top.size());
    choice.offset += characters(engine.token_text(token.id));
  }
  return std::move(columns).json();
}

Json whole_answer(const Envelope& envelope, const Engine& engine, const std::vector<Choice>& choices,
                  const UsageSum& usage) {
  Json list = Json::array();
  for (Choice choice : choices) {
    Json item = {{"index", choice.index}};
    if (envelope.chat) {
      item["message"] = message_of(choice);
    } else {
      item["text"] = choice.text;
    }
    item["logprobs"] = logprobs_of(envelope, engine, choice);
    item["finish_reason"] = finish_reason_of(choice);
    item["stop_reason"] = stop_reason(*choice.end);
    if (!envelope.chat && choice.shown.listed >= 0)
      item["prompt_logprobs"] = prompt_logprobs_json(engine, choice.prompt, choice.shown.listed);
    list.push_back(std::move(item));
  }
  Json out = {{"id", envelope.id},
              {"object", envelope.chat ? "chat.completion" : "text_completion"},
              {"created", envelope.created},
              {"model", envelope.model},
              {"system_fingerprint", envelope.fingerprint},
              {"choices", std::move(list)},
              {"usage", usage_json(usage)}};
  // As vLLM has it: a chat's prompt is the same for all choices.
  if (envelope.chat && !choices.empty() && choices[0].shown.listed >= 0)
    out["prompt_logprobs"] = prompt_logprobs_json(engine, choices[0].prompt, choices[0].shown.listed);
  return out;
}

Json role_chunk(const Envelope& envelope, int choice, bool usage_follows) {
  return chunk(envelope,
               Json::array({{{"index", choice},
                             {"delta", {{"role", "assistant"}, {"content", ""}}},
                             {"logprobs", nullptr},
                             {"finish_reason", nullptr}}}),
               usage_follows);
}

Json delta_chunk(const Envelope& envelope, const Engine& engine, Choice& grown, bool usage_follows, Json said) {
  Json item = {{"index", grown.index}};
  if (envelope.chat) {
    item["delta"] = std::move(said);
  } else {
    item["text"] = grown.text;
  }
  item["logprobs"] = logprobs_of(envelope, engine, grown);
  item["finish_reason"] = nullptr;
  return chunk(envelope, Json::array({std::move(item)}), usage_follows);
}

Json end_chunk(const Envelope& envelope, const Choice& choice, bool usage_follows) {
  Json item = {{"index", choice.index}};
  if (envelope.chat) {
    item["delta"] = Json::object();
  } else {
    item["text"] = "";
  }
  item["logprobs"] = nullptr;
  item["finish_reason"] = finish_reason_of(choice);
  item["stop_reason"] = stop_reason(*choice.end);
  return chunk(envelope, Json::array({std::move(item)}), usage_follows);
}

Json usage_chunk(const Envelope& envelope, const UsageSum& usage) {
  Json json = chunk(envelope, Json::array(), false);
  json["usage"] = usage_json(usage);
  return json;
}

namespace {
class OpenAiWriter final : public AnswerWriter {
 public:
  OpenAiWriter(Envelope envelope, const Engine& engine, StreamUsage usage)
      : envelope_(std::move(envelope)), engine_(engine), usage_(usage) {}

  const std::string& id() const override { return envelope_.id; }

  Json whole(const std::vector<Choice>& choices, const UsageSum& usage) const override {
    return whole_answer(envelope_, engine_, choices, usage);
  }

  std::string begin(std::vector<Choice>& choices) override {
    started_.resize(choices.size(), !envelope_.chat);  // a text completion has no role to say
    std::string echoes;
    for (Choice& choice : choices) {
      if (!choice.text.empty() || !choice.events.empty()) echoes += grown(choice);
    }
    return echoes;
  }

  std::string grown(Choice& choice) override {
    std::string events;
    if (!started_[static_cast<size_t>(choice.index)]) {
      started_[static_cast<size_t>(choice.index)] = true;
      events = event(role_chunk(envelope_, choice.index, usage_follows()), choice.prompt_tokens, 0);
    }
    return events + delta(choice);
  }

  // llama.cpp's field.
  std::string progress(int choice, const PromptProgress& now) const override {
    Json item{{"index", choice}};
    if (envelope_.chat) {
      item["delta"] = Json::object();
    } else {
      item["text"] = "";
    }
    item["logprobs"] = nullptr;
    item["finish_reason"] = nullptr;
    Json said = chunk(envelope_, Json::array({std::move(item)}), usage_follows());
    said["prompt_progress"] = progress_json(now);
    return event(std::move(said), now.total, 0);
  }

  std::string ended(const Choice& choice) override {
    return event(end_chunk(envelope_, choice, usage_follows()), choice.prompt_tokens, choice.tokens);
  }

  std::string done(const std::vector<Choice>&, const UsageSum& usage) override {
    return (usage_follows() ? sse_event(usage_chunk(envelope_, usage)) : "") + std::string(kSseDone);
  }

  std::string failed(const ApiError& error) override {
    return "data: " + error_body(error) + "\n\n" + std::string(kSseDone);
  }

  std::string ping() override { return std::string(kSseComment); }

 private:
  std::string delta(Choice& choice) const {
    std::string out;
    for (const AnswerEvent& event : joined(std::exchange(choice.events, {}))) {
      if (Json said = delta_of(event); !said.is_null()) out += delta(choice, std::move(said));
    }
    if (!choice.text.empty() || !choice.logprobs.empty() || !choice.prompt.empty())
      out += delta(choice, {{"content", choice.text}});
    return out;
  }

  std::string delta(Choice& choice, Json said) const {
    Json chunk = delta_chunk(envelope_, engine_, choice, usage_follows(), std::move(said));
    choice.text.clear();
    choice.logprobs.clear();
    choice.prompt.clear();
    return event(std::move(chunk), choice.prompt_tokens, choice.tokens);
  }

  bool usage_follows() const { return usage_ != StreamUsage::kNone; }

  std::string event(Json chunk, int prompt, int completion) const {
    if (usage_ == StreamUsage::kEvery)
      chunk["usage"] = {
          {"prompt_tokens", prompt}, {"completion_tokens", completion}, {"total_tokens", prompt + completion}};
    return sse_event(chunk);
  }

  const Envelope envelope_;
  const Engine& engine_;
  const StreamUsage usage_;
  std::vector<bool> started_;  // per choice: its role was sent
};
}  // namespace

std::unique_ptr<AnswerWriter> openai_writer(Envelope envelope, const Engine& engine, StreamUsage usage) {
  return std::make_unique<OpenAiWriter>(std::move(envelope), engine, usage);
}

Json sampling_json(const SamplingParams& sampling) {
  return {{"temperature", as_written(sampling.temperature)},
          {"top_p", as_written(sampling.top_p)},
          {"top_k", sampling.top_k},
          {"min_p", as_written(sampling.min_p)},
          {"repetition_penalty", as_written(sampling.repetition_penalty)}};
}

Json model_json(const ModelInfo& info, const std::string& id, int64_t created) {
  return {{"id", id},
          {"object", "model"},
          {"created", created},
          {"owned_by", "kvilt"},
          {"root", info.name},
          {"parent", nullptr},
          {"max_model_len", info.context},
          {"kvilt",
           {{"arch", info.arch},
            {"description", info.description},
            {"backend", info.backend},
            {"threads", info.threads},
            {"parameters", info.parameters},
            {"vocab", info.vocab},
            {"kv_type", info.kv_type},
            {"kv_bytes_per_token", info.kv_bytes_per_token},
            {"kv_pool_bytes", info.kv_pool_bytes},
            {"policies", info.policies},
            {"reuse", info.reuse},
            {"reuse_refused", info.reuse_refused},
            {"default",
             {{"policy", info.default_policy},
              {"quality", info.default_quality},
              {"text", info.default_text},
              {"trust", info.default_trust}}}}}};
}

}  // namespace kvilt::server
