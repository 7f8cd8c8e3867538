// engine/template_traits.h: what a model's chat template takes, found by rendering small conversations through it.
// Idea:    no list of model names: unusual words are put where a request would put its own, and looked for in the
//          prompt that comes out.
// Threads: any.
// Not here: requests (chat.h).
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "template/chat_template.h"

namespace kvilt {

struct TemplateTraits {
  bool documents = false;       // it has a place for them
  bool developer = false;       // it speaks of this role, OpenAI's newer name for the system's
  std::set<std::string> roles;  // of the usual ones, those whose messages are in the prompt (shows_role)
  // Arguments of a tool call have to be given as an object so that they stand in the prompt as they were written.
  // Clients send JSON in a string. Most templates write an object as JSON, and a string once more in quotes.
  bool arguments_as_object = true;
  bool calls = true;           // of the history are in the prompt
  bool null_content = false;   // beside a content that is null, and not beside an empty text (DeepSeek R1's)
  bool needs_content = false;  // calls without content fail unless that is an empty text (Qwen3's)
  // An old answer that has a text and calls is not in the prompt with both, but all is there if the text is a message of
  // its own before the calls' (split_calls.h).
  bool splits_calls = false;
  bool text_hides_calls = false;  // nor then, and what is left out are the calls, which are shown without a text
  std::string reasoning;          // the field of an old answer that it shows as what the model thought; empty: none
  // It refuses an old answer that has calls, reasoning and content.
  bool calls_have_one_text = false;
  bool one_system = false;              // a system message that is not the first message is refused, left out, or moved
  bool alternates = false;              // two user messages, one after the other, are refused
  bool alternates_after_tools = false;  // a user message behind a tool's result is
};

// The tokens that templates are given beside a request.
struct EdgeTokens {
  std::string bos, eos;
};

// Names that clients and templates have for what the model thought, the usual one first.
inline constexpr const char* kReasoningFields[] = {"reasoning_content", "thinking", "reasoning"};

// What traits_of() looks at; any other role is looked at when a request has it.
inline constexpr const char* kUsualRoles[] = {"system", "user", "assistant", "tool", "developer", "function"};

TemplateTraits traits_of(const ChatTemplate& chat_template, std::string_view source, const EdgeTokens& edges);

// A message of this role is in the prompt. What the template refuses counts as shown: when the request is rendered, its
// own words about it reach the client.
bool shows_role(const ChatTemplate& chat_template, const std::string& role, const EdgeTokens& edges);

}  // namespace kvilt
