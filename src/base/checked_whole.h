// base/checked_whole.h: ranges that AddressSanitizer checks once as a whole, instead of at each access of a hot loop.
// Role:  a loop calls check_readable() on what it is going to read and then runs in a function that is
//        KVILT_CHECKED_WHOLE: not instrumented. The same bytes are checked, before the loop instead of inside.
// Why:   half of the time of all sanitized tests was one dot product (kernels/reference/linear.cc). Not for the kernels in
//        x86/: GCC 12 does not inline instrumented always_inline functions into one that is not (it crashes).
// Other builds: both are nothing.
#pragma once

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define KVILT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVILT_ASAN 1
#endif
#endif

#ifdef KVILT_ASAN
#include <sanitizer/asan_interface.h>
#define KVILT_CHECKED_WHOLE __attribute__((noinline, no_sanitize("address"), no_sanitize("undefined")))
#else
#define KVILT_CHECKED_WHOLE
#endif

namespace kvilt {

// Ends the process with AddressSanitizer's report where one of data[0, count) may not be read, or is not aligned.
template <class T>
[[gnu::always_inline]] inline void check_readable([[maybe_unused]] const T* data, [[maybe_unused]] int64_t count) {
#ifdef KVILT_ASAN
  if (count <= 0) return;
  static_cast<void>(*static_cast<const volatile T*>(data));  // an instrumented read: alignment too
  void* bad = __asan_region_is_poisoned(const_cast<T*>(data), static_cast<size_t>(count) * sizeof(T));
  if (bad != nullptr) static_cast<void>(*static_cast<const volatile char*>(bad));  // it reports this one
#endif
}

}  // namespace kvilt
