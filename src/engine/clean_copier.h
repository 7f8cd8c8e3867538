// engine/clean_copier.h: documents that are asked for often and have no clean copy (index/clean_pieces.h) get one when the
// engine is idle.
// Role:       EngineLoop says which marked parts a request had that no clean copy was there for; start() gives the
//             sequence that computes one of them behind the beginning of the prompts that asked.
// Threads:    the engine thread.
// Not here:   whether there is a copy (ContentCache::without_clean_copy), publishing it.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "engine/ask_counter.h"
#include "engine/fair_line.h"
#include "engine/idle_work.h"

namespace kvilt {

class CleanCopier : public IdleWork {
 public:
  static constexpr int kOften = 3;  // conversations that begin alike and ask for the same document
  static constexpr size_t kMaxWaiting = 16;
  static constexpr size_t kMaxTokens = size_t{1} << 16;  // of a document and what stands before it
  static constexpr int kMostInterrupts = 8;  // then a document has had its tries until it is asked for often again

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
    Digest key;
    Prompt prompt;  // the beginning of the prompts that asked, then the document
    DomainId domain = 0;
    OwnerId owner = 0;
    int interrupts = 0;
  };
  bool waits(const Digest& key) const;

  AskCounter asked_{kOften};
  FairLine<Document> waiting_{kMaxWaiting};
  std::optional<Document> now_;
};

}  // namespace kvilt
