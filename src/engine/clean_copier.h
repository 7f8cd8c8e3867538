// engine/clean_copier.h: documents that are asked for often and have no clean copy (index/clean_pieces.h) get one when the
// engine is idle.
// Role:       EngineLoop says which marked parts a request had that no clean copy was there for; start() gives the
//             sequence that computes one of them behind the beginning of the prompts that asked.
// Invariants: what is counted is bounded.
// Threads:    the engine thread.
// Not here:   whether there is a copy (ContentCache::without_clean_copy), publishing it.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/keyed_hash.h"
#include "engine/idle_work.h"

namespace kvilt {

class CleanCopier : public IdleWork {
 public:
  static constexpr int kOften = 3;  // prompts that begin alike and ask for the same document
  static constexpr size_t kMaxWaiting = 16, kMaxCounted = 4096;

  // The prefill of a real request ended; `missing` are parts that it marked.
  void asked(const Sequence& sequence, std::span<const TokenMark> missing);

  std::optional<Clock::time_point> ready() const override {
    return waiting_.empty() ? std::nullopt : std::optional(Clock::time_point{});
  }
  std::unique_ptr<Sequence> start() override;
  void interrupt() override;
  void finish(Completion) override { now_.reset(); }
  void clear() override {
    waiting_.clear();
    asked_.clear();
  }

 private:
  struct Document {
    std::vector<int32_t> tokens;  // the beginning of the prompts that asked, then the document
    TokenMark mark;
    int64_t domain = 0;
  };
  const HashSecret secret_ = HashSecret::random();
  std::unordered_map<Digest, int, DigestHash> asked_;
  std::deque<Document> waiting_;
  std::optional<Document> now_;
};

}  // namespace kvilt
