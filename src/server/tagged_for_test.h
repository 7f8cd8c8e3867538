// server/tagged_for_test.h: calls in tags, as Qwen3-Coder writes them, for the tests of their readers.
#pragma once

#include "kvilt/answer_syntax.h"

namespace kvilt {

inline CallSyntax tagged_calls() {
  CallSyntax calls;
  calls.form = CallSyntax::Form::kTagged;
  calls.begin = "<tool_call>\n<function=";
  calls.end = "</function>\n</tool_call>";
  calls.between = "</function>\n</tool_call>\n<tool_call>\n<function=";
  calls.after_name = ">";
  calls.key_begin = "<parameter=";
  calls.key_end = calls.other_key_end = ">\n";
  calls.value_end = "\n</parameter>\n";
  return calls;
}

}  // namespace kvilt
