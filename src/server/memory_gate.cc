#include "server/memory_gate.h"

#include <malloc.h>

#include <algorithm>

namespace kvilt::server {
namespace {

constexpr size_t kTrimFrom = size_t{1} << 20;
constexpr auto kLook = std::chrono::milliseconds(50);

}  // namespace

void MemoryGate::Pass::leave() {
  if (MemoryGate* gate = std::exchange(gate_, nullptr)) gate->leave(bytes_);
}

std::optional<MemoryGate::Pass> MemoryGate::enter(size_t bytes, std::chrono::milliseconds patience,
                                                  FunctionRef<bool()> gives_up) {
  if (bytes <= kSmall) return Pass(nullptr, 0);
  bytes = std::min(bytes, limit_);
  const auto until = std::chrono::steady_clock::now() + patience;
  MutexLock lock(mutex_);
  const auto place = line_.insert(line_.end(), 0);
  const auto may_enter = [&]() KVILT_REQUIRES(mutex_) { return place == line_.begin() && inside_ + bytes <= limit_; };
  bool enters = may_enter();
  while (!enters && std::chrono::steady_clock::now() < until) {
    lock.unlock();
    const bool gone = gives_up();
    lock.lock();
    if (gone) break;
    enters = moved_.wait_for(lock, kLook, may_enter);
  }
  line_.erase(place);
  if (enters) inside_ += bytes;
  moved_.notify_all();  // another one is first in line
  if (!enters) return std::nullopt;
  return Pass(this, bytes);
}

void MemoryGate::leave(size_t bytes) {
#ifdef __GLIBC__
  if (bytes >= kTrimFrom) ::malloc_trim(0);
#endif
  MutexLock lock(mutex_);
  inside_ -= bytes;
  moved_.notify_all();
}

}  // namespace kvilt::server
