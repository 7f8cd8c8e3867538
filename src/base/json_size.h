// base/json_size.h: how large a JSON text from a stranger would become, before a library builds anything of it.
// Idea:    depth, values and members are counted without reading the grammar. An ordered object finds a key in linear
//          time, so its size is bounded too.
// Threads: any.
// Cost:    one pass over the text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace kvilt {

struct JsonLimits {
  int depth = 64;
  size_t values = 2'000'000;     // a prompt of a million token ids fits
  size_t members = 1024;         // of one object
  size_t look_ups = 50'000'000;  // comparisons of keys: 0.2 s; bounds the number of large objects
};

// What is too much, in a sentence about `what`; none: nothing is.
std::optional<std::string> oversized_json(std::string_view text, const JsonLimits& limits, std::string_view what);

}  // namespace kvilt
