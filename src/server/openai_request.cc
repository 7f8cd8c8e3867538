#include "server/openai_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "server/custom_tools.h"
#include "server/neutral_fields.h"

namespace kvilt::server {
namespace {

constexpr size_t kMaxName = 1024;       // model, cache_salt, policy: bytes
constexpr size_t kMaxNamespace = 128;   // bytes
constexpr size_t kMaxStops = 64;        // stop strings, stop ids
constexpr size_t kMaxStopBytes = 1024;  // of one stop string
constexpr size_t kMaxBiases = 1024;     // logit_bias entries
constexpr size_t kMaxAllowed = 16384;   // allowed_token_ids
constexpr const char* kTooLong = "context_length_exceeded";
constexpr int kMaxTopLogprobs = 20;      // OpenAI's bound
constexpr int64_t kMaxTokens = 1 << 30;  // the context bounds answers; this bounds arithmetic

int64_t last_id(const RequestLimits& limits) { return limits.vocab > 0 ? limits.vocab - 1 : INT32_MAX; }

// Fields that would change the answer and that are not supported: a clear error is better than a wrong answer. With no
// functions a function_call "auto" calls none.
void refuse_unsupported(Fields& fields) {
  constexpr const char* kNames[] = {"functions", "function_call", "use_beam_search", "audio"};
  for (const char* name : kNames) {
    const Json* value = fields.find(name);
    if (!value) continue;
    const bool none = std::string_view(name) == "function_call" && (*value == "none" || *value == "auto");
    const bool off = none || *value == false || *value == "" || (value->is_array() && value->empty());
    if (!off) fields.fail(name, "is not supported by this server", "unsupported");
  }
  if (const Json* modalities = fields.find("modalities")) {
    if (*modalities != Json::array({"text"})) fields.fail("modalities", "only [\"text\"] is supported", "unsupported");
  }
}

// Empty ones are left out, as in llama.cpp: clients send the fields of a form as they are.
void read_stop(Fields& fields, SamplingParams& sampling) {
  const Json* value = fields.find("stop");
  if (!value) return;
  const auto add = [&](const Json& item, const std::string& name) {
    if (!item.is_string()) return fields.fail(name, fmt::format("must be a string, not {}", type_of(item)));
    const auto& text = item.get_ref<const std::string&>();
    if (text.empty()) return;
    if (text.size() > kMaxStopBytes) return fields.fail(name, fmt::format("is longer than {} bytes", kMaxStopBytes));
    sampling.stop.push_back(text);
  };
  if (value->is_string()) {
    add(*value, "stop");
  } else if (value->is_array()) {
    if (value->size() > kMaxStops) return fields.fail("stop", fmt::format("has more than {} entries", kMaxStops));
    for (size_t i = 0; i < value->size(); ++i) add((*value)[i], fmt::format("stop[{}]", i));
  } else {
    fields.fail("stop", fmt::format("must be a string or a list of strings, not {}", type_of(*value)));
  }
}

void read_stop_ids(Fields& fields, const RequestLimits& limits, SamplingParams& sampling) {
  const Json* value = fields.find("stop_token_ids");
  if (!value) return;
  size_t bad = 0;
  auto ids = as_ids(*value, 0, last_id(limits), &bad);
  if (!ids)
    return fields.fail("stop_token_ids", fmt::format("must be a list of token ids from 0 to {}", last_id(limits)));
  if (ids->size() > kMaxStops) return fields.fail("stop_token_ids", fmt::format("has more than {} entries", kMaxStops));
  sampling.stop_ids = std::move(*ids);
}

// REQUIRES: the constraint was read.
void read_allowed_ids(Fields& fields, const RequestLimits& limits, Generation& out) {
  constexpr const char* kName = "allowed_token_ids";
  const Json* value = fields.find(kName);
  if (!value) return;
  size_t bad = 0;
  auto ids = as_ids(*value, 0, last_id(limits), &bad);
  if (!ids || ids->empty() || ids->size() > kMaxAllowed) {
    return fields.fail(kName,
                       fmt::format("must be a list of 1 to {} token ids from 0 to {}", kMaxAllowed, last_id(limits)));
  }
  if (out.constraint.constraint)
    return fields.fail(kName, fmt::format("is not supported beside {}", out.constraint.field), "unsupported");
  out.sampling.allowed_ids = std::move(*ids);
}

void read_logit_bias(Fields& fields, const RequestLimits& limits, SamplingParams& sampling) {
  const Json* value = fields.find("logit_bias");
  if (!value) return;
  if (!value->is_object()) {
    return fields.fail("logit_bias", fmt::format("must be an object of token id: bias, not {}", type_of(*value)));
  }
  if (value->size() > kMaxBiases) return fields.fail("logit_bias", fmt::format("has more than {} entries", kMaxBiases));
  for (const auto& [key, bias] : value->items()) {
    int32_t id = -1;
    const auto [end, failed] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool is_id = failed == std::errc() && end == key.data() + key.size() && id >= 0 && id <= last_id(limits);
    const std::string name = "logit_bias." + key.substr(0, 32);
    if (!is_id) return fields.fail(name, fmt::format("the key must be a token id from 0 to {}", last_id(limits)));
    if (!bias.is_number()) return fields.fail(name, fmt::format("must be a number, not {}", type_of(bias)));
    const double number = bias.get<double>();
    if (!(number >= -100 && number <= 100)) return fields.fail(name, "must be from -100 to 100");
    sampling.logit_bias[id] = static_cast<float>(number);
  }
}

// A parameter that is no policy's: a whole number.
void read_own(Fields& fields, PolicyChoice& policy, const char* name, int most, int* out) {
  const auto given = policy.params.extract(name);
  if (!given) return;
  const std::string& text = given.mapped();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (error != std::errc() || end != text.data() + text.size() || *out < 0 || *out > most)
    fields.fail(std::string("kvilt.") + name, fmt::format("must be a whole number from 0 to {}", most));
}

// Those that a request looks in, in order; "" is the common one.
void read_namespaces(Fields& fields, const Json& list, std::vector<std::string>* out) {
  constexpr const char* kName = "kvilt.namespaces";
  if (!list.is_array() || list.empty() || list.size() > kMostNamespaces)
    return fields.fail(kName, fmt::format("must be a list of 1 to {} names", kMostNamespaces));
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string name = fmt::format("{}[{}]", kName, i);
    if (!list[i].is_string()) return fields.fail(name, fmt::format("must be a string, not {}", type_of(list[i])));
    const auto& text = list[i].get_ref<const std::string&>();
    if (text.size() > kMaxNamespace) return fields.fail(name, fmt::format("is longer than {} bytes", kMaxNamespace));
    if (std::ranges::find(*out, text) != out->end()) return fields.fail(name, "is named twice");
    out->push_back(text);
  }
}

// publish, diagnostics: null for routes whose requests must keep their KV, and whose answers have no usage.
void read_policy(Fields& fields, PolicyChoice& policy, std::vector<std::string>* namespaces, bool* publish,
                 bool* diagnostics) {
  const Json* value = fields.find("kvilt");
  if (!value) return;
  if (!value->is_object()) return fields.fail("kvilt", fmt::format("must be an object, not {}", type_of(*value)));
  for (const auto& [key, setting] : value->items()) {
    const std::string name = "kvilt." + key.substr(0, 64);
    if (key == "policy") {
      if (!setting.is_string()) return fields.fail(name, fmt::format("must be a string, not {}", type_of(setting)));
      policy.name = setting.get<std::string>();
      if (policy.name.size() > kMaxName) return fields.fail(name, fmt::format("is longer than {} bytes", kMaxName));
    } else if (key == "namespaces") {
      read_namespaces(fields, setting, namespaces);
      if (!fields.ok()) return;
    } else if (bool* const flag = key == "publish" ? publish : key == "diagnostics" ? diagnostics : nullptr) {
      if (!setting.is_boolean())
        return fields.fail(name, fmt::format("must be true or false, not {}", type_of(setting)));
      *flag = setting.get<bool>();
    } else if (setting.is_string()) {
      const auto& text = setting.get_ref<const std::string&>();
      if (text.size() > kMaxName) return fields.fail(name, fmt::format("is longer than {} bytes", kMaxName));
      policy.params[key] = text;
    } else if (setting.is_number() || setting.is_boolean()) {
      policy.params[key] = setting.dump();
    } else {
      return fields.fail(name, fmt::format("must be a number, a boolean or a string, not {}", type_of(setting)));
    }
  }
}

void read_salt(Fields& fields, std::string* salt) {
  const Json* value = fields.find("cache_salt");
  fields.string("cache_salt", salt, kMaxName);
  // An empty salt would silently share what its sender meant to keep apart.
  if (value && fields.ok() && salt->empty()) fields.fail("cache_salt", "must not be empty");
}

void read_retention(Fields& fields, Retention* retention) {
  if (!fields.find("prompt_cache_retention")) return;
  std::string word;
  fields.string("prompt_cache_retention", &word, kMaxName);
  if (word == "24h") {
    *retention = Retention::kDay;
  } else if (word != "in_memory" && word != "in-memory") {
    fields.fail("prompt_cache_retention", "must be \"in_memory\" or \"24h\"");
  }
}

// vLLM's, SGLang's, llama.cpp's and OpenRouter's words for where thoughts go.
void read_thoughts(Fields& fields, Thoughts* out) {
  bool included = true, apart = true;
  fields.boolean("include_reasoning", &included);
  fields.boolean("separate_reasoning", &apart);
  if (const Json* format = fields.find("reasoning_format")) {
    if (*format != "none" && *format != "auto" && *format != "deepseek")
      return fields.fail("reasoning_format", R"(only "none", "auto" and "deepseek" are supported by this server)",
                         "unsupported");
    apart = apart && *format != "none";
  }
  if (const Json* settings = fields.find("reasoning"); settings && settings->is_object()) {
    Fields inner(*settings, "reasoning.");
    bool excluded = !included;
    inner.boolean("exclude", &excluded);
    if (inner.error()) return fields.fail(*inner.error());
    if (fields.find("include_reasoning") && excluded == included)
      return fields.fail("reasoning.exclude", "says the opposite of include_reasoning");
    included = !excluded;
  }
  *out = !included ? Thoughts::kLeftOut : apart ? Thoughts::kApart : Thoughts::kInContent;
}

// REQUIRES: the constraint was read.
void read_min_tokens(Fields& fields, Generation& out) {
  SamplingParams& sampling = out.sampling;
  fields.integer("min_tokens", 0, kMaxTokens, &sampling.min_tokens);
  if (sampling.max_tokens >= 0 && sampling.min_tokens > sampling.max_tokens)
    fields.fail("min_tokens", "is more than max_tokens");
  if (sampling.min_tokens > 0 && out.constraint.constraint)
    fields.fail("min_tokens", fmt::format("is not supported beside {}", out.constraint.field), "unsupported");
}

// vLLM's. A stream has no place for them.
void read_prompt_logprobs(Fields& fields, Generation& out) {
  fields.integer("prompt_logprobs", 0, kMaxTopLogprobs, &out.prompt_logprobs.listed);
  if (out.stream && out.prompt_logprobs.listed >= 0)
    fields.fail("prompt_logprobs", "is not supported with \"stream\": true", "unsupported");
}

// llama.cpp's, for completions of code. Its clients send them always, also at values where they do nothing.
void read_line_limits(Fields& fields, SamplingParams& sampling) {
  int64_t indent = 0, ms = 0;
  fields.integer("n_indent", INT32_MIN, INT32_MAX, &indent);
  fields.integer("t_max_predict_ms", INT32_MIN, INT32_MAX, &ms);
  sampling.min_indent = static_cast<int>(std::max<int64_t>(indent, 0));
  if (ms > 0) sampling.line_seconds = static_cast<double>(ms) / 1000;
}

void read_generation(Fields& fields, const RequestLimits& limits, Generation& out) {
  SamplingParams& sampling = out.sampling;
  limits.sampling.set(sampling);
  fields.string("model", &out.model, kMaxName);
  fields.number("temperature", 0, kMaxTemperature, &sampling.temperature);
  fields.number("top_p", 0, 1, &sampling.top_p);
  if (sampling.top_p == 0)
    sampling.top_p = std::numeric_limits<float>::min();  // OpenAI accepts 0: only the likeliest token
  fields.number("min_p", 0, 1, &sampling.min_p);
  fields.integer("top_k", -1, INT32_MAX, &sampling.top_k);
  if (sampling.top_k < 0) sampling.top_k = 0;  // vLLM's -1: all
  // llama.cpp's names where OpenAI's or vLLM's are not there.
  fields.number(fields.find("repetition_penalty") ? "repetition_penalty" : "repeat_penalty", kMinRepetitionPenalty,
                kMaxRepetitionPenalty, &sampling.repetition_penalty);
  fields.number("presence_penalty", -2, 2, &sampling.presence_penalty);
  fields.number("frequency_penalty", -2, 2, &sampling.frequency_penalty);
  fields.integer("repeat_last_n", -1, kMaxTokens, &sampling.penalty_window);  // llama.cpp's
  fields.integer("max_tokens", -1, kMaxTokens, &sampling.max_tokens);         // -1: as llama.cpp and LM Studio read it
  fields.integer("max_completion_tokens", -1, kMaxTokens, &sampling.max_tokens);
  if (!fields.find("max_tokens") && !fields.find("max_completion_tokens"))
    fields.integer("n_predict", -1, kMaxTokens, &sampling.max_tokens);
  read_line_limits(fields, sampling);
  fields.boolean("ignore_eos", &sampling.ignore_eos);
  sampling.seed = limits.seed;
  if (fields.find("seed")) {
    int64_t seed = 0;
    fields.integer("seed", INT64_MIN, INT64_MAX, &seed);
    sampling.seed = static_cast<uint64_t>(seed);
    if (seed == -1) sampling.seed.reset();  // as in vLLM and llama.cpp: another one each time
  }
  read_stop(fields, sampling);
  read_stop_ids(fields, limits, sampling);
  read_logit_bias(fields, limits, sampling);
  fields.integer("n", 1, limits.max_choices, &out.choices);
  int best_of = out.choices;
  fields.integer("best_of", 1, limits.max_choices, &best_of);
  if (best_of != out.choices) fields.fail("best_of", "is not supported beyond n", "unsupported");
  fields.boolean("stream", &out.stream);
  fields.boolean("return_progress", &out.progress);
  fields.boolean("include_stop_str_in_output", &out.shows_stop);
  fields.boolean("return_tokens_as_token_ids", &out.tokens_as_ids);
  read_prompt_logprobs(fields, out);
  if (const Json* options = fields.find("stream_options")) {
    if (!options->is_object()) {
      fields.fail("stream_options", fmt::format("must be an object, not {}", type_of(*options)));
    } else if (!out.stream) {
      fields.fail("stream_options", "is allowed with \"stream\": true only");
    } else {
      Fields inner(*options, "stream_options.");
      inner.boolean("include_usage", &out.include_usage);
      if (inner.error()) fields.fail("stream_options.include_usage", "must be true or false");
      inner.boolean("continuous_usage_stats", &out.usage_in_chunks);
      if (inner.error()) fields.fail("stream_options.continuous_usage_stats", "must be true or false");
      out.usage_in_chunks = out.usage_in_chunks && out.include_usage;  // as in vLLM
    }
  }
  read_salt(fields, &out.cache_salt);
  read_retention(fields, &out.retention);
  read_policy(fields, out.policy, &out.namespaces, &out.publish, &out.diagnostics);
  read_own(fields, out.policy, "draft", kMostDrafted, &out.draft);
  read_constraint(fields, out.constraint);
  read_samplers(fields, sampling);
  refuse_unsupported(fields);
}

void check_messages(Fields& fields, const RequestLimits& limits) {
  const Json* messages = fields.find("messages");
  if (!messages) return fields.fail("messages", "is required");
  if (!messages->is_array()) return fields.fail("messages", fmt::format("must be a list, not {}", type_of(*messages)));
  if (messages->empty()) return fields.fail("messages", "must not be empty");
  if (limits.context > 0 && messages->size() > static_cast<size_t>(limits.context)) {
    return fields.fail("messages",
                       fmt::format("has {} entries; this model's context of {} tokens cannot hold them",
                                   messages->size(), limits.context),
                       kTooLong);
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    const std::string name = fmt::format("messages[{}]", i);
    if (!message.is_object()) return fields.fail(name, fmt::format("must be an object, not {}", type_of(message)));
    const auto role = message.find("role");
    if (role == message.end()) return fields.fail(name + ".role", "is required");
    if (!role->is_string()) return fields.fail(name + ".role", fmt::format("must be a string, not {}", type_of(*role)));
  }
}

// One prompt of a completion request.
std::optional<TextPrompt> read_prompt(Fields& fields, const Json& value, const std::string& name,
                                      const RequestLimits& limits) {
  if (value.is_string()) {
    check_fits(fields, name, value.get_ref<const std::string&>().size(), limits);
    return fields.ok() ? std::optional<TextPrompt>(value.get<std::string>()) : std::nullopt;
  }
  size_t bad = 0;
  if (auto ids = as_ids(value, 0, last_id(limits), &bad)) {
    if (!ids->empty()) return std::move(*ids);
    fields.fail(name, "must not be empty");
  } else if (value.is_array()) {
    fields.fail(fmt::format("{}[{}]", name, bad), fmt::format("must be a token id from 0 to {}", last_id(limits)));
  } else {
    fields.fail(name, fmt::format("must be a string or a list of token ids, not {}", type_of(value)));
  }
  return std::nullopt;
}

void read_prompts(Fields& fields, const RequestLimits& limits, std::vector<TextPrompt>& out) {
  const Json* prompt = fields.find("prompt");
  if (!prompt) return fields.fail("prompt", "is required");
  // A list of numbers is one prompt; a list of strings or lists is several.
  const bool several = prompt->is_array() && !prompt->empty() && ((*prompt)[0].is_string() || (*prompt)[0].is_array());
  if (!several) {
    if (auto one = read_prompt(fields, *prompt, "prompt", limits)) out.push_back(std::move(*one));
    return;
  }
  if (prompt->size() > static_cast<size_t>(limits.max_prompts)) {
    return fields.fail("prompt", fmt::format("has more than {} prompts", limits.max_prompts));
  }
  for (size_t i = 0; i < prompt->size() && fields.ok(); ++i) {
    if (auto one = read_prompt(fields, (*prompt)[i], fmt::format("prompt[{}]", i), limits)) {
      out.push_back(std::move(*one));
    }
  }
}

// Calls are told by the name alone.
void check_custom_names(Fields& fields, const Json& tools, const std::vector<std::string>& custom) {
  std::map<std::string, int> count;
  for (const Json& tool : tools) {
    const auto inner = tool.is_object() ? tool.find(is_custom(tool) ? "custom" : "function") : tool.end();
    if (!tool.is_object() || inner == tool.end() || !inner->is_object()) continue;
    if (const Json name = inner->value("name", Json()); name.is_string()) ++count[name.get<std::string>()];
  }
  for (const std::string& name : custom) {
    if (count[name] > 1) return fields.fail("tools", fmt::format("two have the name '{}'", name.substr(0, 64)));
  }
}

void read_tools(Fields& fields, ChatRequest& out) {
  bool parallel = true;
  fields.boolean("parallel_tool_calls", &parallel);
  out.one_call = !parallel;
  const Json* tools = fields.find("tools");
  if (!tools) return;
  if (!tools->is_array()) return fields.fail("tools", fmt::format("must be a list, not {}", type_of(*tools)));
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const std::string path = fmt::format("tools[{}]", i);
    if (is_custom(tool)) {
      const auto custom = read_custom_tool(tool, path);
      if (!custom.ok()) return fields.fail(custom.error());
      out.custom_tools.push_back(custom.value().name);
      continue;
    }
    const Json type = tool.is_object() ? tool.value("type", Json()) : Json();
    if (type.is_null() || type == "function") continue;
    return fields.fail(path + ".type", "only \"function\" and \"custom\" are supported", "unsupported");
  }
  check_custom_names(fields, *tools, out.custom_tools);
  const Json* choice = fields.find("tool_choice");
  out.tools = !tools->empty() && !(choice && *choice == "none");
}

