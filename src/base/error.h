// base/error.h: makes an Error with a formatted message, e.g. `return error(Code::kCorrupt, "{}: {}", file, why);`
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "kvilt/result.h"

namespace kvilt {

template <class... Args>
Error error(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{code, fmt::format(format, std::forward<Args>(args)...)};
}

// kIo, with what errno says.
inline Error system_error(const std::string& what) { return error(Code::kIo, "{}: {}", what, std::strerror(errno)); }

}  // namespace kvilt
