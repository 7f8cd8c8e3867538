// engine/answer_syntax.h: how a model writes tool calls and reasoning, found by rendering its own chat template.
// Idea:       no list of model names. Calls with unusual words for name, id, keys and values are rendered as history;
//             the template engine says where each of these words came to stand (RenderedPrompt::untrusted), and what
//             lies between them are the literals that a parser needs. Two calls show what separates calls, a number
//             beside a string shows whether the format tells them apart. llama.cpp's template autoparser has the idea
//             of comparing renderings; the origins of bytes make it exact.
//             Answers that are messages with headers (MessageSyntax) are told by the word between the same two markers
//             before what the model thought and what it said.
// Invariants: what is not understood is Form::kNone, never a guess: such answers come back as text.
// Threads:    any.
// Cost:       about ten small renderings, once a model.
// Not here:   reading answers (server/answer_parser.h).
#pragma once

#include "engine/template_traits.h"
#include "kvilt/answer_syntax.h"
#include "text/tokenizer.h"

namespace kvilt {

// arguments_as_object: TemplateTraits'.
AnswerSyntax answer_syntax_of(const ChatTemplate& chat_template, const EdgeTokens& edges, bool arguments_as_object);

// reasoning_ids and call_ids. End tokens are not among them: they end the answer.
void find_marker_ids(const Tokenizer& tokenizer, AnswerSyntax& syntax);

// The prompt's last words open the model's reasoning.
bool opens_reasoning(std::string_view prompt, const AnswerSyntax& syntax);

}  // namespace kvilt
