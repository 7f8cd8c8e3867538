// server/llama_writer.h: what an answer looks like to clients of llama.cpp's /completion and /infill.
// Counts:     tokens_evaluated is the whole prompt; timings.cache_n of it were not computed, prompt_n were.
//             A stream's events have the ids of the tokens that their text is made of, a whole answer has them with
//             return_tokens.
// Not here:   an answer's prompt.
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
  bool return_tokens = false;
  bool post_sampling_probs = false;           // probabilities are told, not their logarithms
  std::shared_ptr<const Engine> engine = {};  // knows tokens' texts
};

std::unique_ptr<AnswerWriter> llama_writer(LlamaForm form);

}  // namespace kvilt::server
