// base/thread_annotations.h: which mutex guards what, in words that clang checks (scripts/check_locks); empty elsewhere.
// Source: https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#pragma once

#if defined(__clang__)
#define KVILT_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define KVILT_THREAD_ATTRIBUTE(x)
#endif

#define KVILT_CAPABILITY(name) KVILT_THREAD_ATTRIBUTE(capability(name))
#define KVILT_SCOPED_CAPABILITY KVILT_THREAD_ATTRIBUTE(scoped_lockable)
// A member that is read and written only while the mutex is held.
#define KVILT_GUARDED_BY(mutex) KVILT_THREAD_ATTRIBUTE(guarded_by(mutex))
// A function that is called only while the mutex is held; after the parameter list of a lambda, too.
#define KVILT_REQUIRES(...) KVILT_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define KVILT_ACQUIRE(...) KVILT_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define KVILT_RELEASE(...) KVILT_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define KVILT_NO_THREAD_SAFETY_ANALYSIS KVILT_THREAD_ATTRIBUTE(no_thread_safety_analysis)
