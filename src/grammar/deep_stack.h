// grammar/deep_stack.h: runs work on a thread with a large stack, and waits for it.
// Idea: xgrammar recurses along a grammar's rules. How deep these refer to each other is the input's choice, and a thread's
//       usual 8 MiB may not do. Pages of the stack that are not reached cost nothing.
#pragma once

#include <pthread.h>

#include "base/function_ref.h"

namespace kvilt {

// False: the system gave no thread. `work` must not throw.
inline bool run_on_deep_stack(FunctionRef<void()> work) {
  constexpr size_t kStack = size_t{256} << 20;
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_t thread;
  const bool started =
      pthread_attr_setstacksize(&attributes, kStack) == 0 && pthread_create(
                                                                 &thread, &attributes,
                                                                 [](void* work) -> void* {
                                                                   (*static_cast<FunctionRef<void()>*>(work))();
                                                                   return nullptr;
                                                                 },
                                                                 &work) == 0;
  pthread_attr_destroy(&attributes);
  if (started) pthread_join(thread, nullptr);
  return started;
}

}  // namespace kvilt
