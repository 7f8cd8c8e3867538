// server/harmony_for_test.h: the syntax of gpt-oss's answers; tests/tool_calls_test.cc finds the same by rendering.
#pragma once

#include "kvilt/answer_syntax.h"

namespace kvilt {

inline MessageSyntax harmony_syntax() {
  return {.channel = "<|channel|>",
          .message = "<|message|>",
          .next = "<|end|><|start|>assistant",
          .end = "<|end|>",
          .last_end = "<|return|>",
          .call_end = "<|call|>",
          .reasoning = "analysis",
          .answer = "final",
          .recipient = "to=",
          .tools = "functions.",
          .after_name = "<|channel|>commentary json<|message|>"};
}

}  // namespace kvilt
