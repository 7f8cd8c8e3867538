#include "server/refused_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvilt::server {
namespace {

// off: the value that changes nothing, besides null, false, "" and empty lists and objects.
struct Refused {
  const char* name;
  double off;
  const char* instead;
};

constexpr double kNone = -1e300;  // no number is

constexpr Refused kNotHonoured[] = {
    {"continue_final_message", kNone, "the last message must be complete"},
    {"chat_template", kNone, "the model's own template is used; chat_template_kwargs reach it"},
    {"min_tokens", 0, "use ignore_eos or logit_bias"},
    {"allowed_token_ids", kNone, "use logit_bias"},
    {"bad_words", kNone, "use logit_bias"},
    {"truncate_prompt_tokens", kNone, "send a shorter prompt"},
    {"include_stop_str_in_output", kNone, "stop_reason says which one it was"},
    {"return_token_ids", kNone, "use logprobs, or /tokenize"},
    {"n_predict", -1, "use max_tokens"},
    {"repeat_penalty", 1, "use repetition_penalty"},
    {"typical_p", 1, "use min_p"},
    {"top_n_sigma", -1, "use min_p"},
    {"mirostat", 0, "use temperature and min_p"},
    {"dynatemp_range", 0, "use temperature"},
    {"xtc_probability", 0, "use temperature and min_p"},
    {"dry_multiplier", 0, "use repetition_penalty"},
    {"length_penalty", 1, "there is no beam search"},
    {"early_stopping", kNone, "there is no beam search"},
    {"prompt_embeds", kNone, "send text or token ids"},
    {"logits_processors", kNone, "use logit_bias"},
    {"web_search_options", kNone, "this server searches nothing"},
    {"lora", kNone, "no adapters are loaded"},
};

bool changes_nothing(const Json& value, double off) {
  if (value.is_number()) return value.get<double>() == off;
  return value == false || value == "" || ((value.is_array() || value.is_object()) && value.empty());
}

}  // namespace

void refuse_fields(Fields& fields, bool chat) {
  for (const Refused& field : kNotHonoured) {
    const Json* value = fields.find(field.name);
    if (value && !changes_nothing(*value, field.off))
      fields.fail(field.name, std::string("is not supported by this server: ") + field.instead, "unsupported");
  }
  if (const Json* echo = chat ? fields.find("echo") : nullptr; echo && *echo != false)
    fields.fail("echo", "is for text completions", "unsupported");
  const Json* options = fields.find("stream_options");
  if (!options || !options->is_object()) return;
  const auto usage = options->find("continuous_usage_stats");
  if (usage != options->end() && !usage->is_null() && *usage != false)
    fields.fail("stream_options.continuous_usage_stats", "is not supported by this server: include_usage gives the sum",
                "unsupported");
}

}  // namespace kvilt::server
