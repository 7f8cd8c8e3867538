// kvilt/retention.h: how long something that is cached is kept with preference after its last use.
#pragma once

#include <cstdint>

namespace kvilt {

enum class Retention : uint8_t { kNone, kFiveMinutes, kHour, kDay };

}  // namespace kvilt