// REQUIRES: prompts, echo, add_special_tokens and last_tokens were read.
void read_suffix(Fields& fields, const RequestLimits& limits, TextRequest& out) {
  fields.string("suffix", &out.suffix, SIZE_MAX);
  check_fits(fields, "suffix", out.suffix.size(), limits);
  if (out.suffix.empty()) return;
  const auto is_ids = [](const TextPrompt& prompt) { return std::holds_alternative<std::vector<int32_t>>(prompt); };
  if (std::ranges::any_of(out.prompts, is_ids))
    fields.fail("suffix", "is supported with prompts that are texts", "unsupported");
  if (out.echo) fields.fail("suffix", "is not supported with echo", "unsupported");
  if (out.last_tokens != 0) fields.fail("suffix", "is not supported with truncate_prompt_tokens", "unsupported");
  if (!out.add_special_tokens)
    fields.fail("suffix", "is not supported with \"add_special_tokens\": false", "unsupported");
}

std::optional<ApiError> not_an_object(const Json& body) {
  if (body.is_object()) return std::nullopt;
  return ApiError{400, fmt::format("the body must be a JSON object, not {}", type_of(body)), "", ""};
}

}  // namespace

ApiResult<ChatRequest> parse_chat(const Json& body, const RequestLimits& limits) {
  if (auto error = not_an_object(body)) return *error;
  Fields fields(body);
  ChatRequest out;
  check_messages(fields, limits);
  read_generation(fields, limits, out.generation);
  read_tools(fields, out);
  read_tool_constraint(fields, out.one_call, out.generation.constraint);
  read_allowed_ids(fields, limits, out.generation);
  read_min_tokens(fields, out.generation);
  out.generation.constraint.constraint.reasons = true;
  read_thoughts(fields, &out.thoughts);
  refuse_but_neutral(fields, true);
  fields.boolean("echo", &out.echo);
  const Json* goes_on = fields.find("continue_final_message");
  if (out.echo && !(goes_on && *goes_on == true))
    fields.fail("echo", "is supported with \"continue_final_message\": true", "unsupported");
  bool logprobs = false;
  int top = 0;
  fields.boolean("logprobs", &logprobs);
  fields.integer("top_logprobs", 0, kMaxTopLogprobs, &top);
  if (top > 0 && !logprobs) fields.fail("top_logprobs", "needs \"logprobs\": true");
  if (logprobs) out.generation.sampling.logprobs = top;
  if (fields.error()) return *fields.error();
  return out;
}

