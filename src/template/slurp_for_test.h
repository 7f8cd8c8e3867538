// template/slurp_for_test.h: a whole file of tests/data as a text, for the tests of this folder.
#pragma once

#include <filesystem>
#include <string>

#include "base/mapped_file.h"

namespace kvilt {

inline std::string slurp(const std::filesystem::path& path) { return read_file(path.string(), 16 << 20).value(); }

}  // namespace kvilt
