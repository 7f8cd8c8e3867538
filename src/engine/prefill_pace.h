// engine/prefill_pace.h: how long computing takes here, by what prefills took lately: what fetching KV is compared with.
// Threads: one.
#pragma once

#include <chrono>
#include <cstdint>

namespace kvilt {

class PrefillPace {
 public:
  // A prefill computed so many tokens in this time. Short ones tell nothing.
  void add(int64_t tokens, double seconds) {
    if (tokens < 64 || seconds <= 0) return;
    const double now = seconds / static_cast<double>(tokens);
    token_s_ = token_s_ == 0 ? now : 0.8 * token_s_ + 0.2 * now;
  }
  bool known() const { return token_s_ != 0; }
  std::chrono::duration<double> time_for(int64_t tokens) const {
    return std::chrono::duration<double>(static_cast<double>(tokens) * token_s_);
  }

 private:
  double token_s_ = 0;
};

}  // namespace kvilt
