// peer/peer_link.h: the connection of who asks: kept, made again when it was lost, and never waited for by its owner.
// Role:       one thread connects, sends what was asked and receives rows.
// Invariants: it reads no further ahead of took() than kMostAhead bytes, so that a fast peer fills no memory. What is
//             wrong with the peer is logged once until it works again.
// Threads:    the hooks are called on its thread, and must not call back but for took(); the rest from any.
// Not here:   what the rows are of (engine/peer_cache.h), the bytes (peer_channel.h).
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "base/open_file.h"
#include "peer/peer_channel.h"
#include "peer/peer_message.h"

namespace kvilt {

class PeerLink {
 public:
  static constexpr int64_t kMostAhead = int64_t{64} << 20;
  struct Options {
    PeerAddress address;
    HashSecret key;
    PeerHello hello;
    std::chrono::milliseconds to_connect{3000};
  };
  struct Hooks {
    std::function<void(PeerRows)> rows;
    std::function<void(PeerPart)> part;
    std::function<void(PeerEnd)> end;
    std::function<void()> lost;     // what was asked is answered no more
    std::function<void()> changed;  // ready() or failures()
  };

  explicit PeerLink(Options options) : options_(std::move(options)) {}
  ~PeerLink() { finish(); }

  // Errors: kExhausted (no more files).
  Status start(Hooks hooks);
  bool ready() const { return ready_; }
  // False: it is not ready; nothing will come.
  bool ask(PeerAsk ask);
  void cancel(uint64_t id);
  // The bytes of rows and parts that their owner is done with.
  void took(int64_t bytes);
  // The peer sent what it must not: the connection ends.
  void drop();
  // The end, also of a connection that is being made. Returns when its thread did.
  void finish();

  uint64_t failures() const { return failures_; }  // connections that were lost, or not made

 private:
  void run();
  void say(const std::function<void()>& hook);
  Result<std::unique_ptr<PeerChannel>> connect();
  Status serve(PeerChannel& channel);
  Status send_queued(PeerChannel& channel);
  Status receive(PeerChannel& channel);
  template <class Kv>
  void hand_on(const std::function<void(Kv)>& hook, Kv kv);
  void wait_for_room(int64_t bytes);
  bool enqueue(PeerMessage message);
  void tell(const Error& why);
  void rest(Code why);

  const Options options_;
  Hooks hooks_;
  std::atomic<bool> ready_{false}, dropped_{false};
  std::atomic<uint64_t> failures_{0};
  bool told_ = false;  // the thread's
  OpenFile wake_;      // an eventfd
  OpenFile ends_;      // another: finish() was called
  Mutex mutex_;
  Condition changed_;
  bool stop_ KVILT_GUARDED_BY(mutex_) = false;
  int64_t ahead_ KVILT_GUARDED_BY(mutex_) = 0;
  std::deque<PeerMessage> queue_ KVILT_GUARDED_BY(mutex_);
  std::shared_ptr<const PeerSocket> socket_ KVILT_GUARDED_BY(mutex_);  // of the connection, also while it is made
  std::thread thread_;                                                 // last
};

}  // namespace kvilt
