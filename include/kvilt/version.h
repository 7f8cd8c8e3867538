// kvilt/version.h: the version of this build, as CMakeLists.txt has it.
#pragma once

namespace kvilt {
inline constexpr const char* kVersion = "0.1.0";
}
