// eval/ask.h: one request to an engine, waited for.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "kvilt/engine.h"

namespace kvilt {

// Collects one answer; wait() blocks until it is complete. on_text, if given, is called on the engine thread.
class BlockingSink : public TokenSink {
 public:
  explicit BlockingSink(std::function<void(const std::string&)> on_text = nullptr) : on_text_(std::move(on_text)) {}
  void on_tokens(const TokenDelta& delta) override;
  void on_finish(Completion completion) override;
  Completion wait();
  std::string text;
  std::vector<int32_t> ids;

 private:
  std::function<void(const std::string&)> on_text_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<Completion> done_;
};

struct Answered {
  std::string text;
  std::vector<int32_t> ids;
  Completion completion;
};
// Submits and waits. Errors: the engine's, at once or later.
Result<Answered> ask(Engine& engine, Request request, std::function<void(const std::string&)> on_text = nullptr);

}  // namespace kvilt
