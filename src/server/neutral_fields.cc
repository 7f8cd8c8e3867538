#include "server/neutral_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace kvilt::server {
namespace {

bool is_negative(const Json& number) { return number.is_number() && number.get<double>() < 0; }

struct Field {
  const char *name, *neutral;  // JSON, or words where is_neutral knows it; "": none
  bool (*is_neutral)(const Json& value) = nullptr;
};
// vLLM's, llama.cpp's, and SGLang's.
constexpr Field kFields[] = {{"chat_template", ""},
                             {"bad_words", "[]"},
                             {"return_token_ids", "false"},
                             {"length_penalty", "1"},
                             {"typical_p", "1"},
                             {"top_n_sigma", "-1"},
                             {"mirostat", "0"},
                             {"dynatemp_range", "0"},
                             {"xtc_probability", "0"},
                             {"dry_multiplier", "0"},
                             {"early_stopping", "false"},
                             {"prompt_embeds", ""},
                             {"logits_processors", "[]"},
                             {"web_search_options", ""},
                             {"lora", "[]"},
                             {"thinking_budget_tokens", "-1"},  // max_tokens bounds thoughts and answer together
                             {"thinking_token_budget", "-1"},
                             {"guided_whitespace_pattern", ""},
                             {"skip_special_tokens", "true"},
                             {"logprob_token_ids", "[]"},
                             {"structural_tag", ""},
                             {"n_cmpl", "1"},
                             {"post_sampling_probs", "false"},
                             {"min_keep", "0"},
                             {"adaptive_target", "a negative number (off)", is_negative},
                             {"dynatemp_exponent", "1"},
                             {"stop_regex", "[]"},
                             {"no_stop_trim", "false"},
                             {"min_new_tokens", "0"},
                             {"custom_logit_processor", ""},
                             {"lora_path", ""}};
// A text completion knows them.
constexpr Field kChatFields[] = {{"truncate_prompt_tokens", ""},
                                 {"suffix", R"("")"},
                                 {"add_special_tokens", "false"},  // its template writes them
                                 {"verbosity", R"("medium")"}};

// Our order has the temperature first, llama.cpp's usual one, which its clients send of themselves, last. Samplers that
// are off here, and penalties, may stand anywhere.
constexpr std::string_view kOrders[] = {"tkpm", "kpmt"}, kAnywhere = "edsyfx";
constexpr std::pair<std::string_view, char> kSamplers[] = {
    {"temperature", 't'}, {"top_k", 'k'},     {"top_p", 'p'}, {"min_p", 'm'}, {"penalties", 'e'}, {"dry", 'd'},
    {"top_n_sigma", 's'}, {"typical_p", 'y'}, {"typ_p", 'y'}, {"tfs_z", 'f'}, {"xtc", 'x'}};

// A string of their signs, or a list of their names.
std::optional<std::string> signs_of(const Json& samplers) {
  if (samplers.is_string()) return samplers.get<std::string>();
  if (!samplers.is_array()) return std::nullopt;
  std::string signs;
  for (const Json& name : samplers) {
    const auto known = std::ranges::find_if(kSamplers, [&](const auto& one) { return name == one.first; });
    if (known == std::end(kSamplers)) return std::nullopt;
    signs += known->second;
  }
  return signs;
}

// Each once at most, in one of the orders.
bool is_in_order(std::string signs) {
  std::erase_if(signs, [](char sign) { return kAnywhere.find(sign) != std::string_view::npos; });
  return std::ranges::any_of(kOrders, [&](std::string_view order) {
    for (const char sign : signs) {
      const size_t at = order.find(sign);
      if (at == std::string_view::npos) return false;
      order.remove_prefix(at + 1);
    }
    return true;
  });
}

void refuse_field(Fields& fields, const Field& field) {
  const Json* value = fields.find(field.name);
  if (!value) return;
  if (!*field.neutral) return fields.fail(field.name, "is not supported by this server", "unsupported");
  const bool off = field.is_neutral ? field.is_neutral(*value) : *value == Json::parse(field.neutral);
  if (!off) fields.fail(field.name, fmt::format("only {} is supported by this server", field.neutral), "unsupported");
}

}  // namespace

const std::vector<const char*>& neutral_names() {
  static const std::vector<const char*> names = [] {
    std::vector<const char*> out;
    for (const Field& field : kFields) out.push_back(field.name);
    return out;
  }();
  return names;
}

void refuse_but_neutral(Fields& fields, bool chat) {
  for (const Field& field : kFields) refuse_field(fields, field);
  if (!chat) return;
  for (const Field& field : kChatFields) refuse_field(fields, field);
}

void refuse_one_but_neutral(Fields& fields, std::string_view name) {
  const Field* field = std::ranges::find(kFields, name, &Field::name);
  CHECK(field != std::end(kFields));
  refuse_field(fields, *field);
}

void read_samplers(Fields& fields, SamplingParams& sampling) {
  const Json* samplers = fields.find("samplers");
  if (!samplers) return;
  const std::optional<std::string> signs = signs_of(*samplers);
  if (!signs || !is_in_order(*signs)) {
    return fields.fail(
        "samplers", "only temperature, top_k, top_p, min_p in this order, or some of them, is supported by this server",
        "unsupported");
  }
  const SamplingParams off;
  const auto works = [&](char sign) { return signs->find(sign) != std::string::npos; };
  if (!works('t')) sampling.temperature = off.temperature;
  if (!works('k')) sampling.top_k = off.top_k;
  if (!works('p')) sampling.top_p = off.top_p;
  if (!works('m')) sampling.min_p = off.min_p;
  if (works('e')) return;
  sampling.repetition_penalty = off.repetition_penalty;
  sampling.presence_penalty = off.presence_penalty;
  sampling.frequency_penalty = off.frequency_penalty;
}

}  // namespace kvilt::server
