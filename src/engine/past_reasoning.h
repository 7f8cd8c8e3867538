// engine/past_reasoning.h: what the model thought in old answers, under the name that its chat template has for it.
// Idea:    clients send it back as they got it (`reasoning_content`, vLLM's `reasoning`), gpt-oss's template reads
//          `thinking`. A field that a template does not know leaves no trace in the prompt, and a model that called a tool
//          then goes on without its reasons.
// Threads: any.
// Not here: which name it is (template_traits.h); reasoning in answers that are being made (server/message_parser.h).
#pragma once

#include <nlohmann/json.hpp>

#include "engine/template_traits.h"

namespace kvilt {

// Moves the reasoning of assistants' messages into the field of `traits`. Where the template refuses calls with two
// texts, the content follows the reasoning in one. Messages of any shape; what is not as expected stays as it is.
void place_reasoning(const TemplateTraits& traits, nlohmann::ordered_json& messages);

}  // namespace kvilt
