#include "events/publisher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <zmq.hpp>

#include "index/content_index.h"

namespace kvilt {
namespace {

using Json = nlohmann::json;

PublisherOptions small() {
  PublisherOptions options;
  options.endpoint = options.replay = "tcp://127.0.0.1:*";
  options.topic = "kv@test";
  options.approximate_topic = "near@test";
  return options;
}

std::string big_endian_word(uint64_t number) {
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(number >> (56 - 8 * i));
  return out;
}

uint64_t number_of(const zmq::message_t& frame) {
  uint64_t out = 0;
  for (const char c : frame.to_string_view()) out = out << 8 | static_cast<uint8_t>(c);
  return out;
}

// Whether it holds within twenty seconds.
template <class Holds>
bool eventually(Holds holds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::vector<zmq::message_t> receive(zmq::socket_t& socket) {
  std::vector<zmq::message_t> frames;
  do {
    frames.emplace_back();
    if (!socket.recv(frames.back())) return {};
  } while (socket.get(zmq::sockopt::rcvmore));
  return frames;
}

// What a router would know.
class Subscriber {
 public:
  explicit Subscriber(const KvEventPublisher& publisher, const std::string& topic) : topic_(topic) {
    sub_.set(zmq::sockopt::subscribe, topic);
    sub_.set(zmq::sockopt::rcvhwm, 0);
    sub_.connect(publisher.endpoint());
    dealer_.set(zmq::sockopt::rcvtimeo, 20'000);
    dealer_.connect(publisher.replay_endpoint());
  }
  // Asks for what was sent before; what comes twice is skipped by its number. Returns how many batches came.
  int replay(uint64_t from = 0) {
    dealer_.send(zmq::message_t(), zmq::send_flags::sndmore);
    dealer_.send(zmq::buffer(big_endian_word(from)), zmq::send_flags::sndmore);
    dealer_.send(zmq::buffer(topic_), zmq::send_flags::none);
    for (int batches = 0;; ++batches) {
      std::vector<zmq::message_t> frames = receive(dealer_);
      if (frames.size() != 4 || frames[0].size() != 0) return -1;
      if (frames[3].size() == 0) return number_of(frames[2]) == ~uint64_t{0} ? batches : -1;
      EXPECT_EQ(frames[1].to_string(), topic_);
      take(number_of(frames[2]), frames[3]);
    }
  }
  // Reads until so many blocks and pieces are known, or nothing comes for long.
  void listen_until(size_t known) {
    sub_.set(zmq::sockopt::rcvtimeo, 20'000);
    while (tokens.size() != known) {
      std::vector<zmq::message_t> frames = receive(sub_);
      if (frames.size() != 3) return;
      EXPECT_EQ(frames[0].to_string(), topic_);
      take(number_of(frames[1]), frames[2]);
    }
  }
  void listen_for(int milliseconds) {
    sub_.set(zmq::sockopt::rcvtimeo, milliseconds);
    for (;;) {
      std::vector<zmq::message_t> frames = receive(sub_);
      if (frames.size() != 3) return;
      take(number_of(frames[1]), frames[2]);
    }
  }
  zmq::socket_t& raw() { return dealer_; }

  std::map<uint64_t, std::vector<int32_t>> tokens;  // by block
  std::set<std::string> extra_keys;
  int gaps = 0, clears = 0;

 private:
  void take(uint64_t number, const zmq::message_t& payload) {
    if (number < next_) return;
    gaps += number > next_ ? 1 : 0;
    next_ = number + 1;
    const auto* bytes = static_cast<const uint8_t*>(payload.data());
    const Json batch = Json::from_msgpack(bytes, bytes + payload.size());
    for (const Json& event : batch[1]) take(event);
  }
  void take(const Json& event) {
    if (event["type"] == "AllBlocksCleared") {
      tokens.clear();
      ++clears;
    } else if (event["type"] == "BlockRemoved") {
      for (const Json& hash : event["block_hashes"]) tokens.erase(hash);
    } else {
      size_t at = 0;
      for (const Json& hash : event["block_hashes"]) {
        const auto begin = event["token_ids"].begin() + static_cast<int64_t>(at);
        tokens[hash] = std::vector<int32_t>(begin, begin + event["block_size"].get<int64_t>());
        at += event["block_size"].get<size_t>();
      }
      const Json extra = event.value("extra_keys", Json::array());
      for (const Json& keys : extra) extra_keys.insert(keys[0].get<std::string>());
    }
  }
  const std::string topic_;
  zmq::context_t context_;
  zmq::socket_t sub_{context_, zmq::socket_type::sub};
  zmq::socket_t dealer_{context_, zmq::socket_type::dealer};
  uint64_t next_ = 0;
};

class PublisherTest : public testing::Test {
 protected:
  void open(PublisherOptions options) {
    auto made = KvEventPublisher::open(std::move(options));
    ASSERT_TRUE(made.ok()) << made.error().message;
    publisher_ = std::move(made).value();
    index_.listen(publisher_.get());
    // The test is the engine thread: it is asked by a flag.
    publisher_->on_retell([this](bool start) { asked_ = start ? 2 : 1; });
  }
  void TearDown() override { index_.listen(nullptr); }
  void serve_retell() {
    const int asked = asked_.exchange(0);
    if (asked == 0) return;
    if (asked == 2) {
      publisher_->begin_again();
      index_.tell_again();
    }
    told_ = !index_.tell_more(part_);
    publisher_->told_part(!told_);
  }
  // It may have subscribed behind the first parts of a telling: it asks again then.
  void hear_all(Subscriber& subscriber) {
    EXPECT_TRUE(eventually([&] {
      serve_retell();
      subscriber.listen_for(50);
      if (subscriber.tokens.size() < index_.block_keys().size()) subscriber.replay(0);
      return subscriber.tokens.size() == index_.block_keys().size();
    }));
    std::vector<uint64_t> known;
    for (const auto& [key, ids] : subscriber.tokens) known.push_back(key);
    EXPECT_EQ(known, index_.block_keys());
  }
  void insert(DomainId domain, int32_t size, bool exact = true) {
    SegmentInfo info;
    info.domain = domain;
    info.exact = exact;
    for (int32_t i = 0; i < size; ++i) info.tokens.push_back(next_id_++);
    index_.insert(++last_, std::move(info));
  }
  void change(std::mt19937& random) {
    if (last_ == 0 || random() % 3 != 0) return insert(open_, 16 + static_cast<int32_t>(random() % 100));
    index_.erase(1 + random() % last_);
  }

  ContentIndex index_{HashSecret::fixed(1)};
  const DomainId open_ = index_.domain("model", "", ""), salted_ = index_.domain("model", "", "salt");
  std::unique_ptr<KvEventPublisher> publisher_;
  std::atomic<int> asked_{0};
  bool told_ = false;  // the last part was told
  SegmentId last_ = 0;
  int32_t next_id_ = 0;
  int64_t part_ = 64;  // tokens that are told again at once
};

std::vector<uint64_t> keys_of(const Subscriber& subscriber) {
  std::vector<uint64_t> out;
  for (const auto& [key, ids] : subscriber.tokens) out.push_back(key);
  return out;
}

TEST_F(PublisherTest, SubscribersKnowWhatTheIndexHas) {
  open(small());
  Subscriber early(*publisher_, "kv@test");
  EXPECT_GE(early.replay(), 0);  // it is connected now, or has what it missed
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) change(random);
  const std::vector<uint64_t> keys = index_.block_keys();
  early.replay();
  early.listen_until(keys.size());
  EXPECT_EQ(keys_of(early), keys);
  EXPECT_EQ(early.clears, 1) << "the process began";
  Subscriber late(*publisher_, "kv@test");
  EXPECT_GT(late.replay(), 0);
  late.listen_until(keys.size());
  EXPECT_EQ(late.tokens, early.tokens);
  EXPECT_EQ(late.gaps, 0);
  EXPECT_TRUE(late.extra_keys.empty());
}

TEST_F(PublisherTest, ApproximatePiecesHaveATopicOfTheirOwn) {
  open(small());
  insert(open_, 32);
  insert(open_, 40, false);
  insert(open_, 50, false);
  index_.erase(last_);
  Subscriber exact(*publisher_, "kv@test"), near(*publisher_, "near@test");
  exact.replay(), near.replay();
  exact.listen_until(2), near.listen_until(1);
  ASSERT_EQ(near.tokens.size(), 1u);
  EXPECT_EQ(near.tokens.begin()->second.size(), 40u);
  EXPECT_EQ(exact.tokens.size(), 2u);
}

// As in the releases of vLLM that write such events: before 0.26 the topic was left out, and subscribers of either kind
// count frames.
TEST_F(PublisherTest, AReplayNamesItsTopicWhereEventsAreMaps) {
  using Frames = std::vector<std::string>;
  const std::string end = big_endian_word(~uint64_t{0});
  for (const bool maps : {true, false}) {
    for (const std::string& topic : {std::string(), std::string("kv@test"), std::string("near@test")}) {
      PublisherOptions options = small();
      options.wire = maps ? KvEventWire::kMap : KvEventWire::kArray;
      open(options);
      Subscriber reader(*publisher_, "kv@test");
      reader.raw().send(zmq::message_t(), zmq::send_flags::sndmore);
      reader.raw().send(zmq::buffer(big_endian_word(0)),
                        topic.empty() ? zmq::send_flags::none : zmq::send_flags::sndmore);
      if (!topic.empty()) reader.raw().send(zmq::buffer(topic), zmq::send_flags::none);
      std::vector<Frames> answers;
      while (answers.empty() || !answers.back().back().empty()) {
        answers.emplace_back();
        for (const zmq::message_t& frame : receive(reader.raw())) answers.back().push_back(frame.to_string());
        ASSERT_FALSE(answers.back().empty()) << "no answer";
      }
      ASSERT_EQ(answers.size(), 2u) << "AllBlocksCleared, and the end";
      const std::string batch = answers[0].back(), word = big_endian_word(0);
      const std::string name = topic.empty() ? "kv@test" : topic;
      EXPECT_EQ(answers[0], (maps ? Frames{"", name, word, batch} : Frames{"", word, batch}));
      EXPECT_EQ(answers[1], (maps ? Frames{"", "", end, ""} : Frames{"", end, ""}));
    }
  }
}

TEST_F(PublisherTest, WhatIsSaltedIsToldOnlyWhereAsked) {
  open(small());
  insert(salted_, 32);
  insert(open_, 16);
  Subscriber reader(*publisher_, "kv@test");
  reader.replay();
  reader.listen_until(1);
  EXPECT_EQ(reader.tokens.size(), 1u);
  PublisherOptions all = small();
  all.tenants = true;
  open(all);
  insert(salted_, 32);
  insert(open_, 16);
  Subscriber other(*publisher_, "kv@test");
  other.replay();
  other.listen_until(3);
  EXPECT_EQ(other.tokens.size(), 3u);
  EXPECT_EQ(other.extra_keys.size(), 1u) << "a keyed digest names the salt's domain";
  for (const std::string& key : other.extra_keys) EXPECT_EQ(key.find("salt"), std::string::npos);
}

TEST_F(PublisherTest, WhereTheQueueIsFullEverythingIsToldAgain) {
  PublisherOptions options = small();
  options.queue_ids = 200;
  open(options);
  std::mt19937 random(4);
  // Far quicker than a thread can send, with the engine thread answering only now and then.
  for (int i = 0; i < 3000; ++i) {
    change(random);
    if (i % 100 == 0) serve_retell();
  }
  EXPECT_GT(publisher_->counters().dropped, 0u);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  Subscriber reader(*publisher_, "kv@test");
  const std::vector<uint64_t> keys = index_.block_keys();
  while (keys_of(reader) != keys && std::chrono::steady_clock::now() < until) {
    serve_retell();
    reader.replay();
  }
  EXPECT_EQ(keys_of(reader), keys);
  EXPECT_GT(reader.clears, 1);
  EXPECT_GT(publisher_->counters().restarts, 0u);
}

TEST_F(PublisherTest, WhoComesTooLateForTheRingHearsEverythingAgain) {
  PublisherOptions options = small();
  options.ring_batches = 3;
  open(options);
  const auto wait_beyond = [&](uint64_t batches) {
    while (publisher_->counters().batches <= batches) std::this_thread::yield();
  };
  wait_beyond(1);  // the first words of two topics
  for (int i = 0; i < 30; ++i) {
    const uint64_t before = publisher_->counters().batches;
    insert(open_, 32);
    wait_beyond(before);
  }
  Subscriber late(*publisher_, "kv@test");
  EXPECT_EQ(late.replay(), 3);
  EXPECT_EQ(late.gaps, 1);
  hear_all(late);
  EXPECT_EQ(late.clears, 0);
}

// The second of two routers that come up together: it asks while the first one's telling is too near, and then listens.
TEST_F(PublisherTest, WhoComesTooLateSoonAfterATellingHearsTheNextOne) {
  PublisherOptions options = small();
  options.ring_batches = 3;
  options.between_late = std::chrono::milliseconds(1500);
  open(options);
  for (int i = 0; i < 30; ++i) {
    const uint64_t before = publisher_->counters().batches;
    insert(open_, 32);
    ASSERT_TRUE(eventually([&] { return publisher_->counters().batches > before; }));
  }
  Subscriber first(*publisher_, "kv@test"), second(*publisher_, "kv@test");
  EXPECT_EQ(first.replay(), 3);
  ASSERT_TRUE(eventually([&] {
    serve_retell();
    return told_;
  }));
  EXPECT_EQ(publisher_->counters().restarts, 1u);
  EXPECT_GE(second.replay(), 0);
  told_ = false;
  ASSERT_TRUE(eventually([&] {
    serve_retell();
    return told_;
  })) << "nothing else happens that would wake it";
  EXPECT_EQ(publisher_->counters().restarts, 2u);
  hear_all(second);
}

TEST_F(PublisherTest, WhereAskingForATellingFailsItIsAskedForAgain) {
  PublisherOptions options = small();
  options.ring_batches = 3;
  open(options);
  std::atomic<int> calls{0};
  publisher_->on_retell([&](bool start) {
    if (++calls == 1) throw std::bad_alloc();
    asked_ = start ? 2 : 1;
  });
  for (int i = 0; i < 30; ++i) {
    const uint64_t before = publisher_->counters().batches;
    insert(open_, 32);
    ASSERT_TRUE(eventually([&] { return publisher_->counters().batches > before; }));
  }
  Subscriber late(*publisher_, "kv@test");
  EXPECT_EQ(late.replay(), 3);
  ASSERT_TRUE(eventually([&] {
    serve_retell();
    return told_;
  }));
  EXPECT_GT(calls, 1);
  hear_all(late);
}

TEST_F(PublisherTest, RequestsOfNoSenseAreIgnored) {
  open(small());
  insert(open_, 32);
  Subscriber reader(*publisher_, "kv@test");
  const std::string word = big_endian_word(0);
  const std::vector<std::vector<std::string>> requests = {{""},
                                                          {"x"},
                                                          {"", "short"},
                                                          {"", word + "x"},
                                                          {"x", word},
                                                          {"", word, "no such topic"},
                                                          {"", word, "kv@test", "more"},
                                                          std::vector<std::string>(2000, "many")};
  for (const auto& frames : requests) {
    for (size_t i = 0; i < frames.size(); ++i) {
      reader.raw().send(zmq::buffer(frames[i]),
                        i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }
  EXPECT_GT(reader.replay(), 0);
  EXPECT_EQ(reader.tokens.size(), 2u);
}

// Who asks for everything and does not read has some of it waiting, and not the ring as it was.
TEST_F(PublisherTest, AnAskerThatDoesNotReadKeepsNoRing) {
  constexpr int kBatches = 1500;
  constexpr int32_t kTokens = 8192;  // so that the system's buffers hold few batches
  PublisherOptions options = small();
  options.ring_batches = kBatches + 1;  // one is told at the beginning
  options.ring_bytes = int64_t{1} << 40;
  open(options);
  const std::vector<int32_t> tokens(kTokens, 100'000);
  const auto fill = [&] {
    for (int i = 0; i < kBatches; ++i) {
      const uint64_t before = publisher_->counters().batches;
      publisher_->piece_stored(ToldDomain{}, ++last_, tokens);
      while (publisher_->counters().batches <= before) std::this_thread::yield();
    }
  };
  fill();
  zmq::context_t context;
  zmq::socket_t asker(context, zmq::socket_type::dealer);
  asker.set(zmq::sockopt::rcvhwm, 1);
  asker.set(zmq::sockopt::rcvtimeo, 20'000);
  asker.connect(publisher_->replay_endpoint());
  asker.send(zmq::message_t(), zmq::send_flags::sndmore);
  asker.send(zmq::buffer(big_endian_word(0)), zmq::send_flags::none);
  zmq::pollitem_t item{asker.handle(), 0, ZMQ_POLLIN, 0};
  ASSERT_EQ(zmq::poll(&item, 1, std::chrono::seconds(20)), 1) << "its answer has begun";
  const auto batches_until_the_end = [](zmq::socket_t& socket) {
    for (uint64_t last = 0, got = 0;; ++got) {
      const std::vector<zmq::message_t> frames = receive(socket);
      if (frames.size() != 4) return -1;
      if (frames[3].size() == 0) return static_cast<int>(got);
      EXPECT_GE(number_of(frames[2]), last) << "in order";
      last = number_of(frames[2]);
    }
  };
  zmq::socket_t other(context, zmq::socket_type::dealer);
  other.set(zmq::sockopt::rcvtimeo, 20'000);
  other.connect(publisher_->replay_endpoint());
  other.send(zmq::message_t(), zmq::send_flags::sndmore);
  other.send(zmq::buffer(big_endian_word(0)), zmq::send_flags::none);
  EXPECT_EQ(batches_until_the_end(other), kBatches + 1) << "nobody waits for who does not read";
  fill();
  EXPECT_EQ(publisher_->counters().restarts, 0u) << "nor is everything told again for it";
  const int got = batches_until_the_end(asker);
  EXPECT_GT(got, 0);
  EXPECT_LT(got, kBatches) << "the rest had left the ring";
  for (int i = 0; i < 3000 && asked_ == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(publisher_->counters().restarts, 1u) << "once, when it reads on";
}

// As vllm-router and llm-d's do, which have no use for what begins later than they asked.
TEST_F(PublisherTest, AnAskerThatLeavesWhereItSeesThatItIsTooLateHearsEverythingAgain) {
  constexpr int kBatches = 1500;
  constexpr int32_t kTokens = 8192;  // so that the system's buffers hold few batches
  PublisherOptions options = small();
  options.ring_batches = kBatches;  // one more is told at the beginning
  options.ring_bytes = int64_t{1} << 40;
  open(options);
  const std::vector<int32_t> tokens(kTokens, 100'000);
  for (int i = 0; i < kBatches; ++i) {
    const uint64_t before = publisher_->counters().batches;
    publisher_->piece_stored(ToldDomain{}, ++last_, tokens);
    ASSERT_TRUE(eventually([&] { return publisher_->counters().batches > before; }));
  }
  for (const uint64_t first : {1, 0}) {
    EXPECT_EQ(publisher_->counters().restarts, 0u) << "who has the beginning may leave when it likes";
    zmq::context_t context;
    zmq::socket_t asker(context, zmq::socket_type::dealer);
    asker.set(zmq::sockopt::rcvhwm, 1);
    asker.set(zmq::sockopt::linger, 0);
    asker.set(zmq::sockopt::rcvtimeo, 20'000);
    asker.connect(publisher_->replay_endpoint());
    asker.send(zmq::message_t(), zmq::send_flags::sndmore);
    asker.send(zmq::buffer(big_endian_word(first)), zmq::send_flags::none);
    const std::vector<zmq::message_t> frames = receive(asker);
    ASSERT_EQ(frames.size(), 4u);
    EXPECT_EQ(number_of(frames[2]), 1u);
  }
  EXPECT_TRUE(eventually([&] { return asked_ != 0; }));
  EXPECT_EQ(publisher_->counters().restarts, 1u);
}

// What nobody needs to send is not taken into memory.
TEST_F(PublisherTest, ALargeFrameEndsItsConnection) {
  open(small());
  class Ends : public zmq::monitor_t {
   public:
    void on_event_disconnected(const zmq_event_t&, const char*) override { ended = true; }
    bool ended = false;
  };
  for (const size_t size : {size_t{1000}, size_t{100'000}}) {
    zmq::context_t context;
    zmq::socket_t asker(context, zmq::socket_type::dealer);
    asker.set(zmq::sockopt::linger, 0);
    Ends ends;
    ends.init(asker, "inproc://ends", ZMQ_EVENT_DISCONNECTED);
    asker.connect(publisher_->replay_endpoint());
    asker.send(zmq::buffer(std::string(size, 'x')), zmq::send_flags::none);
    if (size > 4096) {
      for (int i = 0; i < 200 && !ends.ended; ++i) ends.check_event(100);
      EXPECT_TRUE(ends.ended);
      continue;
    }
    asker.send(zmq::message_t(), zmq::send_flags::sndmore);
    asker.send(zmq::buffer(big_endian_word(0)), zmq::send_flags::none);
    zmq::message_t answer;
    asker.set(zmq::sockopt::rcvtimeo, 20'000);
    EXPECT_TRUE(asker.recv(answer)) << "power: a small one does not";
  }
}

TEST(Publisher, AnAddressThatCannotBeBoundIsNamed) {
  for (const char* bad : {"", "nonsense", "tcp://127.0.0.1", "tcp://192.0.2.1:5557", "connect:http://x"}) {
    PublisherOptions options = small();
    options.endpoint = bad;
    const auto made = KvEventPublisher::open(options);
    ASSERT_FALSE(made.ok()) << bad;
    EXPECT_NE(made.error().message.find("KV events: '"), std::string::npos) << made.error().message;
  }
  PublisherOptions options = small();
  options.replay = "nonsense";
  EXPECT_FALSE(KvEventPublisher::open(options).ok());
}

}  // namespace
}  // namespace kvilt
