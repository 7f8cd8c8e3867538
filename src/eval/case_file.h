// eval/case_file.h: cases from JSON lines: RAG cases and dialogues (docs/eval.md).
// Errors: kInvalidArgument naming file, line and field.
#pragma once

#include <string>
#include <vector>

#include "eval/case.h"

namespace kvilt {

struct CaseFileOptions {
  bool chat = true;              // of cases without a field "prompt"
  std::string lead = "Answer:";  // of chat cases without a field "lead"
  int limit = 0;                 // lines at most; 0: all
};

// Where a text is cut in two for what stands in its middle: the first place at or after that where a word ends.
size_t middle_of(const std::string& text);

// A dialogue gives a case per turn. The suite's name is the file's, without folder and ending, unless the case names
// one.
Result<std::vector<EvalCase>> read_case_file(const std::string& path, const CaseFileOptions& options);
// The same from text; `name` is for messages and, without folder and ending, the suite.
Result<std::vector<EvalCase>> parse_cases(const std::string& text, const std::string& name,
                                          const CaseFileOptions& options);

}  // namespace kvilt
