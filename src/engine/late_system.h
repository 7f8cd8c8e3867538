// engine/late_system.h: messages in an order that the chat template takes.
// Idea:    clients put system messages anywhere (Claude Code: one behind the first question, in every request), some send
//          two user messages in a row, or a word of the user's behind a tool's result. Templates take them, leave them out
//          without a word (gpt-oss's), move them to the prompt's head, where each new one makes all text new (DeepSeek's),
//          or refuse (Qwen3.5's, Mistral's). Then a late system message becomes a part of the user's or the tool's message
//          before it, or else a user message; the first ones become one; and what is refused behind a user's message or a
//          tool's becomes a part of that. No message before it changes but by what is put to its end.
// Threads: any.
// Not here: what the template takes (template_traits.h).
#pragma once

#include <string>

#include "engine/template_traits.h"
#include "template/chat_template.h"

namespace kvilt {

bool is_system(const nlohmann::ordered_json& message);  // by its role, which is a string

// between: stands between messages that become one, as a part of its own; empty: nothing does.
// REQUIRES: each message is an object with a string for its role; its content is a string, null, or an array of text
// parts; marks are in contents.
void place_late_system(const TemplateTraits& traits, const std::string& between, ChatInputs& in);

}  // namespace kvilt
