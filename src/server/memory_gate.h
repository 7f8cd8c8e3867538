// server/memory_gate.h: how many bytes of requests are taken apart at once: parsed, rendered, tokenised.
// Idea:       a body becomes some 50 times its size for a moment (JSON values, the template's pieces, tokens). So large
//             ones go in one after another, in the order in which they came; small ones are not counted.
//             Who finds more to take apart when it is inside asks to grow. Nobody comes in while one waits for that, and
//             others who grow do not count what it has, so that nobody waits for somebody who waits for it.
// Invariants: the sum of what is inside and works is at most the limit, unless one alone is larger; that of what waits
//             to grow too. Who leaves after a large one returns its memory to the system: the arenas of other threads
//             would keep it.
// Threads:    all methods from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <optional>
#include <utility>

#include "base/function_ref.h"
#include "base/mutex.h"

namespace kvilt::server {

class MemoryGate {
 public:
  static constexpr size_t kSmall = size_t{16} << 10;  // bodies up to here pass uncounted

  explicit MemoryGate(size_t limit) : limit_(limit) {}

  // Held while a request is inside.
  class Pass {
   public:
    Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)), bytes_(other.bytes_) {}
    Pass& operator=(Pass&&) = delete;
    ~Pass() { leave(); }
    void leave();  // again: nothing happens

   private:
    friend class MemoryGate;
    Pass(MemoryGate* gate, size_t bytes) : gate_(gate), bytes_(bytes) {}
    MemoryGate* gate_;  // null: it is not counted
    size_t bytes_;
  };

  // Waits in line. None if `patience` ends first, or if `gives_up`, asked about twenty times a second, says so.
  std::optional<Pass> enter(size_t bytes, std::chrono::milliseconds patience, FunctionRef<bool()> gives_up);
  // The same for `more` bytes of who is inside already; false: it stays as it was.
  bool grow(Pass& pass, size_t more, std::chrono::milliseconds patience, FunctionRef<bool()> gives_up);

 private:
  void leave(size_t bytes);
  // has: its bytes that are inside; 0: it comes in.
  bool admit(size_t has, size_t bytes, std::chrono::milliseconds patience, FunctionRef<bool()> gives_up);

  const size_t limit_;
  Mutex mutex_;
  Condition moved_;
  std::list<int> line_ KVILT_GUARDED_BY(mutex_), growing_ KVILT_GUARDED_BY(mutex_);  // who waits, a place each
  size_t inside_ KVILT_GUARDED_BY(mutex_) = 0;
  size_t held_ KVILT_GUARDED_BY(mutex_) = 0;  // by those who wait to grow
};

}  // namespace kvilt::server
