// server/written_list.h: answers with millions of values, as JSON that is written piece by piece.
// Idea:       as a tree each value takes some 60 bytes more than as text, and as text an answer waits for its client,
//             who may read slowly. What is small goes out at once, with its length.
// Invariants: the text is that of dump() of the same tree.
// Threads:    the HTTP thread that answers.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/function_ref.h"
#include "server/json_fields.h"
#include "server/service.h"

namespace kvilt::server {

using WriteText = FunctionRef<bool(std::string_view)>;  // false: the client is gone

// [a,b,...]. add: appends one id's value to a text.
bool write_list(std::span<const int32_t> ids, FunctionRef<void(int32_t, std::string&)> add, WriteText write);
// A string with its quotes; and a long one, of which no copy is made.
std::string quoted(std::string text);
bool write_string(std::string_view text, WriteText write);

// writes: says the whole answer once; false: it was not taken. bytes: about as many, from which follows how it goes out.
void reply_written(const httplib::Request& request, httplib::Response& response, size_t bytes,
                   std::function<bool(WriteText)> writes);

}  // namespace kvilt::server
