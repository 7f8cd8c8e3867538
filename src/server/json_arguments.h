// server/json_arguments.h: a call's arguments, as a model writes them in JSON, to what a client is sent, as they come.
// Idea:       clients parse arguments, and want an object. What is nearly one is put right: line ends and other control
//             characters within strings become escapes, an object that is encoded once more, as a string, is taken out
//             of it, and null is an empty object.
// Invariants: a function of the text, however it was cut. An object passes byte by byte; a string or a word is held back
//             until it is whole, since it may stand for an object. Whatever else is wrong stays as it was written.
//             Arguments that max_tokens cut are no whole JSON.
// Threads:    one per call.
// Cost:       O(bytes).
#pragma once

#include <optional>
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
  // The answer ended within the value; cut: the model would have gone on. What was held back of it.
  std::string finish(bool cut);

 private:
  JsonScan scan_;
  std::optional<std::string> held_;  // of a value that is no object or list
  bool begun_ = false;
};

// The same of a value that is here as a whole.
std::string whole_arguments(std::string_view value);

// Of a bounded size too.
bool is_json(std::string_view text);

}  // namespace kvilt::server
