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

std::optional<Error> RefusedGrammars::find(const std::string& text) {
  MutexLock lock(mutex_);
  const auto now = Clock::now();
  while (!refused_.empty() && now - refused_.front().at >= kept_for_) refused_.pop_front();
  for (const Refused& one : refused_) {
    if (one.text == text) return one.why;
  }
  return std::nullopt;
}

void RefusedGrammars::add(const std::string& text, Error why) {
  MutexLock lock(mutex_);
  refused_.push_back({text, std::move(why), Clock::now()});
  if (refused_.size() > kMost) refused_.pop_front();
}

}  // namespace kvilt
