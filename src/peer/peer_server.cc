#include "peer/peer_server.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <new>
#include <string_view>
#include <system_error>
#include <unordered_map>
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
  const int64_t bytes = kv_bytes(rows);
  const int32_t tokens = rows.count;
  push(Item{std::move(rows), bytes, tokens, std::move(running)});
}

void PeerConnection::push(PeerPart part) {
  const int64_t bytes = kv_bytes(part);
  push(Item{std::move(part), bytes, 0, nullptr});
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

bool PeerConnection::idle_for(std::chrono::milliseconds time) const {
  const std::chrono::steady_clock::time_point stirred{std::chrono::steady_clock::duration(stirred_)};
  return asks == 0 && std::chrono::steady_clock::now() - stirred >= time;
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

size_t stranger_to_go(const std::vector<std::string>& places) {
  std::unordered_map<std::string_view, int> count;
  for (const std::string& place : places) ++count[place];
  size_t out = 0;
  for (size_t i = 1; i < places.size(); ++i) {
    if (count[places[i]] > count[places[out]]) out = i;
  }
  return out;
}

// For one stranger more.
void PeerServer::make_room() {
  std::vector<Guest*> strangers;
  std::vector<std::string> places;
  for (Guest& guest : guests_) {
    if (guest.is != Guest::Is::kStranger || guest.done) continue;
    strangers.push_back(&guest);
    places.push_back(guest.place);
  }
  if (std::ssize(strangers) < kMostStrangers) return;
  Guest& goes = *strangers[stranger_to_go(places)];
  goes.is = Guest::Is::kDropped;
  goes.connection->close();
}

// Those that ended, or were told to, are joined without the lock, which they may want.
void PeerServer::admit(PeerSocket socket) {
  std::list<Guest> gone;
  try {
    MutexLock lock(mutex_);
    make_room();
    for (auto it = guests_.begin(); it != guests_.end();) {
      const auto next = std::next(it);
      if (it->done || it->is == Guest::Is::kDropped) gone.splice(gone.end(), guests_, it);
      it = next;
    }
    Guest& guest = guests_.emplace_back();
    guest.place = socket.place();
    guest.connection = std::make_shared<PeerConnection>(std::make_shared<const PeerSocket>(std::move(socket)));
    guest.thread = std::thread([this, &guest] { serve(guest); });
  } catch (const std::exception&) {  // no memory, no thread
    MutexLock lock(mutex_);
    if (!guests_.empty() && !guests_.back().thread.joinable()) guests_.pop_back();
    ++counters_.failures;
  }
  for (Guest& guest : gone) guest.thread.join();
}

// From a stranger to one of those who are answered, if there is a place.
Status PeerServer::make_peer(Guest& guest) {
  MutexLock lock(mutex_);
  if (guest.is != Guest::Is::kStranger) return error(Code::kUnavailable, "it was too slow");
  int peers = 0;
  Guest* idle = nullptr;
  for (Guest& other : guests_) {
    if (other.is != Guest::Is::kPeer || other.done) continue;
    ++peers;
    if (!idle && other.connection->idle_for(options_.idle)) idle = &other;
  }
  if (peers >= kMostConnections) {
    if (!idle) return error(Code::kExhausted, "{} decode servers are connected already", peers);
    idle->is = Guest::Is::kDropped;
    idle->connection->close();
  }
  guest.connection->stir();
  guest.is = Guest::Is::kPeer;
  return {};
}

void PeerServer::serve(Guest& guest) {
  const std::shared_ptr<PeerConnection> connection = guest.connection;
  Error why{Code::kExhausted, "no memory is left"};
  bool greeted = false;
  try {
    auto channel = PeerChannel::open(connection->socket_, PeerChannel::Side::kAnswers, options_.key, options_.patience);
    const Status hello = channel.ok() ? greet(guest, **channel) : Status(channel.error());
    greeted = hello.ok();
    why = greeted ? receive(connection, **channel).error() : hello.error();
  } catch (const std::bad_alloc&) {
  }
  connection->close();
  if (!greeted || why.code != Code::kUnavailable) {  // else the other side just went
    ++counters_.failures;
    if (!told_.exchange(true)) spdlog::warn("a connection to --peer-listen is closed: {}", why.message);
  }
  guest.done = true;
}

// It has shown the key: what it says, and whether there is a place for it.
Status PeerServer::greet(Guest& guest, PeerChannel& channel) {
  KVILT_ASSIGN(const std::vector<std::byte> first, channel.receive(most_bytes_of_ask(0), options_.patience));
  KVILT_ASSIGN(const PeerMessage greeting, parse_message(first));
  const auto* hello = std::get_if<PeerHello>(&greeting);
  if (!hello) return error(Code::kCorrupt, "it does not say whose KV it wants");
  if (*hello == options_.hello) KVILT_TRY(make_peer(guest));
  KVILT_TRY(channel.send(bytes_of_message(options_.hello)));
  if (*hello != options_.hello)
    return error(Code::kInvalidArgument, "it wants KV of another model, KV type, kernel or release");
  return {};
}

// Until something fails: it always returns an error; kUnavailable where the other side just went.
Status PeerServer::receive(const std::shared_ptr<PeerConnection>& connection, PeerChannel& channel) {
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
    connection->stir();
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
      connection->stir();
      if (drained) hooks_.drained(connection);
    } catch (const std::bad_alloc&) {
      sent = error(Code::kExhausted, "no memory is left");
    }
    if (!sent.ok()) return connection->close();  // who receives ends the rest
    counters_.sent_tokens += static_cast<uint64_t>(item->tokens);
    if (item->tokens > 0) counters_.sent_bytes += static_cast<uint64_t>(item->bytes);
    if (item->running && *item->running) counters_.early_tokens += static_cast<uint64_t>(item->tokens);
  }
}

}  // namespace kvilt
