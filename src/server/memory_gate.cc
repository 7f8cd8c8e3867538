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

bool MemoryGate::admit(size_t has, size_t bytes, std::chrono::milliseconds patience, FunctionRef<bool()> gives_up) {
  const auto until = std::chrono::steady_clock::now() + patience;
  MutexLock lock(mutex_);
  const bool grows = has > 0;  // nobody waits for who has nothing
  std::list<int>& line = grows ? growing_ : line_;
  const auto place = line.insert(line.end(), 0);
  inside_ -= has;
  held_ += has;
  if (grows) moved_.notify_all();  // the first who grows may have waited for what this one has
  const auto may_enter = [&]() KVILT_REQUIRES(mutex_) {
    if (place != line.begin() || inside_ + bytes > limit_) return false;
    return grows || (growing_.empty() && inside_ + held_ + bytes <= limit_);
  };
  bool enters = may_enter();
  while (!enters && std::chrono::steady_clock::now() < until) {
    lock.unlock();
    const bool gone = gives_up();
    lock.lock();
    if (gone) break;
    enters = moved_.wait_for(lock, kLook, may_enter);
  }
  line.erase(place);
  held_ -= has;
  inside_ += enters ? bytes : has;
  moved_.notify_all();  // another one is first in line
  return enters;
}

std::optional<MemoryGate::Pass> MemoryGate::enter(size_t bytes, std::chrono::milliseconds patience,
                                                  FunctionRef<bool()> gives_up) {
  if (bytes <= kSmall) return Pass(nullptr, 0);
  bytes = std::min(bytes, limit_);
  if (!admit(0, bytes, patience, gives_up)) return std::nullopt;
  return Pass(this, bytes);
}

bool MemoryGate::grow(Pass& pass, size_t more, std::chrono::milliseconds patience, FunctionRef<bool()> gives_up) {
  if (more <= kSmall) return true;
  const size_t had = pass.gate_ ? pass.bytes_ : 0, bytes = std::min(had + more, limit_);
  if (!admit(had, bytes, patience, gives_up)) return false;
  pass.gate_ = this;
  pass.bytes_ = bytes;
  return true;
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
