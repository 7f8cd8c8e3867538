#include "model/json_text.h"

#include <set>
#include <stdexcept>
#include <vector>

#include "base/error.h"
#include "model/tensor_table.h"

namespace kvilt {

Result<nlohmann::json> parse_json(std::string_view text, const std::string& where) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, Event event, nlohmann::json& parsed) {
    if (depth > kMaxJsonDepth) throw std::runtime_error("nested too deep");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get_ref<const std::string&>()).second) {
      throw std::runtime_error("key '" + parsed.get_ref<const std::string&>() + "' stands there twice");
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const std::exception& e) {
    return error(Code::kCorrupt, "{}: not valid JSON: {}", where, printable(e.what()));
  }
}

}  // namespace kvilt
