#include "engine/cache_marks.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/json_member.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kControl = "cache_control";

Error bad_mark(const std::string& path, const char* what) {
  return error(Code::kInvalidArgument, "{}: {}", path, what);
}

// The elements of a list that may be missing.
const Json& list_of(const Json& object, const char* name) {
  static const Json kNone = Json::array();
  const Json* list = given(object, name);
  return list && list->is_array() ? *list : kNone;
}

Status check_each(const Json& list, const std::string& path) {
  for (size_t i = 0; i < list.size(); ++i) {
    const Json* control = given(list[i], kControl);
    if (control) KVILT_TRY(retention_of(*control, fmt::format("{}[{}].{}", path, i, kControl)));
  }
  return {};
}

// Takes it out of a tool or a call, whose name becomes a mark.
void take(Json& object, const Json::json_pointer& where, bool tool, int32_t first_id, ChatInputs& in,
          std::vector<CacheMark>& out) {
  if (!object.is_object() || !object.contains(kControl)) return;
  const Json control = std::move(object[kControl]);
  object.erase(kControl);
  if (control.is_null()) return;
  const Json* function = given(object, "function");
  const Json* name = function ? given(*function, "name") : nullptr;
  if (name && name->is_string() && !name->get_ref<const std::string&>().empty()) {
    in.marks.push_back({where / "function" / "name", 0, name->get_ref<const std::string&>().size(),
                        first_id + static_cast<int32_t>(out.size())});
  }
  out.push_back({tool, retention_of(control, kControl).value()});
}

}  // namespace

Result<Retention> retention_of(const Json& control, const std::string& path) {
  if (!control.is_object()) return bad_mark(path, "must be an object");
  const auto says = [&](const char* name, const char* word) {
    const Json* value = given(control, name);
    return value && value->is_string() && value->get_ref<const std::string&>() == word;
  };
  if (given(control, "type") && !says("type", "ephemeral")) return bad_mark(path + ".type", "must be \"ephemeral\"");
  // Without a ttl it is five minutes, as there.
  if (!given(control, "ttl") || says("ttl", "5m")) return Retention::kFiveMinutes;
  if (says("ttl", "1h")) return Retention::kHour;
  return bad_mark(path + ".ttl", "must be \"5m\" or \"1h\"");
}

Status check_cache_marks(const Json& request) {
  if (const Json* control = given(request, kControl)) KVILT_TRY(retention_of(*control, kControl));
  KVILT_TRY(check_each(list_of(request, "tools"), "tools"));
  const Json& messages = list_of(request, "messages");
  for (size_t m = 0; m < messages.size(); ++m)
    KVILT_TRY(check_each(list_of(messages[m], "tool_calls"), fmt::format("messages[{}].tool_calls", m)));
  return {};
}

Retention whole_retention(const Json& request) {
  const Json* control = given(request, kControl);
  return control ? retention_of(*control, kControl).value() : Retention::kNone;
}

std::vector<CacheMark> take_cache_marks(ChatInputs& in, int32_t first_id) {
  std::vector<CacheMark> out;
  for (size_t i = 0; in.tools.is_array() && i < in.tools.size(); ++i)
    take(in.tools[i], Json::json_pointer("/tools") / i, true, first_id, in, out);
  for (size_t m = 0; m < in.messages.size(); ++m) {
    if (list_of(in.messages[m], "tool_calls").empty()) continue;
    Json& calls = in.messages[m]["tool_calls"];
    for (size_t c = 0; c < calls.size(); ++c)
      take(calls[c], Json::json_pointer("/messages") / m / "tool_calls" / c, false, first_id, in, out);
  }
  return out;
}

}  // namespace kvilt