ApiResult<TextRequest> parse_completion(const Json& body, const RequestLimits& limits) {
  if (auto error = not_an_object(body)) return *error;
  Fields fields(body);
  TextRequest out;
  out.generation.sampling.max_tokens = 16;  // OpenAI's default for this endpoint
  read_prompts(fields, limits, out.prompts);
  read_generation(fields, limits, out.generation);
  read_allowed_ids(fields, limits, out.generation);
  read_min_tokens(fields, out.generation);
  refuse_but_neutral(fields, false);
  fields.integer("logprobs", 0, kMaxTopLogprobs, &out.generation.sampling.logprobs);
  fields.boolean("echo", &out.echo);
  fields.boolean("add_special_tokens", &out.add_special_tokens);
  fields.integer("truncate_prompt_tokens", -1, limits.context > 0 ? limits.context : kMaxTokens, &out.last_tokens);
  if (out.last_tokens != 0 && out.echo)
    fields.fail("truncate_prompt_tokens", "is not supported with echo", "unsupported");
  read_suffix(fields, limits, out);
  if (out.echo) out.generation.prompt_logprobs.echoed = out.generation.sampling.logprobs;
  if (out.prompts.size() * static_cast<size_t>(out.generation.choices) > static_cast<size_t>(limits.max_prompts)) {
    fields.fail("n", fmt::format("times the number of prompts must not exceed {}", limits.max_prompts));
  }
  if (fields.error()) return *fields.error();
  return out;
}

