#include "server/llama_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/neutral_fields.h"

namespace kvilt::server {
namespace {

constexpr size_t kMaxFieldPaths = 64, kMaxFieldPath = 128, kMaxExtra = 1024, kMaxFileName = 4096, kMostBiases = 1024,
                 kMostBiased = 256;

struct LlamaName {
  const char *own, *ours;
};
constexpr LlamaName kNames[] = {{"model", "model"},
                                {"temperature", "temperature"},
                                {"top_k", "top_k"},
                                {"top_p", "top_p"},
                                {"min_p", "min_p"},
                                {"repeat_penalty", "repetition_penalty"},
                                {"presence_penalty", "presence_penalty"},
                                {"frequency_penalty", "frequency_penalty"},
                                {"repeat_last_n", "repeat_last_n"},
                                {"stop", "stop"},
                                {"n_indent", "n_indent"},
                                {"t_max_predict_ms", "t_max_predict_ms"},
                                {"stream", "stream"},
                                {"return_progress", "return_progress"},
                                {"ignore_eos", "ignore_eos"},
                                {"grammar", "grammar"},
                                {"grammar_lazy", "grammar_lazy"},
                                {"json_schema", "json_schema"},
                                {"n_probs", "logprobs"},
                                {"kvilt", "kvilt"},
                                {"cache_salt", "cache_salt"}};

// Of neutral_names(); the others are ignored here, as llama.cpp's server does, or have other values that do nothing.
constexpr const char* kNeutral[] = {"mirostat",       "typical_p",       "dynatemp_range",
                                    "dry_multiplier", "xtc_probability", "adaptive_target",
                                    "top_n_sigma",    "n_cmpl",          "thinking_budget_tokens"};

void refuse_llama(Fields& fields) {
  for (const char* name : {"image_data", "multimodal_data", "lora"}) {
    const Json* value = fields.find(name);
    const bool off =
        value && (*value == false || *value == "" || ((value->is_array() || value->is_object()) && value->empty()));
    if (value && !off) fields.fail(name, "is not supported by this server", "unsupported");
  }
  for (const char* name : kNeutral) refuse_one_but_neutral(fields, name);
}

// "12" is an id where ids are keys, a text where a pair says so.
bool is_digits(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

// [[id or text, bias], ...] or {"id or text": bias}; false forbids a token. Ids stay for the reader of text completions.
Json read_biases(Fields& fields, LlamaCompletion& out) {
  const Json* value = fields.find("logit_bias");
  if (!value) return {};
  Json ids = Json::object();
  const auto wrong = [&] {
    fields.fail("logit_bias", "must be a list of at most 1024 [token id or text, bias from -100 to 100 or false]",
                "unsupported");
    return Json();
  };
  const auto add = [&](const Json& whose, const Json& given, bool is_key) {
    if (whose.is_string() && whose.get_ref<const std::string&>().size() > kMostBiased) return false;
    const Json bias = given == false ? Json(-100) : given;
    if (whose.is_number_integer()) {
      ids[std::to_string(whose.get<int64_t>())] = bias;
    } else if (whose.is_string() && is_key && is_digits(whose.get_ref<const std::string&>())) {
      ids[whose.get<std::string>()] = bias;
    } else if (whose.is_string() && bias.is_number() && std::abs(bias.get<double>()) <= 100) {
      out.biased_texts.emplace_back(whose.get<std::string>(), bias.get<float>());
    } else {
      return false;
    }
    return true;
  };
  if (value->size() > kMostBiases) return wrong();
  if (value->is_object()) {
    for (const auto& [key, bias] : value->items()) {
      if (!add(key, bias, true)) return wrong();
    }
    return ids;
  }
  if (!value->is_array()) return wrong();
  for (const Json& pair : *value) {
    if (!pair.is_array() || pair.size() != 2 || !add(pair[0], pair[1], false)) return wrong();
  }
  return ids;
}

void read_fields(Fields& fields, std::vector<std::string>& out) {
  const Json* list = fields.find("response_fields");
  if (!list) return;
  if (!list->is_array() || list->size() > kMaxFieldPaths)
    return fields.fail("response_fields", fmt::format("must be a list of at most {} strings", kMaxFieldPaths));
  for (const Json& field : *list) {
    if (!field.is_string() || field.get_ref<const std::string&>().size() > kMaxFieldPath)
      return fields.fail("response_fields", fmt::format("must be strings of at most {} bytes", kMaxFieldPath));
    out.push_back(field.get<std::string>());
  }
}

std::string own_name(const std::string& param) {
  for (const auto& [own, ours] : kNames) {
    if (param == ours) return own;
  }
  return param;
}

// What a text completion has as well, by its reader.
void read_settings(Fields& fields, const Json& body, const RequestLimits& limits, LlamaCompletion& out) {
  refuse_llama(fields);
  read_fields(fields, out.fields);
  Json text = {{"prompt", "-"}};
  for (const auto& [own, ours] : kNames) {
    const auto it = body.find(own);
    if (it != body.end() && !it->is_null()) text[ours] = *it;
  }
  if (Json biases = read_biases(fields, out); !biases.is_null()) text["logit_bias"] = std::move(biases);
  const Json* seed = fields.find("seed");
  const bool any_seed = seed && (*seed == -1 || *seed == UINT32_MAX);
  if (seed && !any_seed) text["seed"] = *seed;
  int most = -1;
  fields.integer(fields.find("n_predict") ? "n_predict" : "max_tokens", -2, 1 << 30, &most);  // as llama.cpp reads them
  if (!fields.ok()) return;
  RequestLimits own = limits;
  own.sampling = limits.sampling.or_else(kLlamaSampling);
  auto parsed = parse_completion(text, own);
  if (!parsed.ok()) {
    const ApiError& error = parsed.error();
    const size_t colon = error.message.find(": ");
    const std::string what = colon == std::string::npos ? error.message : error.message.substr(colon + 2);
    return fields.fail(own_name(error.param), what, error.code);
  }
  out.generation = std::move(parsed.value().generation);
  if (any_seed) out.generation.sampling.seed.reset();
  out.generation.sampling.max_tokens = std::max(most, -1);
  // n_probs 0 is none, unlike OpenAI's logprobs 0.
  if (out.generation.sampling.logprobs == 0) out.generation.sampling.logprobs = -1;
  fields.boolean("post_sampling_probs", &out.generation.sampling.drawn_logprobs);
  fields.boolean("return_tokens", &out.return_tokens);
}

// One string, or ids.
std::optional<TextPrompt> read_piece(Fields& fields, const Json& value, const std::string& name,
                                     const RequestLimits& limits) {
  auto one = parse_completion({{"prompt", value}}, limits);
  if (one.ok()) return std::move(one.value().prompts[0]);
  const std::string& message = one.error().message;
  fields.fail(name, message.substr(std::min(message.size(), message.find(": ") + 2)), one.error().code);
  return std::nullopt;
}

void read_llama_prompt(Fields& fields, const Json& value, const std::string& name, const RequestLimits& limits,
                       LlamaCompletion& out) {
  LlamaPrompt prompt;
  const auto add = [&](const Json& piece, const std::string& where) {
    if (auto one = read_piece(fields, piece, where, limits)) prompt.push_back(std::move(*one));
  };
  if (value.is_object()) {  // {"prompt_string", "multimodal_data"}
    Fields inner(value, name + ".");
    if (const Json* media = inner.find("multimodal_data"); media && !(media->is_array() && media->empty()))
      return fields.fail(name + ".multimodal_data", "is not supported by this server", "unsupported");
    const Json* text = inner.find("prompt_string");
    if (!text) return fields.fail(name + ".prompt_string", "is required");
    add(*text, name + ".prompt_string");
  } else if (!value.is_array() || value.empty()) {
    add(value, name);
  } else {
    Json ids = Json::array();  // those that follow each other are one piece
    for (size_t i = 0; i < value.size() && fields.ok(); ++i) {
      const Json& piece = value[i];
      const std::string where = fmt::format("{}[{}]", name, i);
      if (piece.is_number()) {
        ids.push_back(piece);
      } else if (!piece.is_string()) {
        fields.fail(where, fmt::format("must be a string or a token id, not {}", type_of(piece)));
      }
      const bool ends = piece.is_string() || i + 1 == value.size();
      if (ends && !ids.empty()) add(std::exchange(ids, Json::array()), name);
      if (piece.is_string()) add(piece, where);
    }
  }
  out.prompts.push_back(std::move(prompt));
}

// A list without numbers is several prompts.
void read_llama_prompts(Fields& fields, const RequestLimits& limits, LlamaCompletion& out) {
  const Json* prompt = fields.find("prompt");
  if (!prompt) return fields.fail("prompt", "is required");
  const auto is_id = [](const Json& piece) { return piece.is_number(); };
  out.several = prompt->is_array() && !prompt->empty() && std::none_of(prompt->begin(), prompt->end(), is_id);
  if (!out.several) return read_llama_prompt(fields, *prompt, "prompt", limits, out);
  if (prompt->size() > static_cast<size_t>(limits.max_prompts))
    return fields.fail("prompt", fmt::format("has more than {} prompts", limits.max_prompts));
  for (size_t i = 0; i < prompt->size() && fields.ok(); ++i)
    read_llama_prompt(fields, (*prompt)[i], fmt::format("prompt[{}]", i), limits, out);
}

void read_extra(Fields& fields, std::vector<InfillFile>& out) {
  const Json* list = fields.find("input_extra");
  if (!list) return;
  if (!list->is_array() || list->size() > kMaxExtra)
    return fields.fail("input_extra", fmt::format("must be a list of at most {} objects", kMaxExtra));
  for (size_t i = 0; i < list->size() && fields.ok(); ++i) {
    const std::string name = fmt::format("input_extra[{}]", i);
    if (!(*list)[i].is_object())
      return fields.fail(name, fmt::format("must be an object, not {}", type_of((*list)[i])));
    Fields inner((*list)[i], name + ".");
    InfillFile file{"tmp", ""};
    inner.string("filename", &file.name, kMaxFileName);
    if (!inner.find("text")) inner.fail("text", "is required");
    inner.string("text", &file.text, SIZE_MAX);
    if (inner.error()) {
      const std::string& message = inner.error()->message;
      return fields.fail(inner.error()->param, message.substr(message.find(": ") + 2));
    }
    out.push_back(std::move(file));
  }
}

std::optional<ApiError> none_but_objects(const Json& body) {
  if (body.is_object()) return std::nullopt;
  return ApiError{400, fmt::format("the body must be a JSON object, not {}", type_of(body)), "", ""};
}

}  // namespace

ApiResult<LlamaCompletion> parse_llama_completion(const Json& body, const RequestLimits& limits) {
  if (auto error = none_but_objects(body)) return *error;
  Fields fields(body);
  LlamaCompletion out;
  read_llama_prompts(fields, limits, out);
  read_settings(fields, body, limits, out);
  if (fields.error()) return *fields.error();
  return out;
}

ApiResult<LlamaInfill> parse_llama_infill(const Json& body, const RequestLimits& limits) {
  if (auto error = none_but_objects(body)) return *error;
  Fields fields(body);
  LlamaInfill out;
  for (const char* name : {"input_prefix", "input_suffix"}) {
    if (!fields.find(name)) fields.fail(name, "is required");
  }
  const auto read = [&](const char* name, std::string* text) {
    fields.string(name, text, SIZE_MAX);
    check_fits(fields, name, text->size(), limits);
  };
  read("input_prefix", &out.text.prefix);
  read("input_suffix", &out.text.suffix);
  read("prompt", &out.text.prompt);
  read_extra(fields, out.text.extra);
  read_settings(fields, body, limits, out.completion);
  if (fields.error()) return *fields.error();
  return out;
}

ApiResult<LlamaTokenize> parse_llama_tokenize(const Json& body) {
  if (auto error = none_but_objects(body)) return *error;
  Fields fields(body);
  LlamaTokenize out;
  if (!fields.find("content")) fields.fail("content", "is required");
  fields.string("content", &out.content, SIZE_MAX);
  fields.boolean("add_special", &out.add_special);
  fields.boolean("parse_special", &out.parse_special);
  fields.boolean("with_pieces", &out.with_pieces);
  if (fields.error()) return *fields.error();
  return out;
}

}  // namespace kvilt::server
