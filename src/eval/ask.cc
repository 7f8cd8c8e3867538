#include "eval/ask.h"

namespace kvilt {

void BlockingSink::on_tokens(const TokenDelta& delta) {
  if (on_text_ && !delta.text.empty()) on_text_(delta.text);
  text += delta.text;
  ids.insert(ids.end(), delta.ids.begin(), delta.ids.end());
}

void BlockingSink::on_finish(Completion completion) {
  std::lock_guard lock(mutex_);
  done_ = std::move(completion);
  ended_.notify_all();
}

Completion BlockingSink::wait() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return done_.has_value(); });
  return std::move(*done_);
}

Result<Answered> ask(Engine& engine, Request request, std::function<void(const std::string&)> on_text) {
  auto sink = std::make_shared<BlockingSink>(std::move(on_text));
  const auto id = engine.submit(std::move(request), sink);
  if (!id.ok()) return id.error();
  Completion completion = sink->wait();
  if (completion.error) return *completion.error;
  return Answered{sink->text, sink->ids, std::move(completion)};
}

}  // namespace kvilt