void check_fits(Fields& fields, const std::string& name, size_t bytes, const RequestLimits& limits) {
  if (limits.longest_prompt == 0 || bytes <= static_cast<size_t>(limits.longest_prompt)) return;
  fields.fail(name,
              fmt::format("has {} bytes; this model's context of {} tokens holds {} at most", bytes, limits.context,
                          limits.longest_prompt),
              kTooLong);
}

void keep_last(std::vector<int32_t>& ids, int last_tokens, int most) {
  const int kept = last_tokens < 0 ? most : last_tokens;
  if (kept > 0 && std::ssize(ids) > kept) ids.erase(ids.begin(), ids.end() - kept);
}

ApiResult<TokenizeRequest> parse_tokenize(const Json& body, const RequestLimits& limits) {
  if (auto error = not_an_object(body)) return *error;
  Fields fields(body);
  TokenizeRequest out;
  fields.string("model", &out.model, kMaxName);
  fields.boolean("add_special_tokens", &out.add_special_tokens);
  fields.boolean("return_token_strs", &out.return_token_strs);
  out.chat = fields.find("messages") != nullptr;
  if (out.chat) {
    check_messages(fields, limits);
  } else if (fields.ok() && !fields.find("prompt")) {
    fields.fail("prompt", "is required (or messages)");
  } else {
    fields.string("prompt", &out.prompt, SIZE_MAX);
  }
  if (fields.error()) return *fields.error();
  return out;
}

