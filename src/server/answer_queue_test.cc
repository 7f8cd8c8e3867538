// What comes out of the queue: all of an answer that is read whole, however late its reader comes.
#include "server/answer_queue.h"

#include <gtest/gtest.h>

#include "server/fake_engine.h"
#include "server/metrics.h"
#include "server/tenants.h"

namespace kvilt::server {
namespace {

constexpr int kTokens = 20000;  // more than kMaxQueuedBytes holds of their events

// Nobody takes anything out before all choices have ended.
std::unique_ptr<AnswerQueue> full_queue(const std::shared_ptr<FakeEngine>& engine, AnswerQueue::Reader reader,
                                        int choices) {
  auto queue = std::make_unique<AnswerQueue>(
      AnswerQueue::Account{engine, std::make_shared<Metrics>(""), std::make_shared<Tenant>("", 0, 0)}, reader);
  Request request;
  request.prompt.ids = {FakeEngine::kBos, 'h', 'i'};
  request.sampling.temperature = 0;
  request.sampling.max_tokens = kTokens;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 1;
  for (int i = 0; i < choices; ++i) EXPECT_TRUE(queue->submit(request).ok());
  while (engine->stats().requests_ok < static_cast<uint64_t>(choices)) std::this_thread::yield();
  return queue;
}

struct Read {
  std::vector<std::string> text;
  std::vector<size_t> ids, logprobs;
  int ends = 0;
};

Read read_all(AnswerQueue& queue) {
  Read out;
  out.text.resize(static_cast<size_t>(queue.size()));
  out.ids.resize(out.text.size());
  out.logprobs.resize(out.text.size());
  while (!queue.finished()) {
    const auto event = queue.next(AnswerQueue::kLook);
    if (!event) continue;
    out.text[event->choice] += event->delta.text;
    out.ids[event->choice] += event->delta.ids.size();
    out.logprobs[event->choice] += event->delta.logprobs.size();
    out.ends += event->end.has_value();
  }
  return out;
}

TEST(AnswerQueue, AWholeAnswerLosesNothing) {
  const auto engine = std::make_shared<FakeEngine>(FakeOptions{.context = 2 * kTokens});
  const auto queue = full_queue(engine, AnswerQueue::Reader::kWhole, 3);
  const Read read = read_all(*queue);
  EXPECT_FALSE(queue->overflowed());
  EXPECT_EQ(read.ends, 3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(read.ids[i], kTokens) << i;
    EXPECT_EQ(read.logprobs[i], kTokens) << i;
    EXPECT_EQ(read.text[i], read.text[0]) << i;
    EXPECT_GT(read.text[i].size(), kTokens / 2u) << i;
  }
}

TEST(AnswerQueue, AStreamThatNobodyReadsSaysSo) {  // power check: as much does not fit into a stream's queue
  const auto engine = std::make_shared<FakeEngine>(FakeOptions{.context = 2 * kTokens});
  const auto queue = full_queue(engine, AnswerQueue::Reader::kStream, 1);
  EXPECT_TRUE(queue->overflowed());
  EXPECT_LT(read_all(*queue).ids[0], kTokens);
}

}  // namespace
}  // namespace kvilt::server
