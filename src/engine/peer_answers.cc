#include "engine/peer_answers.h"

#include <algorithm>
#include <utility>

#include "base/hex.h"
#include "base/reserved_tenants.h"
#include "kv/kv_rows.h"
#include "kvilt/session.h"

namespace kvilt {

// Its tokens are none's; its end is heard on the engine thread.
class PeerAnswers::Sink : public TokenSink {
 public:
  Sink(std::shared_ptr<PeerAnswers> answers, std::shared_ptr<Answer> answer)
      : answers_(std::move(answers)), answer_(std::move(answer)) {}
  void on_tokens(const TokenDelta&) override {}
  void on_finish(Completion completion) override {
    answer_->session = std::move(completion.session);
    *answer_->running = false;
    answers_->post([answers = answers_.get(), answer = answer_] { answers->ended(answer); });
  }

 private:
  const std::shared_ptr<PeerAnswers> answers_;
  const std::shared_ptr<Answer> answer_;
};

Status PeerAnswers::start(PeerServer::Options options) {
  PeerServer::Hooks hooks;
  hooks.ask = [this](const auto& connection, PeerAsk ask) { take(connection, std::move(ask)); };
  hooks.cancel = [this](const auto& connection, uint64_t id) {
    post([this, connection, id] { drop(connection, id); });
  };
  hooks.drained = [this](const auto& connection) { post([this, connection] { go_on(connection); }); };
  hooks.lost = [this](const auto& connection) { post([this, connection] { drop(connection, 0); }); };
  KVILT_ASSIGN(server_, PeerServer::open(std::move(options), std::move(hooks)));
  return {};
}

void PeerAnswers::stop() {
  if (server_) server_->stop();
}

void PeerAnswers::count(PeerCounters& out) const {
  const PeerServerCounters& now = server_->counters();
  out.port = server_->port();
  out.connections = now.connections;
  out.answered = now.asked;
  out.sent_tokens = now.sent_tokens + sent_session_tokens_;
  out.sent_bytes = now.sent_bytes;
  out.sent_global_bytes = sent_global_bytes_;
  out.sent_local_bytes = sent_local_bytes_;
  out.early_tokens = now.early_tokens;
  out.failures += now.failures;
}

// Keeps itself until the task has run: the loop may outlive its owner by some tasks.
void PeerAnswers::post(std::function<void()> task) {
  loop_.post([self = shared_from_this(), task = std::move(task)] { task(); });
}

// A thread of the server.
void PeerAnswers::take(const std::shared_ptr<PeerConnection>& connection, PeerAsk ask) {
  auto answer = std::make_shared<Answer>();
  answer->connection = connection;
  answer->sent = ask.from;
  answer->ask = std::move(ask);
  Request request;
  request.prompt.ids = answer->ask.tokens;
  request.sampling.max_tokens = 0;
  request.policy.name = "prefix";
  request.tenant = kPeerTenant;
  request.cache_salt = hex_text(answer->ask.domain);
  request.draft = 0;
  if (const std::vector<std::string>& method = answer->ask.method; !method.empty()) {
    request.policy.name = method[0];
    for (size_t i = 1; i + 1 < method.size(); i += 2) request.policy.params[method[i]] = method[i + 1];
    request.sampling.max_tokens = 1;  // a session is of a prompt that has an answer
    request.export_session = true;
    request.cache_salt += "/session";  // from the first token on: nothing is found
  }
  auto id = admit_(std::move(request), std::make_shared<Sink>(shared_from_this(), answer));
  if (!id.ok()) {
    --connection->asks;
    return connection->push(PeerEnd{answer->ask.id, PeerEnding::kRefused});
  }
  post([this, answer, id = *id] {
    answer->request = id;
    begin(answer);
  });
}

// What is cached goes at once. It may be that all is computed already: ended() was posted, and comes next.
void PeerAnswers::begin(const std::shared_ptr<Answer>& answer) {
  answers_.push_back(answer);
  if (*answer->running) {
    loop_.watch(answer->request, [self = shared_from_this(), answer] { self->grew(*answer); });
    grew(*answer);
    return;
  }
  finish_whole(answer);
}

// True: all that is cached of it was queued.
bool PeerAnswers::grew(Answer& answer) {
  Sent last = Sent::kOne;
  while (last == Sent::kOne) last = send_next(answer);
  return last == Sent::kNothing;
}

// The next chunk of what is cached of it.
PeerAnswers::Sent PeerAnswers::send_next(Answer& answer) {
  if (!answer.ask.method.empty()) return *answer.running ? Sent::kNothing : send_part(answer);
  ContentCache& cache = *loop_.parts().cache;
  const std::span<const int32_t> tokens = answer.ask.tokens;
  const auto T = static_cast<int32_t>(tokens.size());
  if (answer.sent >= T) return Sent::kNothing;
  const std::string salt = hex_text(answer.ask.domain);
  const DomainId domain = cache.domains({std::string(kPeerTenant), "", salt}).exact;
  const std::vector<Piece> chain = cache.index().find_prefix(tokens, domain, T, answer.reach);
  answer.reach = end_of(chain);
  const auto piece = std::ranges::find_if(chain, [&](const Piece& p) { return p.pos + p.count > answer.sent; });
  if (piece == chain.end()) return Sent::kNothing;
  const int32_t skip = answer.sent - piece->pos;
  std::vector<SegmentPart> parts =
      cache.segments().find(piece->segment)->within(piece->segment_offset + skip, piece->count - skip);
  if (parts.empty() || !parts[0].kv->whole()) return Sent::kNothing;
  const SegmentPart& part = parts[0];
  const int32_t count = std::min(part.count, PeerRows::kMostTokens);
  // A chunk that grows still is sent when it is whole.
  if (*answer.running && count < PeerRows::kMostTokens && answer.sent + count == chain.back().pos + chain.back().count)
    return Sent::kNothing;
  if (!answer.connection->has_room()) return Sent::kNoRoom;
  const int64_t bytes = count * cache.store().shape().token_bytes();
  PeerRows rows{answer.ask.id, answer.sent, count, std::vector<std::byte>(static_cast<size_t>(bytes))};
  const int32_t at = part.kv->pos() + part.offset;
  copy_rows_out(cache.store(), *part.kv, {at, at + count}, rows.values);
  answer.sent += count;
  answer.connection->push(std::move(rows), answer.running);
  return Sent::kOne;
}

PeerAnswers::Sent PeerAnswers::send_part(Answer& answer) {
  if (!answer.session || answer.session_sent == answer.session->bytes.size()) return Sent::kNothing;
  if (!answer.connection->has_room()) return Sent::kNoRoom;
  const auto left = std::span(answer.session->bytes).subspan(answer.session_sent);
  const auto part = left.first(std::min(left.size(), PeerPart::kMostBytes));
  answer.connection->push(PeerPart{answer.ask.id,
                                   static_cast<int64_t>(answer.session_sent),
                                   std::ssize(answer.session->bytes),
                                   {part.begin(), part.end()}});
  answer.session_sent += part.size();
  if (part.size() == left.size()) {
    answer.sent = static_cast<int32_t>(answer.ask.tokens.size());
    count_session(*answer.session);
  }
  return Sent::kOne;
}

void PeerAnswers::count_session(const ExportedSession& session) {
  const SessionInfo info = session_info(session).value();
  const int64_t global = session.dense / info.heads * (info.heads - info.local_heads);
  sent_session_tokens_ += static_cast<uint64_t>(info.positions);
  sent_global_bytes_ += static_cast<uint64_t>(global);
  sent_local_bytes_ += static_cast<uint64_t>(session.kv - global);
}

void PeerAnswers::ended(const std::shared_ptr<Answer>& answer) {
  if (std::ranges::find(answers_, answer) != answers_.end()) finish_whole(answer);  // else begin() comes, or it is gone
}

// Sessions wait for a slow reader beside the pool, and not without bound: the asker computes what is not held.
void PeerAnswers::hold(Answer& answer) {
  constexpr int64_t kMostHeld = int64_t{512} << 20;
  if (!answer.session || answer.held > 0) return;
  const int64_t bytes = std::ssize(answer.session->bytes);
  if (held_ > 0 && held_ + bytes > kMostHeld) {
    answer.session = nullptr;
    return;
  }
  held_ += answer.held = bytes;
}

// Its request ended: all that will ever come of it is cached.
void PeerAnswers::finish_whole(const std::shared_ptr<Answer>& answer) {
  hold(*answer);
  if (!grew(*answer)) return;  // go_on() comes here again
  remove(answer, answer->sent < std::ssize(answer->ask.tokens) ? PeerEnding::kPart : PeerEnding::kWhole);
}

void PeerAnswers::remove(const std::shared_ptr<Answer>& answer, PeerEnding how) {
  answer->connection->push(PeerEnd{answer->ask.id, how});
  --answer->connection->asks;
  held_ -= answer->held;
  loop_.unwatch(answer->request);
  std::erase(answers_, answer);
}

void PeerAnswers::go_on(const std::shared_ptr<PeerConnection>& connection) {
  const std::vector<std::shared_ptr<Answer>> all(answers_.begin(), answers_.end());
  for (const auto& answer : all) {
    if (answer->connection != connection) continue;
    if (*answer->running) {
      grew(*answer);
    } else {
      finish_whole(answer);
    }
  }
}

// Nobody waits for it, or (only 0) for any of the connection.
void PeerAnswers::drop(const std::shared_ptr<PeerConnection>& connection, uint64_t only) {
  const std::vector<std::shared_ptr<Answer>> all(answers_.begin(), answers_.end());
  for (const auto& answer : all) {
    if (answer->connection != connection || (only != 0 && answer->ask.id != only)) continue;
    remove(answer, PeerEnding::kPart);
    loop_.cancel(answer->request);
  }
}

}  // namespace kvilt
