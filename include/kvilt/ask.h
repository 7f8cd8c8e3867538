// kvilt/ask.h: one request to an engine, waited for.
// Threads: any but the engine's own: do not call it from a sink.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvilt/engine.h"

namespace kvilt {

struct Answered {
  std::string text;
  std::vector<int32_t> ids;
  Completion completion;  // without an error
  const PromptUsage& usage() const { return completion.usage; }
};

// Collects one answer; wait() blocks until it is complete. on_text, if given, gets each new text on the engine thread.
class BlockingSink : public TokenSink {
 public:
  using OnText = std::function<void(const std::string&)>;
  explicit BlockingSink(OnText on_text = nullptr) : on_text_(std::move(on_text)) {}

  void on_tokens(const TokenDelta& delta) override {
    if (on_text_ && !delta.text.empty()) on_text_(delta.text);
    text += delta.text;
    ids.insert(ids.end(), delta.ids.begin(), delta.ids.end());
  }
  void on_finish(Completion completion) override {
    std::lock_guard lock(mutex_);
    done_ = std::move(completion);
    ended_.notify_all();
  }
  // REQUIRES: called once.
  Completion wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return done_.has_value(); });
    return std::move(*done_);
  }

  // Complete when wait() has returned.
  std::string text;
  std::vector<int32_t> ids;

 private:
  const OnText on_text_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<Completion> done_;
};

// Submits and waits. Errors: the engine's, at once or later.
inline Result<Answered> ask(Engine& engine, Request request, BlockingSink::OnText on_text = nullptr) {
  const auto sink = std::make_shared<BlockingSink>(std::move(on_text));
  const auto id = engine.submit(std::move(request), sink);
  if (!id.ok()) return id.error();
  Completion completion = sink->wait();
  if (completion.error) return *completion.error;
  return Answered{std::move(sink->text), std::move(sink->ids), std::move(completion)};
}

}  // namespace kvilt
