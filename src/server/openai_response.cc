#include "server/openai_response.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

namespace kvilt::server {
namespace {

// JSON has no infinity; OpenAI reports tokens that cannot be drawn with -9999.
double finite(float logprob) { return std::isfinite(logprob) ? std::max(logprob, -9999.0f) : -9999.0; }

Json bytes_of(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

size_t characters(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

Json stop_reason(const Completion& end) { return end.stop_text.empty() ? Json(nullptr) : Json(end.stop_text); }

Json logprobs_of(const Envelope& envelope, const Engine& engine, Choice& choice) {
  if (!choice.with_logprobs) return nullptr;
  return envelope.chat ? chat_logprobs(engine, choice.logprobs) : text_logprobs(engine, choice.logprobs, choice.offset);
}

Json chunk(const Envelope& envelope, Json choices, bool usage_follows) {
  Json json = {{"id", envelope.id},
               {"object", envelope.chat ? "chat.completion.chunk" : "text_completion"},
               {"created", envelope.created},
               {"model", envelope.model},
               {"choices", std::move(choices)}};
  if (usage_follows) json["usage"] = nullptr;
  return json;
}

}  // namespace

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

Envelope make_envelope(bool chat, std::string model) {
  unsigned char raw[12];
  randombytes_buf(raw, sizeof raw);
  std::string id = chat ? "chatcmpl-" : "cmpl-";
  for (const unsigned char byte : raw) id += fmt::format("{:02x}", byte);
  return {std::move(id), std::move(model), static_cast<int64_t>(std::time(nullptr)), chat};
}

void UsageSum::add_prompt(const PromptUsage& usage) {
  sum_.prompt += usage.prompt;
  sum_.prefix += usage.prefix;
  sum_.chain += usage.chain;
  sum_.reused += usage.reused;
  sum_.seasoned += usage.seasoned;
  sum_.near += usage.near;
  sum_.recomputed += usage.recomputed;
  sum_.fresh += usage.fresh;
  sum_.kv_bytes.global += usage.kv_bytes.global;
  sum_.kv_bytes.local += usage.kv_bytes.local;
  sum_.kv_bytes.retrieval += usage.kv_bytes.retrieval;
  sum_.kv_bytes.dense += usage.kv_bytes.dense;
  sum_.evicted_bytes += usage.evicted_bytes;
  sum_.policy = usage.policy;
  sum_.ttft_s = std::max(sum_.ttft_s, usage.ttft_s);
}

Json UsageSum::json() const {
  const ByHeadClass& kv = sum_.kv_bytes;
  return {
      {"prompt_tokens", sum_.prompt},
      {"completion_tokens", completion_tokens_},
      {"total_tokens", sum_.prompt + completion_tokens_},
      {"prompt_tokens_details", {{"cached_tokens", sum_.prefix + sum_.reused - sum_.recomputed}}},
      {"kvilt",
       {{"prefix", sum_.prefix},
        {"chain", sum_.chain},
        {"reused", sum_.reused},
        {"seasoned", sum_.seasoned},
        {"near", sum_.near},
        {"recomputed", sum_.recomputed},
        {"fresh", sum_.fresh},
        {"kv_bytes", {{"global", kv.global}, {"local", kv.local}, {"retrieval", kv.retrieval}, {"dense", kv.dense}}},
        {"evicted_bytes", sum_.evicted_bytes},
        {"policy", sum_.policy},
        {"ttft_s", sum_.ttft_s}}}};
}

Json chat_logprobs(const Engine& engine, const std::vector<TokenLogprob>& tokens) {
  const auto entry = [&](int32_t id, float logprob) {
    const std::string text = engine.token_text(id);
    return Json{{"token", text}, {"logprob", finite(logprob)}, {"bytes", bytes_of(text)}};
  };
  Json content = Json::array();
  for (const TokenLogprob& token : tokens) {
    Json item = entry(token.id, token.logprob);
    item["top_logprobs"] = Json::array();
    for (const auto& [id, logprob] : token.top) item["top_logprobs"].push_back(entry(id, logprob));
    content.push_back(std::move(item));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json text_logprobs(const Engine& engine, const std::vector<TokenLogprob>& tokens, size_t& offset) {
  Json texts = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const TokenLogprob& token : tokens) {
    const std::string text = engine.token_text(token.id);
    texts.push_back(text);
    values.push_back(finite(token.logprob));
    offsets.push_back(offset);
    offset += characters(text);
    Json top = Json::object();
    top[text] = finite(token.logprob);
    for (const auto& [id, logprob] : token.top) top[engine.token_text(id)] = finite(logprob);
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json whole_answer(const Envelope& envelope, const Engine& engine, const std::vector<Choice>& choices,
                  const UsageSum& usage) {
  Json list = Json::array();
  for (Choice choice : choices) {
    Json item = {{"index", choice.index}};
    if (envelope.chat) {
      item["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    } else {
      item["text"] = choice.text;
    }
    item["logprobs"] = logprobs_of(envelope, engine, choice);
    item["finish_reason"] = finish_reason(choice.end->finish);
    item["stop_reason"] = stop_reason(*choice.end);
    list.push_back(std::move(item));
  }
  return {{"id", envelope.id},           {"object", envelope.chat ? "chat.completion" : "text_completion"},
          {"created", envelope.created}, {"model", envelope.model},
          {"choices", std::move(list)},  {"usage", usage.json()}};
}

Json role_chunk(const Envelope& envelope, int choice, bool usage_follows) {
  return chunk(envelope,
               Json::array({{{"index", choice},
                             {"delta", {{"role", "assistant"}, {"content", ""}}},
                             {"logprobs", nullptr},
                             {"finish_reason", nullptr}}}),
               usage_follows);
}

Json delta_chunk(const Envelope& envelope, const Engine& engine, Choice& grown, bool usage_follows) {
  Json item = {{"index", grown.index}};
  if (envelope.chat) {
    item["delta"] = {{"content", grown.text}};
  } else {
    item["text"] = grown.text;
  }
  item["logprobs"] = logprobs_of(envelope, engine, grown);
  item["finish_reason"] = nullptr;
  return chunk(envelope, Json::array({std::move(item)}), usage_follows);
}

Json end_chunk(const Envelope& envelope, int choice, const Completion& end, bool usage_follows) {
  Json item = {{"index", choice}};
  if (envelope.chat) {
    item["delta"] = Json::object();
  } else {
    item["text"] = "";
  }
  item["logprobs"] = nullptr;
  item["finish_reason"] = finish_reason(end.finish);
  item["stop_reason"] = stop_reason(end);
  return chunk(envelope, Json::array({std::move(item)}), usage_follows);
}

Json usage_chunk(const Envelope& envelope, const UsageSum& usage) {
  Json json = chunk(envelope, Json::array(), false);
  json["usage"] = usage.json();
  return json;
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
