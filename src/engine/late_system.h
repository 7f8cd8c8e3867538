// engine/late_system.h: messages in an order that the chat template takes.
// Idea:    clients put system messages anywhere (Claude Code: one behind the first question, in every request), and some
//          send two user messages in a row. Templates take them, leave them out without a word (gpt-oss's), or refuse
//          (Qwen3.5's, Mistral's). Then a late system message becomes the user's, at its place, so that nothing that
//          stands before it changes; the first ones become one; and where two user messages are refused, they become one.
// Threads: any.
// Not here: what the template takes (template_traits.h).
#pragma once

#include "engine/template_traits.h"
#include "template/chat_template.h"

namespace kvilt {

// REQUIRES: each message is an object with a string for its role; its content is a string, null, or an array of text
// parts; marks are in contents.
void place_late_system(const TemplateTraits& traits, ChatInputs& in);

}  // namespace kvilt
