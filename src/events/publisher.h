// events/publisher.h: sends what the index tells over ZeroMQ, as vLLM does.
// Idea:       the engine thread appends events to a bounded queue and leaves. A thread of its own makes batches of them,
//             numbers them, sends them from a PUB socket as [topic, number, batch], keeps the last ones in a ring, and
//             answers on a ROUTER socket who missed some. docs/design/events.md, docs/formats/kv_events.md.
// Invariants: events of one topic leave in the order in which they were told, with numbers that follow each other. Where
//             the queue was full, what did not fit is followed by AllBlocksCleared and then by all that is there: a
//             subscriber knows too little for a while, never too much.
// Threads:    the listener's functions on the engine thread; counters() on any.
// Cost:       the engine thread copies the tokens of what is told. Queue and ring are bounded by the options below; a
//             replay shares the ring's bytes, of which some wait for each asker; the rest follows as it reads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "events/kv_event.h"
#include "index/index_listener.h"
#include "kvilt/result.h"

namespace kvilt {

struct PublisherOptions {
  std::string endpoint;           // ZeroMQ's words: tcp://127.0.0.1:5557. connect:ENDPOINT connects instead of binding
  std::string replay;             // empty: nobody can ask for what was missed
  std::string topic;              // of exact blocks
  std::string approximate_topic;  // of approximate blocks and pieces; empty: they are not told
  KvEventWire wire = KvEventWire::kMap;
  bool tenants = false;  // also what belongs to a tenant, namespace or salt
  int64_t queue_ids = int64_t{1} << 22;
  int64_t ring_bytes = int64_t{64} << 20;
  size_t ring_batches = 10'000;
  std::chrono::milliseconds between_late{10'000};  // everything is told to late subscribers no oftener
};

struct PublisherCounters {
  uint64_t batches = 0, dropped = 0,
           restarts = 0;  // dropped: events that did not fit; restarts: tellings of everything
};

class KvEventPublisher final : public IndexListener {
 public:
  // Binds and begins; the first event of each topic is AllBlocksCleared, since an earlier process may have had the
  // address. Errors: kInvalidArgument, naming the endpoint and what the system said.
  static Result<std::unique_ptr<KvEventPublisher>> open(PublisherOptions options);
  ~KvEventPublisher() override;
  void stop();  // sends what waits, and ends the thread. Nothing is told afterwards

  // How everything is told again, a part at a time: called on the publisher's thread, it has the engine thread call
  // begin_again() where `start` says so, tell a part, and call told_part(). REQUIRES: given before the first event.
  using Retell = std::function<void(bool start)>;
  void on_retell(Retell retell);
  void begin_again() noexcept;
  void told_part(bool more) noexcept;

  void blocks_stored(const ToldDomain& domain, const ToldBlocks& blocks) noexcept override;
  void blocks_removed(const ToldDomain& domain, std::span<const uint64_t> keys) noexcept override;
  void piece_stored(const ToldDomain& domain, SegmentId id, std::span<const int32_t> tokens) noexcept override;
  void piece_removed(const ToldDomain& domain, SegmentId id) noexcept override;
  void cleared() noexcept override;

  PublisherCounters counters() const;
  const std::string& endpoint() const { return endpoint_; }  // as bound: with the port, where * stood for it
  const std::string& replay_endpoint() const { return replay_endpoint_; }

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Sockets;
  struct Queued {
    bool approximate = false;
    KvEvent event;
  };
  using Batch = std::shared_ptr<const std::vector<uint8_t>>;  // ring and sockets share it: replays copy nothing
  // What was sent under a topic, by number.
  struct Topic {
    std::string name;
    uint64_t next = 0;
    std::deque<std::pair<uint64_t, Batch>> ring;
    int64_t bytes = 0;
  };
  struct Replay {  // what somebody asked for and has not got yet
    std::string who;
    bool approximate = false;
    uint64_t next = 0, end = 0;  // numbers of batches
    bool missed = false;         // some of them had left the ring
  };
  explicit KvEventPublisher(PublisherOptions options);
  Status bind();
  bool wants(const ToldDomain& domain) const;
  template <class Make>
  void push(const ToldDomain& domain, int64_t ids, Make&& make) noexcept;
  void push_cleared() KVILT_REQUIRES(mutex_);
  void wake() const;
  void run();
  void send_all(std::vector<Queued> events);
  void send(Topic& topic, std::span<const KvEvent> events);
  void hear_asker();
  void go_on_replaying();
  bool go_on(Replay& replay);
  void go_on_telling();
  std::optional<Time> tell_at() const KVILT_REQUIRES(mutex_);
  int wait_ms() const;

  const PublisherOptions options_;
  std::unique_ptr<Sockets> sockets_;  // the publisher's thread's, once it runs
  std::string endpoint_, replay_endpoint_;
  Topic exact_, approximate_;   // the publisher's thread's
  std::deque<Replay> replays_;  // the same
  bool too_late_ = false;       // the same: somebody asked for what the ring has no more
  Time retold_, rest_until_;    // the same: when that was answered last; nothing is asked for until
  std::atomic<uint64_t> batches_{0}, dropped_{0}, restarts_{0};

  mutable Mutex mutex_;
  std::vector<Queued> queue_ KVILT_GUARDED_BY(mutex_);
  int64_t queued_ids_ KVILT_GUARDED_BY(mutex_) = 0;
  bool lost_ KVILT_GUARDED_BY(mutex_) = false;     // events did not fit: nothing is taken until begin_again()
  bool asked_ KVILT_GUARDED_BY(mutex_) = false;    // the engine thread has yet to tell a part
  bool telling_ KVILT_GUARDED_BY(mutex_) = false;  // parts are left
  Retell retell_ KVILT_GUARDED_BY(mutex_);
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace kvilt
