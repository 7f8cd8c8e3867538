// eval/json_lines.h: JSON lines, one value a line: the format of every kind of question file.
// Errors: kInvalidArgument naming file and line, also for what `use` refuses.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kvilt/result.h"

namespace kvilt {

// Takes one line. Returns false when no more lines are needed.
using UseLine = std::function<Result<bool>(const nlohmann::ordered_json& line, int number)>;

// Blank lines are skipped. `name` is for messages.
Status each_json_line(const std::string& text, const std::string& name, const UseLine& use);
// A file of 1 GiB at most. Errors: also kInvalidArgument if no line is read.
Status each_question_of_file(const std::string& path, const UseLine& use);

}  // namespace kvilt
