// server/json_arguments.h: a call's arguments, as a model writes them in JSON, to what a client is sent, as they come.
// Idea:       clients parse arguments, and want an object. What is nearly one is put right: line ends and other control
//             characters within strings become escapes.
// Invariants: a function of the text, however it was cut; the state has a fixed size. JSON without such slips passes byte
//             by byte, and whatever else is wrong stays as it was written.
// Threads:    one per call.
// Cost:       O(bytes).
#pragma once

#include <string>
#include <string_view>

#include "base/json_scan.h"

namespace kvilt::server {

class JsonArguments {
 public:
  struct Piece {
    std::string json;    // to be sent
    size_t size = 0;     // of the text, what belongs to the value
    bool ended = false;  // the value ends there
  };
  // More of the text; REQUIRES: the first one begins with the value's first byte.
  Piece take(std::string_view text);

 private:
  JsonScan scan_;
};

// The same of a value that is here as a whole.
std::string whole_arguments(std::string_view value);

}  // namespace kvilt::server
