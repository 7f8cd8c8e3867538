// eval/json_lines.h: JSON lines, one value a line; what question files of every kind are.
// Errors: kInvalidArgument naming file and line, also for what `use` refuses.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kvilt/result.h"

namespace kvilt {

// Takes one line; false: that is enough.
using UseLine = std::function<Result<bool>(const nlohmann::ordered_json& line, int number)>;

// Blank lines are passed over. `name` is for messages.
Status each_json_line(const std::string& text, const std::string& name, const UseLine& use);
Status each_json_line_of_file(const std::string& path, const UseLine& use);  // of 1 GiB at most

}  // namespace kvilt
