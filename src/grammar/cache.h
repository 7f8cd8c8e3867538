// grammar/cache.h: compiled grammars by their text, the ones used last, within a bound of bytes.
// Threads: any.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/mutex.h"

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

}  // namespace kvilt
