// grammar/cache.h: compiled grammars by their text, the ones used last, within a bound of bytes; and texts that were
// refused lately.
// Threads: any.
#pragma once

#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "kvilt/result.h"

namespace kvilt {

class Grammar;

class GrammarCache {
 public:
  explicit GrammarCache(size_t most_bytes) : most_(most_bytes) {}

  std::shared_ptr<const Grammar> find(const std::string& text);  // null: it is not there
  // One that is larger than the bound is not kept.
  void keep(const std::string& text, std::shared_ptr<const Grammar> grammar, size_t bytes);
  size_t bytes() const;

 private:
  struct Kept {
    std::string text;
    std::shared_ptr<const Grammar> grammar;
    size_t bytes = 0;
  };

  const size_t most_;
  mutable Mutex mutex_;
  std::list<Kept> kept_ KVILT_GUARDED_BY(mutex_);  // used last first
  std::map<std::string_view, std::list<Kept>::iterator> by_text_ KVILT_GUARDED_BY(mutex_);
  size_t bytes_ KVILT_GUARDED_BY(mutex_) = 0;
};

// Texts that took too much to compile, with what was said of them: who sends one again, as clients do after an error, is
// told so at once.
class RefusedGrammars {
 public:
  explicit RefusedGrammars(std::chrono::duration<double> kept_for) : kept_for_(kept_for) {}

  std::optional<Error> find(const std::string& text);  // nothing: it was not refused, or long ago
  void add(const std::string& text, Error why);        // the oldest of kMost goes for it

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMost = 64;  // of up to 256 KiB each
  struct Refused {
    std::string text;
    Error why;
    Clock::time_point at;
  };

  const std::chrono::duration<double> kept_for_;
  Mutex mutex_;
  std::list<Refused> refused_ KVILT_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace kvilt
