#include "peer/peer_link.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace kvilt {
namespace {

using std::chrono::milliseconds;

// After a connection was lost; after one that will not be better soon.
constexpr milliseconds kShortRest{1000}, kLongRest{10000};

}  // namespace

Status PeerLink::start(Hooks hooks) {
  hooks_ = std::move(hooks);
  wake_ = OpenFile(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ends_ = OpenFile(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake_.fd() < 0 || ends_.fd() < 0) return system_error("a connection to the peer");
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& e) {
    return error(Code::kExhausted, "the system refused a thread ({})", e.what());
  }
  return {};
}

bool PeerLink::enqueue(PeerMessage message) {
  {
    MutexLock lock(mutex_);
    if (!ready_) return false;
    queue_.push_back(std::move(message));
  }
  const uint64_t one = 1;
  return ::write(wake_.fd(), &one, sizeof one) == sizeof one || errno == EAGAIN;
}

bool PeerLink::ask(PeerAsk ask) { return enqueue(std::move(ask)); }
void PeerLink::cancel(uint64_t id) { enqueue(PeerCancel{id}); }

void PeerLink::took(int64_t bytes) {
  {
    MutexLock lock(mutex_);
    ahead_ -= bytes;
  }
  changed_.notify_all();
}

void PeerLink::drop() {
  dropped_ = true;
  MutexLock lock(mutex_);
  if (socket_) socket_->shut_down();
}

