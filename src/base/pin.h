// base/pin.h: every thread of a pool on a core of its own, for machines that nobody else uses.
// Threads: called by the pool's caller, which is pinned too (worker 0).
#pragma once

#include "base/thread_pool.h"

namespace kvilt {

// Worker w goes to the w-th core that this process may use. Does nothing and returns false where there are more threads
// than cores (two pinned to one core would take turns by the tick), or where the system refuses.
bool pin_to_cores(ThreadPool& pool);

}  // namespace kvilt
