// server/routes_llama.cc: routes of llama.cpp's server, as far as its clients (llama.vim, llama.vscode) use them:
// /completion, /infill, /apply-template, /props, /slots. (/tokenize and /detokenize are in routes_info.cc.)
// Limits:     there are no slots: a request's KV is found by its content, so `id_slot` says nothing. /slots has an entry
//             for each running request and a free one.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/answer_job.h"
#include "server/chat_body.h"
#include "server/infill_prompt.h"
#include "server/llama_request.h"
#include "server/llama_writer.h"
#include "server/service.h"

namespace kvilt::server {
namespace {

Json settings_of(const SamplingParams& sampling) {
  return {{"n_predict", sampling.max_tokens},
          {"seed", sampling.seed ? Json(*sampling.seed) : Json(-1)},
          {"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"repeat_penalty", sampling.repetition_penalty},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"ignore_eos", sampling.ignore_eos},
          {"stop", sampling.stop}};
}

LlamaForm form_of(const Call& call, const LlamaCompletion& wanted) {
  return {.model = call.attached.model,
          .several = wanted.several,
          .fields = wanted.fields,
          .settings = settings_of(wanted.generation.sampling),
          .return_tokens = wanted.return_tokens,
          .post_sampling_probs = wanted.generation.sampling.drawn_logprobs,
          .engine = call.attached.engine};
}

// The first piece begins as the tokenizer has it; control tokens in text are such, as in /v1/completions.
Result<Prompt> prompt_of_pieces(const Engine& engine, const LlamaPrompt& pieces) {
  Prompt prompt;
  for (const TextPrompt& piece : pieces) {
    if (const auto* text = std::get_if<std::string>(&piece)) {
      KVILT_ASSIGN(const std::vector<int32_t> ids, engine.tokenize(*text, true, prompt.ids.empty()));
      prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
    } else {
      const auto& ids = std::get<std::vector<int32_t>>(piece);
      prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
    }
  }
  if (prompt.ids.empty()) return Error{Code::kInvalidArgument, "the prompt has no tokens"};
  return prompt;
}

void llama_completion(const Service& service, const Call& call, httplib::Response& response) {
  auto parsed = parse_llama_completion(call.body, limits_of(call.attached));
  if (!parsed.ok()) return reply_error(response, parsed.error());
  LlamaCompletion& wanted = parsed.value();
  if (auto error = check_model(call.attached, wanted.generation.model)) return reply_error(response, *error);
  TextJob job;
  for (const LlamaPrompt& pieces : wanted.prompts) {
    auto prompt = prompt_of_pieces(call.engine(), pieces);
    if (!prompt.ok()) return reply_error(response, api_error(prompt.error(), "prompt"));
    job.prompts.push_back(std::move(prompt.value()));
  }
  job.writer = llama_writer(form_of(call, wanted));
  job.generation = std::move(wanted.generation);
  for (const auto& [text, bias] : wanted.biased_texts) {
    const auto ids = call.engine().tokenize(text, false, false);
    if (!ids.ok()) return reply_error(response, api_error(ids.error(), "logit_bias"));
    for (const int32_t id : ids.value()) job.generation.sampling.logit_bias[id] = bias;
  }
  answer_text(service, call, std::move(job), response);
}

void infill(const Service& service, const Call& call, httplib::Response& response) {
  auto parsed = parse_llama_infill(call.body, limits_of(call.attached));
  if (!parsed.ok()) return reply_error(response, parsed.error());
  LlamaCompletion& wanted = parsed.value().completion;
  if (auto error = check_model(call.attached, wanted.generation.model)) return reply_error(response, *error);
  const auto tokens = InfillTokens::find(call.engine());
  if (!tokens.ok()) return reply_error(response, api_error(tokens.error(), "model"));
  SamplingParams& sampling = wanted.generation.sampling;
  const int context = call.engine().info().context;
  const int most = context - std::min(std::max(sampling.max_tokens, 1), context / 4);
  auto made = infill_prompt(call.engine(), tokens.value(), parsed.value().text, most);
  if (!made.ok()) return reply_error(response, api_error(made.error(), "input_prefix"));
  const auto& ends = tokens.value().ends;
  sampling.stop_ids.insert(sampling.stop_ids.end(), ends.begin(), ends.end());
  TextJob job;
  LlamaForm form = form_of(call, wanted);
  form.truncated = made.value().left_out > 0;
  job.prompts.push_back(std::move(made.value().prompt));
  job.field = "input_prefix";
  job.writer = llama_writer(std::move(form));
  job.generation = std::move(wanted.generation);
  answer_text(service, call, std::move(job), response);
}

void apply_template(const Service& service, const Call& call, httplib::Response& response) {
  const auto parsed = parse_chat(call.body, limits_of(call.attached));
  if (!parsed.ok()) return reply_error(response, parsed.error());
  if (auto error = check_model(call.attached, parsed.value().generation.model)) return reply_error(response, *error);
  if (auto error = settle_chat(service, call, call.body)) return reply_error(response, *error);
  const auto prompt = chat_prompt(service, call, call.body);
  if (!prompt.ok()) return reply_error(response, api_error(prompt.error(), "messages"));
  const auto text = call.engine().detokenize(prompt.value().ids);
  if (!text.ok()) return reply_error(response, api_error(text.error(), "messages"));
  reply_json(response, {{"prompt", text.value()}});
}

// Of several tenants none is told how many requests of the others run.
void props(const Service& service, const Call& call, httplib::Response& response) {
  const ModelInfo& info = call.engine().info();
  Json settings = {{"id", 0}, {"id_task", -1}, {"n_ctx", info.context}, {"is_processing", false}};
  SamplingParams usual;
  call.attached.sampling.or_else(kLlamaSampling).set(usual);
  usual.seed = call.attached.seed;
  settings["params"] = settings_of(usual);
  reply_json(response, {{"default_generation_settings", std::move(settings)},
                        {"total_slots", service.tenants().several() ? 1 : call.engine().stats().running + 1},
                        {"model_alias", call.attached.model},
                        {"model_path", info.name},
                        {"chat_template", info.chat_template},
                        {"bos_token", info.bos_token},
                        {"eos_token", info.eos_token},
                        {"modalities", {{"vision", false}, {"audio", false}}},
                        {"is_sleeping", false},
                        {"build_info", "kvilt"}});
}

void slots(const Call& call, httplib::Response& response) {
  const int running = call.engine().stats().running;
  Json list = Json::array();
  for (int i = 0; i <= running; ++i)
    list.push_back({{"id", i}, {"n_ctx", call.engine().info().context}, {"is_processing", i < running}});
  reply_json(response, list);
}

}  // namespace

void add_llama_routes(Service& service) {
  const auto with_service = [&service](void (*handler)(const Service&, const Call&, httplib::Response&)) {
    return [&service, handler](const Call& call, httplib::Response& response) { handler(service, call, response); };
  };
  for (const char* path : {"/completion", "/completions"}) service.post(path, with_service(llama_completion));
  service.post("/infill", with_service(infill));
  service.post("/apply-template", with_service(apply_template));
  service.get("/props", with_service(props));
  service.get("/slots", slots);
  if (service.tenants().several()) service.for_admins("/slots");
}

}  // namespace kvilt::server
