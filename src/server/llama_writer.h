// server/llama_writer.h: what an answer looks like to clients of llama.cpp's /completion and /infill.
// Counts:     tokens_evaluated is the whole prompt; timings.cache_n of it were not computed, prompt_n were.
// Not here:   the tokens' ids of an answer (return_tokens is refused), its prompt.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/answer_writer.h"

namespace kvilt::server {

struct LlamaForm {
  std::string model;
  bool several = false;             // whole: a list of answers
  bool truncated = false;           // a part of what was sent is not in the prompt
  std::vector<std::string> fields;  // of each whole answer these alone, by path; empty: all
  Json settings;                    // generation_settings
};

std::unique_ptr<AnswerWriter> llama_writer(LlamaForm form);

}  // namespace kvilt::server
