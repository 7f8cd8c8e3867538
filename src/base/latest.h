// base/latest.h: one thread sets a value, any thread reads the last one, always a whole one; nobody waits for a lock.
// Source:  the seqlock: a counter is odd while the words change; a reader compares it before and after.
// Threads: set() on one thread, get() on any.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>

namespace kvilt {

template <class T>
class Latest {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uint64_t) == 0);

 public:
  Latest() { set(T{}); }

  void set(const T& value) {
    Words words;
    std::memcpy(words.data(), &value, sizeof value);
    const uint64_t count = count_.load(std::memory_order_relaxed);
    count_.store(count + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (size_t i = 0; i < words.size(); ++i) words_[i].store(words[i], std::memory_order_relaxed);
    count_.store(count + 2, std::memory_order_release);
  }

  T get() const {
    Words words;
    for (;;) {
      const uint64_t count = count_.load(std::memory_order_acquire);
      for (size_t i = 0; i < words.size(); ++i) words[i] = words_[i].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (count % 2 == 0 && count_.load(std::memory_order_relaxed) == count) break;
      std::this_thread::yield();
    }
    T value;
    std::memcpy(static_cast<void*>(&value), words.data(), sizeof value);
    return value;
  }

 private:
  using Words = std::array<uint64_t, sizeof(T) / sizeof(uint64_t)>;
  std::atomic<uint64_t> count_{0};
  std::array<std::atomic<uint64_t>, sizeof(T) / sizeof(uint64_t)> words_;
};

}  // namespace kvilt
