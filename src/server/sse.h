// server/sse.h: server-sent events, the framing of streamed answers (WHATWG HTML 9.2): "data: JSON" and a blank line,
// with "event: NAME" before it where an API names its events.
#pragma once

#include <string>
#include <string_view>

#include "server/json_fields.h"

namespace kvilt::server {

inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

// JSON text holds no line break, so one data line is always enough.
inline std::string sse_event(const Json& json) { return "data: " + dump(json) + "\n\n"; }
inline std::string sse_event(std::string_view name, const Json& json) {
  return "event: " + std::string(name) + "\n" + sse_event(json);
}

}  // namespace kvilt::server
