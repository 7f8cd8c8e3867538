// server/waiting_room.h: connections that have no thread: new ones until they say something, and refused ones.
// Role:       one thread polls them all. A new connection gets a thread of the pool with its first byte; when all are
//             taken, an idle kept-alive one is asked to give way; when there is none, the client gets its 503.
// Idea:       a client that says nothing takes no thread, and nobody waits behind a refused one: so neither keeps
//             others out. A whole GET /health or GET /metrics is answered here, so a full server is not taken for dead.
// Invariants: at most `places` sockets; the one that came first leaves for a new one. After the answer, what the client
//             still sends is dropped for up to a second: a close with unread bytes would reset the connection and take
//             the answer with it.
// Threads:    enter(), look_again(), gives_way() and leave() from any thread; the options' functions run on its own, and
//             throw nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "server/connection.h"

namespace kvilt::server {

class WaitingRoom {
 public:
  struct Options {
    size_t places = 256;
    double silent_s = 30;                   // from the connection to the first byte
    std::function<bool(int)> admit;         // a thread takes the socket; false: all are taken
    std::function<int()> idle;              // connections that would give way
    std::function<void(int)> answer_probe;  // reads and answers one request; the socket stays open
    std::function<void(int)> refuse;        // sends the 503 without waiting; the socket stays open
  };
  explicit WaitingRoom(Options options);
  ~WaitingRoom();

  // Takes the socket, and closes it in the end unless it is admitted.
  void enter(int sock);
  // A thread is free.
  void look_again();
  // True: a client waits for the place of an idle connection, and the caller's is the one.
  bool gives_way();
  // Closes silent connections, refuses the others, and returns when none is left. Idempotent.
  void leave();

 private:
  enum class State { kSilent, kWaiting, kRefused };
  enum class Fate { kStays, kAdmitted, kCloses };
  struct Guest {
    int sock;
    State state = State::kSilent;
    Clock::time_point until;
  };

  void run();
  void take_entered(std::vector<Guest>& guests);
  void poll_all(std::vector<Guest>& guests);
  Fate visit(Guest& guest, bool ready, int waiting);
  Fate hear(Guest& guest, int waiting);
  void refuse(Guest& guest);
  void see_off(Guest& guest);

  const Options options_;
  const int wake_;  // an eventfd
  std::atomic<int> wanted_{0};
  std::atomic<bool> leaving_{false};
  Mutex mutex_;
  std::vector<int> entered_ KVILT_GUARDED_BY(mutex_);
  std::thread thread_;
};

// Whether bytes that begin a connection are a whole head of GET or HEAD /health or /metrics. Pure.
bool is_probe(std::string_view bytes);

}  // namespace kvilt::server
