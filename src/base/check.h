// base/check.h: CHECK for our own bugs (always on), DCHECK for hot paths (builds without NDEBUG).
// Input from outside must never reach one: it gets an Error instead.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace kvilt {
[[noreturn]] inline void check_failed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s (this is a bug in kvilt)\n", file, line, what);
  std::abort();
}
}  // namespace kvilt

#define CHECK(condition) \
  (__builtin_expect(!!(condition), 1) ? (void)0 : ::kvilt::check_failed(__FILE__, __LINE__, #condition))
#ifdef NDEBUG
#define DCHECK(condition) ((void)0)
#else
#define DCHECK(condition) CHECK(condition)
#endif
