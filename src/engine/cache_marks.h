// engine/cache_marks.h: cache_control where it marks no text of a message: on tools, on calls, at the top of a request.
// Role:       ChatPrompts cuts its text at marked parts (chat.h). Nothing is cut at these: such a mark says how long the
//             prompt up to it is kept, and clients move it from turn to turn, so it changes no ids.
// Idea:       what templates print of a tool or a call is theirs, but its name is in it. The name's last byte says where
//             it stands; what is kept reaches to the end of the template's text around it, up to the caller's next text.
// Invariants: the template sees no cache_control of these.
// Threads:    any.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvilt/result.h"
#include "kvilt/retention.h"
#include "template/chat_template.h"

namespace kvilt {

// The words of a cache_control, Anthropic's. Errors name `path`.
Result<Retention> retention_of(const nlohmann::ordered_json& control, const std::string& path);

// One of each object that carries it.
struct CacheMark {
  bool tool;  // of a tool; else of a call
  Retention retention;
};

// Whether those of the request's tools and calls, and its own, are written right.
Status check_cache_marks(const nlohmann::ordered_json& request);
// Its own; kNone: it has none. REQUIRES: they were checked, here and below.
Retention whole_retention(const nlohmann::ordered_json& request);
// Takes them out of tools and calls. Mark i of the result gets the template mark first_id + i.
std::vector<CacheMark> take_cache_marks(ChatInputs& in, int32_t first_id);

}  // namespace kvilt
