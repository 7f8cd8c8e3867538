#include "server/neutral_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace kvilt::server {
namespace {

struct Field {
  const char *name, *neutral;  // JSON; "": none
};
// vLLM's, then llama.cpp's.
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
                             {"skip_special_tokens", "true"}};

void refuse_field(Fields& fields, const Field& field) {
  const Json* value = fields.find(field.name);
  if (!value) return;
  if (!*field.neutral) return fields.fail(field.name, "is not supported by this server", "unsupported");
  if (*value != Json::parse(field.neutral))
    fields.fail(field.name, fmt::format("only {} is supported by this server", field.neutral), "unsupported");
}

}  // namespace

void refuse_but_neutral(Fields& fields, bool chat) {
  for (const Field& field : kFields) refuse_field(fields, field);
  if (!chat) return;
  refuse_field(fields, {"truncate_prompt_tokens", ""});
  refuse_field(fields, {"add_special_tokens", "false"});  // its template writes them
  refuse_field(fields, {"verbosity", R"("medium")"});
}

}  // namespace kvilt::server
