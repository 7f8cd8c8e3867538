// server/neutral_fields.h: fields of other servers that change answers, are not supported, and are allowed at the value
// where they do nothing: clients send these by default.
// Role: the one table of them, for every route.
#pragma once

#include <string_view>
#include <vector>

#include "kvilt/request.h"
#include "server/json_fields.h"

namespace kvilt::server {

// The fields that mean the same on every route.
const std::vector<const char*>& neutral_names();
// All of them. chat: and those that mean something in a text completion.
void refuse_but_neutral(Fields& fields, bool chat);
// One of neutral_names(), for a route that ignores others.
void refuse_one_but_neutral(Fields& fields, std::string_view name);

// llama.cpp's `samplers`: those that work, in order. Ours is fixed, so another is refused; what is left out is switched
// off in `sampling`, whoever asked for it.
void read_samplers(Fields& fields, SamplingParams& sampling);

}  // namespace kvilt::server
