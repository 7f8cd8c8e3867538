// engine/peer_answers.h: prompts that another server asks for: computed as any request, sent while they are computed.
// Role:       of a server with --role prefill. An ask becomes a request with policy `prefix` and no answer, in a namespace
//             of its own that follows from the ask's domain, with all that is cached there. Of the exact chain that it has
//             found or published, what was not sent yet is copied out and queued, chunk by chunk. An ask with a method is
//             computed by that policy, and what is sent is the session that it leaves, when it has ended: windows of local
//             heads are known at the end only.
// Invariants: nothing of one domain is found by an ask of another one, nor by this server's own clients. The engine thread
//             copies only into a queue that has room; else it goes on when the connection says so. What left the cache
//             before it was sent is not sent: the asker computes it.
// Threads:    those of PeerServer submit and post; answers are the engine thread's.
// Not here:   connections (peer/peer_server.h), who asks (engine/peer_cache.h).
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <utility>

#include "engine/engine_loop.h"
#include "kvilt/engine.h"
#include "peer/peer_server.h"

namespace kvilt {

class PeerAnswers : public std::enable_shared_from_this<PeerAnswers> {
 public:
  // What Engine::submit does, for the engine's own tenant too.
  using Admit = std::function<Result<RequestId>(Request, std::shared_ptr<TokenSink>)>;
  // admit and loop: until stop().
  PeerAnswers(Admit admit, EngineLoop& loop) : admit_(std::move(admit)), loop_(loop) {}
  Status start(PeerServer::Options options);
  // Nobody is answered any more. Returns when no thread of it runs.
  void stop();
  void count(PeerCounters& out) const;  // any thread

 private:
  struct Answer {
    std::shared_ptr<PeerConnection> connection;
    PeerAsk ask;
    RequestId request = 0;
    int32_t sent = 0;                                // positions before it are, or need not be
    ChainEnd reach;                                  // of its tokens, as much as was cached when it was looked last
    std::shared_ptr<const ExportedSession> session;  // of an ask with a method, once its request has ended
    size_t session_sent = 0;                         // bytes of it
    int64_t held = 0;                                // of what held_ counts, this one's
    const std::shared_ptr<std::atomic<bool>> running = std::make_shared<std::atomic<bool>>(true);
  };
  class Sink;
  void take(const std::shared_ptr<PeerConnection>& connection, PeerAsk ask);
  void begin(const std::shared_ptr<Answer>& answer);
  enum class Sent : uint8_t { kOne, kNothing, kNoRoom };  // kNoRoom: PeerServer::Hooks::drained follows
  bool grew(Answer& answer);
  Sent send_next(Answer& answer);
  Sent send_part(Answer& answer);
  void count_session(const ExportedSession& session);
  void hold(Answer& answer);
  void ended(const std::shared_ptr<Answer>& answer);
  void go_on(const std::shared_ptr<PeerConnection>& connection);
  void drop(const std::shared_ptr<PeerConnection>& connection, uint64_t only);
  void finish_whole(const std::shared_ptr<Answer>& answer);
  void remove(const std::shared_ptr<Answer>& answer, PeerEnding how);
  void post(std::function<void()> task);

  const Admit admit_;
  EngineLoop& loop_;
  std::list<std::shared_ptr<Answer>> answers_;  // the engine thread's
  int64_t held_ = 0;                            // bytes of sessions that are not all sent; the engine thread's
  std::atomic<uint64_t> sent_session_tokens_{0}, sent_global_bytes_{0}, sent_local_bytes_{0};
  std::unique_ptr<PeerServer> server_;
};

}  // namespace kvilt
