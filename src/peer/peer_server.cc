#include "peer/peer_server.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <new>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace kvilt {

bool PeerConnection::has_room() {
  MutexLock lock(mutex_);
  if (!closed_ && queued_ < kMostQueued) return true;
  refused_ = !closed_;
  return false;
}

void PeerConnection::push(PeerRows rows, std::shared_ptr<const std::atomic<bool>> running) {
  const int64_t bytes = std::ssize(rows.values);
  const int32_t tokens = rows.count;
  push(Item{std::move(rows), bytes, tokens, std::move(running)});
}

void PeerConnection::push(PeerEnd end) { push(Item{end, 0, 0, nullptr}); }

void PeerConnection::push(Item item) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    queued_ += item.bytes;
    queue_.push_back(std::move(item));
  }
  changed_.notify_one();
}

// The next to be sent; nothing when it is closed.
std::optional<PeerConnection::Item> PeerConnection::pop(bool& drained) {
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() KVILT_REQUIRES(mutex_) { return closed_ || !queue_.empty(); });
  if (closed_) return std::nullopt;
  Item out = std::move(queue_.front());
  queue_.pop_front();
  queued_ -= out.bytes;
  drained = refused_ && queued_ <= kMostQueued / 2;
  if (drained) refused_ = false;
  return out;
}

void PeerConnection::close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    queue_.clear();
    queued_ = 0;
  }
  socket_->shut_down();
  changed_.notify_all();
}

Result<std::unique_ptr<PeerServer>> PeerServer::open(Options options, Hooks hooks) {
  KVILT_ASSIGN(PeerListener listener, PeerListener::open(options.address));
  std::unique_ptr<PeerServer> out(new PeerServer(std::move(options), std::move(hooks), std::move(listener)));
  try {
    out->thread_ = std::thread([server = out.get()] { server->accept(); });
  } catch (const std::system_error& e) {
    return error(Code::kExhausted, "the system refused a thread ({})", e.what());
  }
  return out;
}

void PeerServer::stop() {
  if (!thread_.joinable()) return;
  listener_.shut_down();
  thread_.join();
  std::list<Guest> guests;
  {
    MutexLock lock(mutex_);
    guests.swap(guests_);
  }
  for (Guest& guest : guests) guest.connection->close();
  for (Guest& guest : guests) guest.thread.join();
}

void PeerServer::accept() {
  while (auto socket = listener_.accept()) admit(std::move(*socket));
}

// One too many is closed.
void PeerServer::admit(PeerSocket socket) {
  std::list<Guest> gone;
  MutexLock lock(mutex_);
  for (auto it = guests_.begin(); it != guests_.end();) {
    const auto next = std::next(it);
    if (it->done) gone.splice(gone.end(), guests_, it);
    it = next;
  }
  for (Guest& guest : gone) guest.thread.join();
  if (std::ssize(guests_) >= kMostConnections) return;
  try {
    Guest& guest = guests_.emplace_back();
    guest.connection = std::make_shared<PeerConnection>(std::make_shared<const PeerSocket>(std::move(socket)));
    guest.thread = std::thread([this, &guest] { serve(guest); });
  } catch (const std::exception&) {  // no memory, no thread
    if (!guests_.empty() && !guests_.back().thread.joinable()) guests_.pop_back();
    ++counters_.failures;
  }
}

void PeerServer::serve(Guest& guest) {
  const std::shared_ptr<PeerConnection> connection = guest.connection;
  auto channel = PeerChannel::open(connection->socket_, PeerChannel::Side::kAnswers, options_.key);
  Error why{Code::kExhausted, "no memory is left"};
  try {
    why = channel.ok() ? receive(connection, **channel).error() : channel.error();
  } catch (const std::bad_alloc&) {
  }
  connection->close();
  if (!channel.ok() || why.code != Code::kUnavailable) {  // else the other side just went
    ++counters_.failures;
    if (!told_.exchange(true)) spdlog::warn("a connection to --peer-listen is closed: {}", why.message);
  }
  guest.done = true;
}

// Until something fails: it always returns an error; kUnavailable where the other side just went.
Status PeerServer::receive(const std::shared_ptr<PeerConnection>& connection, PeerChannel& channel) {
  KVILT_ASSIGN(const std::vector<std::byte> first, channel.receive(most_bytes_of_ask(0)));
  KVILT_ASSIGN(const PeerMessage greeting, parse_message(first));
  const auto* hello = std::get_if<PeerHello>(&greeting);
  if (!hello) return error(Code::kCorrupt, "it does not say whose KV it wants");
  KVILT_TRY(channel.send(bytes_of_message(options_.hello)));
  if (*hello != options_.hello)
    return error(Code::kInvalidArgument, "it wants KV of another model, KV type, kernel or release");
  told_ = false;
  std::thread sender;
  try {
    sender = std::thread([&] { send(connection, channel); });
  } catch (const std::system_error&) {
    return error(Code::kExhausted, "the system refused a thread");
  }
  ++counters_.connections;
  const auto next = [&]() -> Status {
    KVILT_ASSIGN(const std::vector<std::byte> bytes, channel.receive(most_bytes_of_ask(options_.most_tokens)));
    KVILT_ASSIGN(PeerMessage message, parse_message(bytes));
    if (auto* ask = std::get_if<PeerAsk>(&message)) {
      ++counters_.asked;
      if (connection->asks >= PeerConnection::kMostAsks) {
        connection->push(PeerEnd{ask->id, PeerEnding::kRefused});
        return {};
      }
      ++connection->asks;
      hooks_.ask(connection, std::move(*ask));
      return {};
    }
    const auto* cancel = std::get_if<PeerCancel>(&message);
    if (!cancel) return error(Code::kCorrupt, "it sends what only this side says");
    hooks_.cancel(connection, cancel->id);
    return {};
  };
  Status went;
  try {
    while (went.ok()) went = next();
  } catch (const std::bad_alloc&) {
    went = error(Code::kExhausted, "no memory is left for what it asks");
  }
  connection->close();
  sender.join();
  --counters_.connections;
  for (bool said = false; !said;) {  // its asks go on for nobody until this is heard
    try {
      hooks_.lost(connection);
      said = true;
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
  return went;
}

void PeerServer::send(const std::shared_ptr<PeerConnection>& connection, PeerChannel& channel) {
  bool drained = false;
  while (const auto item = connection->pop(drained)) {
    Status sent;
    try {
      sent = channel.send(bytes_of_message(item->message));
      if (drained) hooks_.drained(connection);
    } catch (const std::bad_alloc&) {
      sent = error(Code::kExhausted, "no memory is left");
    }
    if (!sent.ok()) return connection->close();  // who receives ends the rest
    counters_.sent_tokens += static_cast<uint64_t>(item->tokens);
    counters_.sent_bytes += static_cast<uint64_t>(item->bytes);
    if (item->running && *item->running) counters_.early_tokens += static_cast<uint64_t>(item->tokens);
  }
}

}  // namespace kvilt
