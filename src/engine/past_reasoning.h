// engine/past_reasoning.h: what the model thought in old answers, under the name that its chat template has for it.
// Idea:    clients send it back as they got it (`reasoning_content`, vLLM's `reasoning`), gpt-oss's template reads
//          `thinking`. A field that a template does not know leaves no trace in the prompt, and a model that called a tool
//          then goes on without its reasons.
// Threads: any.
// Not here: which name it is (template_traits.h); reasoning in answers that are being made (server/message_parser.h).
#pragma once

#include <string>

#include "engine/template_traits.h"
#include "template/chat_template.h"

namespace kvilt {

// Moves the reasoning of assistants' messages into the field of `traits`. Where the template refuses calls with two
// texts, and shows either as what was thought, it becomes the first part of the content. between: ends that part; empty:
// nothing does.
// REQUIRES: as place_late_system().
void place_reasoning(const TemplateTraits& traits, const std::string& between, ChatInputs& in);

}  // namespace kvilt