void PeerLink::finish() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    stop_ = true;
    if (socket_) socket_->shut_down();
  }
  const uint64_t one = 1;
  while (::write(ends_.fd(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  changed_.notify_all();
  thread_.join();
}

void PeerLink::tell(const Error& why) {
  if (std::exchange(told_, true)) return;
  ++failures_;
  say(hooks_.changed);
  spdlog::warn("the prefill server {} is not asked: {}; prompts are computed here", options_.address.shown(),
               why.message);
}

void PeerLink::rest(Code why) {
  MutexLock lock(mutex_);
  changed_.wait_for(lock, why == Code::kInvalidArgument ? kLongRest : kShortRest,
                    [this]() KVILT_REQUIRES(mutex_) { return stop_; });
}

Result<std::unique_ptr<PeerChannel>> PeerLink::connect() try {
  KVILT_ASSIGN(PeerSocket made, PeerSocket::connect(options_.address, options_.to_connect, ends_.fd()));
  const auto socket = std::make_shared<const PeerSocket>(std::move(made));
  {
    MutexLock lock(mutex_);
    if (stop_) return error(Code::kUnavailable, "this server is shutting down");
    socket_ = socket;
  }
  KVILT_ASSIGN(auto channel, PeerChannel::open(socket, PeerChannel::Side::kAsks, options_.key));
  KVILT_TRY(channel->send(bytes_of_message(options_.hello)));
  KVILT_ASSIGN(const std::vector<std::byte> bytes, channel->receive(most_bytes_of_ask(0), PeerChannel::kPatience));
  KVILT_ASSIGN(const PeerMessage message, parse_message(bytes));
  const auto* hello = std::get_if<PeerHello>(&message);
  if (!hello) return error(Code::kCorrupt, "it does not say whose KV it has");
  if (*hello == options_.hello) return channel;
  return error(Code::kInvalidArgument,
               "its KV has other bits: both need the same model, --kv-type, --activations, kernels (--backend) and "
               "release");
} catch (const std::bad_alloc&) {
  return error(Code::kExhausted, "no memory is left for a connection");
}

// Where memory ends it is said again, until this ends.
void PeerLink::say(const std::function<void()>& hook) {
  for (;;) {
    try {
      return hook();
    } catch (const std::bad_alloc&) {
      rest(Code::kExhausted);
      MutexLock lock(mutex_);
      if (stop_) return;
    }
  }
}

void PeerLink::run() {
  for (;;) {
    Result<std::unique_ptr<PeerChannel>> made = connect();
    Code why = Code::kUnavailable;
    if (made.ok()) {
      {
        MutexLock lock(mutex_);
        if (stop_) return;
        ready_ = true;
      }
      dropped_ = false;
      say(hooks_.changed);
      if (std::exchange(told_, false)) spdlog::info("the prefill server {} is asked again", options_.address.shown());
      const Status ended = serve(**made);
      {
        MutexLock lock(mutex_);
        ready_ = false;
        queue_.clear();
        socket_.reset();
        if (stop_) return;
      }
      say(hooks_.lost);
      why = ended.error().code;
      tell(dropped_ ? error(Code::kCorrupt, "it sent other rows than were asked for") : ended.error());
      if (dropped_) why = Code::kInvalidArgument;
    } else {
      {
        MutexLock lock(mutex_);
        if (stop_) return;
      }
      why = made.error().code;
      tell(made.error());
    }
    rest(why);
    MutexLock lock(mutex_);
    if (stop_) return;
  }
}

// Until something fails: it always returns an error.
Status PeerLink::serve(PeerChannel& channel) {
  for (;;) {
    pollfd watched[2] = {{channel.fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
    if (::poll(watched, 2, -1) < 0 && errno != EINTR) return system_error("the connection");
    if ((watched[1].revents & POLLIN) != 0) KVILT_TRY(send_queued(channel));
    if (watched[0].revents != 0) KVILT_TRY(receive(channel));
  }
}

Status PeerLink::send_queued(PeerChannel& channel) try {
  uint64_t count = 0;
  if (::read(wake_.fd(), &count, sizeof count) < 0 && errno != EAGAIN) return system_error("the connection");
  for (;;) {
    std::optional<PeerMessage> next;
    {
      MutexLock lock(mutex_);
      if (queue_.empty()) return {};
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    KVILT_TRY(channel.send(bytes_of_message(*next)));
  }
} catch (const std::bad_alloc&) {
  return error(Code::kExhausted, "no memory is left for what is asked");
}

// REQUIRES: something has come.
Status PeerLink::receive(PeerChannel& channel) {
  try {
    KVILT_ASSIGN(const std::vector<std::byte> bytes, channel.receive(most_bytes_of_kv(options_.hello.token_bytes)));
    KVILT_ASSIGN(PeerMessage message, parse_message(bytes));
    if (auto* rows = std::get_if<PeerRows>(&message)) {
      if (kv_bytes(*rows) != int64_t{rows->count} * options_.hello.token_bytes)
        return error(Code::kCorrupt, "it sends rows of another size");
      hand_on(hooks_.rows, std::move(*rows));
    } else if (auto* part = std::get_if<PeerPart>(&message)) {
      hand_on(hooks_.part, std::move(*part));
    } else if (const auto* end = std::get_if<PeerEnd>(&message)) {
      hooks_.end(*end);
    } else {
      return error(Code::kCorrupt, "it sends what only this side says");
    }
  } catch (const std::bad_alloc&) {
    return error(Code::kExhausted, "no memory is left for what it sends");
  }
  return {};
}

template <class Kv>
void PeerLink::hand_on(const std::function<void(Kv)>& hook, Kv kv) {
  const int64_t bytes = kv_bytes(kv);
  wait_for_room(bytes);
  try {
    hook(std::move(kv));
  } catch (const std::bad_alloc&) {  // nobody took it
    took(bytes);
    throw;
  }
}

void PeerLink::wait_for_room(int64_t bytes) {
  MutexLock lock(mutex_);
  const auto fits = [&]() KVILT_REQUIRES(mutex_) { return stop_ || ahead_ == 0 || ahead_ + bytes <= kMostAhead; };
  while (!changed_.wait_for(lock, std::chrono::seconds(60), fits)) {
  }
  ahead_ += bytes;
}

}  // namespace kvilt
