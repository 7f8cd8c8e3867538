#include "eval/json_lines.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/mapped_file.h"

namespace kvilt {

Status each_json_line(const std::string& text, const std::string& name, const UseLine& use) {
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto json = nlohmann::ordered_json::parse(line, nullptr, false);
    const auto more =
        json.is_discarded() ? Result<bool>(error(Code::kInvalidArgument, "is not JSON")) : use(json, number);
    if (!more.ok()) return error(more.error().code, "{}:{}: {}", name, number, more.error().message);
    if (!*more) break;
  }
  return {};
}

Status each_question_of_file(const std::string& path, const UseLine& use) {
  constexpr size_t kMost = size_t{1} << 30;
  KVILT_ASSIGN(const std::string text, read_file(path, kMost));
  bool any = false;
  KVILT_TRY(each_json_line(text, path, [&](const nlohmann::ordered_json& line, int number) {
    any = true;
    return use(line, number);
  }));
  if (!any) return error(Code::kInvalidArgument, "{}: holds no question", path);
  return {};
}

}  // namespace kvilt
