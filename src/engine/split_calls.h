// engine/split_calls.h: old answers that have a text and calls, for chat templates that show one of both.
// Idea:    Llama 3.1's shows the calls and leaves out the text, DeepSeek R1's the other way round, and neither says so.
//          Where the template shows both as two messages, they become two: the text, then the calls.
// Threads: any.
// Not here: which templates these are (template_traits.h); calls that stay out of the prompt are refused (chat.h).
#pragma once

#include "engine/template_traits.h"
#include "template/chat_template.h"

namespace kvilt {

bool has_text(const nlohmann::ordered_json& message);  // its content is as below, or missing

// By traits.splits_calls. All but the calls stays with the text, what was thought too.
// REQUIRES: as place_late_system().
void split_calls(const TemplateTraits& traits, ChatInputs& in);

}  // namespace kvilt
