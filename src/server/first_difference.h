// server/first_difference.h: where two prompts of one conversation part, and what kind of change that is.
// Idea:    token ids say where, the parts' borders (Prompt::parts) in which message; hashes of the parts say whether
//          something was moved, taken out or put in; the text around the place whether it is a clock or an id.
// Threads: pure.
// Cost:    one comparison of the ids; a few dozen tokens are made text.
// Not here: which two prompts (request_log.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvilt/engine.h"
#include "server/json_fields.h"

namespace kvilt::server {

// What is kept of a prompt to be compared. tools: a hash of each one's JSON. of_parts: of the ids of each part. systems:
// messages of the system at its beginning.
struct ComparedPrompt {
  std::vector<int32_t> ids;
  std::vector<PromptPart> parts;
  std::vector<size_t> of_parts, tools;
  int32_t systems = 0;
};
ComparedPrompt compared(const Prompt& prompt);  // without tools
std::vector<size_t> hashes_of(const Json& list);

struct FirstDifference {
  int32_t common = 0;  // tokens that both begin with
  // Of the newer prompt: "messages[3].content[1]", "documents[2]", "tools[0]", or "template" for what is between parts.
  std::string path;
  int32_t offset = 0;  // tokens before it in that part; in the prompt for tools and template
  // none: the same prompt; new: the older one went on, or a part was put in; clock, id: such a text changed; order,
  // removal: parts were; edit: anything else.
  std::string kind;
  bool went_on = false;       // all that the older one's client had written is there, at the beginning
  std::string before, after;  // the texts around it, some 12 tokens
};

int32_t common_tokens(const ComparedPrompt& a, const ComparedPrompt& b);
FirstDifference first_difference(const ComparedPrompt& older, const ComparedPrompt& newer, const Engine& engine);

}  // namespace kvilt::server
