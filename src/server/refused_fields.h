// server/refused_fields.h: fields of other servers that would change the answer and are not honoured here. One that has
// another value than "as if it were not there" is an error: a clear one is better than a wrong answer.
// Threads: pure.
#pragma once

#include "server/json_fields.h"

namespace kvilt::server {

// chat: of a chat; a text completion honours `echo`.
void refuse_fields(Fields& fields, bool chat);

}  // namespace kvilt::server
