// peer/peer_server.h: the side that is asked: takes connections, hands asks on, sends rows and ends.
// Invariants: a connection queues kMostQueued bytes of rows at most: whoever makes them asks has_room() first, and hears
//             when there is room again. A bounded number of connections, each with a bounded number of asks.
// Strangers:  who has not shown the key and said hello is one, and holds none of the places of those who have. Strangers
//             have places of their own, and some seconds. A new one always gets in: where all places are taken the oldest
//             one goes of the address that has most of them. So a flood drives out its own, and a decode server needs
//             two round trips. Of those who have the key one that asks nothing gives its place to another in need.
// Threads:    one that accepts, two for each connection. Hooks are called on these; the rest from any.
// Not here:   computing (engine/peer_answers.h).
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "peer/peer_channel.h"
#include "peer/peer_message.h"

namespace kvilt {

// Since the start, and of now.
struct PeerServerCounters {
  std::atomic<uint64_t> asked{0}, sent_tokens{0}, sent_bytes{0}, early_tokens{0}, failures{0};  // sent: rows
  std::atomic<int> connections{0};
};

class PeerConnection {
 public:
  static constexpr int64_t kMostQueued = int64_t{64} << 20;
  static constexpr int kMostAsks = 256;

  explicit PeerConnection(std::shared_ptr<const PeerSocket> socket) : socket_(std::move(socket)) {}

  // Whether rows may be pushed now. False: PeerServer::Hooks::drained follows, or nobody wants them any more.
  bool has_room();
  void push(PeerPart part);
  // running: whether the prompt is being computed still, for the account of what is sent before its end.
  void push(PeerRows rows, std::shared_ptr<const std::atomic<bool>> running);
  void push(PeerEnd end);
  std::atomic<int> asks{0};  // that are not ended
  bool idle_for(std::chrono::milliseconds time) const;

 private:
  friend class PeerServer;
  struct Item {
    PeerMessage message;
    int64_t bytes = 0;
    int32_t tokens = 0;
    std::shared_ptr<const std::atomic<bool>> running;
  };
  void push(Item item);
  std::optional<Item> pop(bool& drained);
  void close();
  void stir() { stirred_ = std::chrono::steady_clock::now().time_since_epoch().count(); }

  std::atomic<std::chrono::steady_clock::rep> stirred_{0};  // when it last asked, or was sent something
  const std::shared_ptr<const PeerSocket> socket_;
  Mutex mutex_;
  Condition changed_;
  std::deque<Item> queue_ KVILT_GUARDED_BY(mutex_);
  int64_t queued_ KVILT_GUARDED_BY(mutex_) = 0;
  bool refused_ KVILT_GUARDED_BY(mutex_) = false;  // somebody waits for room
  bool closed_ KVILT_GUARDED_BY(mutex_) = false;
};

// Of strangers at these places (PeerSocket::place), oldest first, the one that goes. REQUIRES: at least one.
size_t stranger_to_go(const std::vector<std::string>& places);

class PeerServer {
 public:
  static constexpr int kMostConnections = 32, kMostStrangers = 32;
  struct Options {
    PeerAddress address;
    HashSecret key;
    PeerHello hello;
    int64_t most_tokens = 0;                                      // of an ask
    std::chrono::milliseconds patience = PeerChannel::kPatience;  // of the handshake, then of hello
    std::chrono::milliseconds idle{60000};                        // then its place may be another's
  };
  struct Hooks {
    std::function<void(const std::shared_ptr<PeerConnection>&, PeerAsk)> ask;
    std::function<void(const std::shared_ptr<PeerConnection>&, uint64_t id)> cancel;
    std::function<void(const std::shared_ptr<PeerConnection>&)> drained, lost;
  };

  // Errors: PeerListener's, kExhausted.
  static Result<std::unique_ptr<PeerServer>> open(Options options, Hooks hooks);
  ~PeerServer() { stop(); }
  void stop();
  int port() const { return listener_.port(); }
  const PeerServerCounters& counters() const { return counters_; }

 private:
  struct Guest {
    enum class Is { kStranger, kPeer, kDropped };
    std::shared_ptr<PeerConnection> connection;
    std::string place;
    Is is = Is::kStranger;  // under mutex_
    std::atomic<bool> done{false};
    std::thread thread;
  };
  PeerServer(Options options, Hooks hooks, PeerListener listener)
      : options_(std::move(options)), hooks_(std::move(hooks)), listener_(std::move(listener)) {}
  void accept();
  void admit(PeerSocket socket);
  void make_room() KVILT_REQUIRES(mutex_);
  Status make_peer(Guest& guest);
  void serve(Guest& guest);
  Status greet(Guest& guest, PeerChannel& channel);
  Status receive(const std::shared_ptr<PeerConnection>& connection, PeerChannel& channel);
  void send(const std::shared_ptr<PeerConnection>& connection, PeerChannel& channel);

  const Options options_;
  const Hooks hooks_;
  const PeerListener listener_;
  PeerServerCounters counters_;
  std::atomic<bool> told_{false};
  Mutex mutex_;
  std::list<Guest> guests_ KVILT_GUARDED_BY(mutex_);
  std::thread thread_;  // that accepts
};

}  // namespace kvilt
