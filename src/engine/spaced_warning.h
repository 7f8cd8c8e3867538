// engine/spaced_warning.h: a warning that may come a thousand times a second, in the log once a minute.
// Idea:       the first of them is said at once, the next one after a minute or later with how many there were: a fault
//             that stays is seen in any part of the log, and does not fill it.
// Threads:    one.
#pragma once

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvilt {

class SpacedWarning {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kPause = std::chrono::minutes(1);

  explicit SpacedWarning(const char* what) : what_(what) {}

  void warn(std::string_view why) {
    if (const auto text = text_of(why, Clock::now())) spdlog::warn("{}", *text);
  }
  // What is said of one that comes now; nothing where it is only counted.
  std::optional<std::string> text_of(std::string_view why, Clock::time_point now) {
    ++unsaid_;
    if (said_ && now < *said_ + kPause) return std::nullopt;
    const bool first = !said_;
    said_ = now;
    const uint64_t count = std::exchange(unsaid_, 0);
    if (first || count == 1) return fmt::format("{}: {}", what_, why);
    return fmt::format("{}: {} (the last of {} since this was said before)", what_, why, count);
  }

 private:
  const char* const what_;
  std::optional<Clock::time_point> said_;
  uint64_t unsaid_ = 0;
};

}  // namespace kvilt