ApiResult<DetokenizeRequest> parse_detokenize(const Json& body, const RequestLimits& limits) {
  if (auto error = not_an_object(body)) return *error;
  Fields fields(body);
  DetokenizeRequest out;
  fields.string("model", &out.model, kMaxName);
  if (const Json* tokens = fields.find("tokens")) {
    size_t bad = 0;
    if (auto ids = as_ids(*tokens, 0, last_id(limits), &bad)) {
      out.tokens = std::move(*ids);
    } else if (tokens->is_array()) {
      fields.fail(fmt::format("tokens[{}]", bad), fmt::format("must be a token id from 0 to {}", last_id(limits)));
    } else {
      fields.fail("tokens", fmt::format("must be a list of token ids, not {}", type_of(*tokens)));
    }
  } else {
    fields.fail("tokens", "is required");
  }
  if (fields.error()) return *fields.error();
  return out;
}

ApiResult<DocumentsRequest> parse_documents(const Json& body, const RequestLimits& limits) {
  if (auto error = not_an_object(body)) return *error;
  Fields fields(body);
  DocumentsRequest out;
  fields.string("model", &out.model, kMaxName);
  read_salt(fields, &out.cache_salt);
  read_policy(fields, out.policy, &out.namespaces, nullptr, nullptr);
  read_own(fields, out.policy, "season", kMostContexts, &out.season);
  const Json* documents = fields.find("documents");
  if (fields.ok() && !documents) fields.fail("documents", "is required");
  if (documents && !documents->is_array()) {
    fields.fail("documents", fmt::format("must be a list, not {}", type_of(*documents)));
  } else if (documents && documents->empty()) {
    fields.fail("documents", "must not be empty");
  } else if (documents && documents->size() > static_cast<size_t>(limits.max_prompts)) {
    fields.fail("documents",
                fmt::format("has more than {} entries: send them in several requests", limits.max_prompts));
  }
  for (size_t i = 0; documents && fields.ok() && i < documents->size(); ++i) {
    const Json& document = (*documents)[i];
    const std::string name = fmt::format("documents[{}]", i);
    if (!document.is_object()) {
      fields.fail(name, fmt::format("must be an object with \"text\", not {}", type_of(document)));
      break;
    }
    const auto text = document.find("text");
    if (text == document.end() || !text->is_string()) fields.fail(name + ".text", "is required and must be a string");
    const auto title = document.find("title");
    if (title != document.end() && !title->is_null() && !title->is_string()) {
      fields.fail(name + ".title", fmt::format("must be a string, not {}", type_of(*title)));
    }
  }
  if (fields.find("messages")) check_messages(fields, limits);
  if (fields.error()) return *fields.error();
  return out;
}

}  // namespace kvilt::server
