// sched/turns.h: in which order the requests of several tenants take their turns.
// Idea:       start-time fair queuing (Goyal, Vin, Cheng, IEEE/ACM ToN 1997). In virtual time a request begins when its
//             tenant's last one ends, or now, whichever is later, and lasts as long as its prompt has tokens; the
//             smallest beginning goes first. Now is the beginning of the last request that started as the first in line.
// Invariants: one tenant alone: the order of arrival. A request goes before all but one of another tenant's that have not
//             started, however many of them came before.
// Threads:    one owner.
// Cost:       O(tenants that wait) a request; a tenant is forgotten when its requests are through in virtual time.
// Not here:   shares other than equal ones; what a prompt costs less because it is cached, which is known later.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <string>

namespace kvilt {

struct Turn {
  double begin = 0;      // in virtual time
  uint64_t arrival = 0;  // numbers requests as they come
  auto operator<=>(const Turn&) const = default;
};

class Turns {
 public:
  // For a request that arrives now. tokens >= 0.
  Turn next(const std::string& tenant, int64_t tokens) {
    double& end = ends_[tenant];
    const double begin = std::max(end, now_);
    end = begin + static_cast<double>(tokens);
    return {begin, ++arrivals_};
  }

  void started(const Turn& turn) {
    now_ = std::max(now_, turn.begin);
    std::erase_if(ends_, [&](const auto& tenant) { return tenant.second <= now_; });
  }

  // A request that never started has left: its tenant's next ones begin so much earlier.
  void left(const std::string& tenant, int64_t tokens) {
    if (const auto of = ends_.find(tenant); of != ends_.end()) of->second -= static_cast<double>(tokens);
  }

  // All requests have ended: nobody owes anybody anything.
  void begin_anew() { ends_.clear(); }

 private:
  std::map<std::string, double> ends_;  // of each tenant's last request
  double now_ = 0;
  uint64_t arrivals_ = 0;
};

}  // namespace kvilt
