#include "grammar/cache.h"

#include <utility>

namespace kvilt {

std::shared_ptr<const Grammar> GrammarCache::find(const std::string& text) {
  MutexLock lock(mutex_);
  const auto found = by_text_.find(text);
  if (found == by_text_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return found->second->grammar;
}

void GrammarCache::keep(const std::string& text, std::shared_ptr<const Grammar> grammar, size_t bytes) {
  MutexLock lock(mutex_);
  if (by_text_.contains(text) || bytes > most_) return;
  kept_.push_front({text, std::move(grammar), bytes});
  by_text_.emplace(kept_.front().text, kept_.begin());
  bytes_ += bytes;
  while (bytes_ > most_) {
    by_text_.erase(kept_.back().text);
    bytes_ -= kept_.back().bytes;
    kept_.pop_back();
  }
}

size_t GrammarCache::bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

}  // namespace kvilt
