// server/neutral_fields.h: fields of other servers that change answers, are not supported, and are allowed at the value
// where they do nothing: clients send these by default.
#pragma once

#include "kvilt/request.h"
#include "server/json_fields.h"

namespace kvilt::server {

// chat: a text completion knows some of them, as `echo`.
void refuse_but_neutral(Fields& fields, bool chat);

// llama.cpp's `samplers`: those that work, in order. Ours is fixed, so another is refused; what is left out is switched
// off in `sampling`, whoever asked for it.
void read_samplers(Fields& fields, SamplingParams& sampling);

}  // namespace kvilt::server
