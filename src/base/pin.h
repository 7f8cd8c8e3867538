// base/pin.h: puts every thread of a pool on a core of its own, for machines that nobody else uses.
// Threads: called by the pool's caller, which is pinned too (worker 0).
#pragma once

#include "base/thread_pool.h"

namespace kvilt {

// Worker w goes to the w-th core that this process may use. Returns false where the system refuses, and where there are
// more threads than cores: then it pins none, since two threads on one core would wait for each other's time slices.
bool pin_to_cores(ThreadPool& pool);

}  // namespace kvilt
