// events/publisher.cc: see publisher.h.
#include "events/publisher.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <new>
#include <set>
#include <system_error>
#include <zmq.hpp>

#include "base/check.h"

namespace kvilt {
namespace {

constexpr std::string_view kConnect = "connect:";
constexpr int kMostWaiting = 1000;        // batches for a subscriber that does not read; more are lost to it
constexpr size_t kBatchEvents = 256;      // of one batch at most
constexpr int64_t kBatchIds = 1 << 13;    // about: what waits for all subscribers is some 64 MiB
constexpr int64_t kMostFrame = 4096;      // bytes of what others send: an identity, a number, a topic
constexpr size_t kMostReplays = 64;       // askers at once
constexpr int kReplayWaiting = 256;       // batches for one who asked and does not read; the rest waits in the ring
constexpr int kReplayPause = 1;           // milliseconds, before one whose connection is full is tried again
constexpr std::chrono::seconds kRest{1};  // after something failed, before everything is told again
constexpr std::chrono::milliseconds kLinger{200};  // for what is sent last
constexpr uint64_t kEnd = ~uint64_t{0};            // -1: the end of a replay

std::array<uint8_t, 8> big_endian(uint64_t number) {
  std::array<uint8_t, 8> out;
  for (int i = 0; i < 8; ++i) out[i] = static_cast<uint8_t>(number >> (56 - 8 * i));
  return out;
}

uint64_t from_big_endian(const zmq::message_t& frame) {
  uint64_t number = 0;
  for (size_t i = 0; i < frame.size(); ++i) number = number << 8 | static_cast<const uint8_t*>(frame.data())[i];
  return number;
}

// Keeps the bytes until ZeroMQ has sent them.
zmq::message_t message_of(const std::shared_ptr<const std::vector<uint8_t>>& bytes) {
  using Kept = std::shared_ptr<const std::vector<uint8_t>>;
  auto kept = std::make_unique<Kept>(bytes);
  zmq::message_t message(
      const_cast<uint8_t*>(bytes->data()), bytes->size(), [](void*, void* hint) { delete static_cast<Kept*>(hint); },
      kept.get());
  kept.release();
  return message;
}

int64_t ids_of(const KvEvent& event) { return std::ssize(event.tokens) + 2 * std::ssize(event.hashes) + 8; }

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

struct KvEventPublisher::Sockets {
  zmq::context_t context{1};
  zmq::socket_t pub{context, zmq::socket_type::pub};
  zmq::socket_t replay{context, zmq::socket_type::router};
  int wake = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  bool replays = false;
  ~Sockets() {
    if (wake >= 0) ::close(wake);
  }

  // [who, empty, name if any, number, payload]. False: the connection is full.
  bool answer(const std::string& who, std::optional<std::string_view> name, uint64_t number, zmq::message_t payload) {
    constexpr auto kMore = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
    const auto word = big_endian(number);
    zmq::message_t named(name.value_or("").data(), name.value_or("").size());  // before the first frame, as in send()
    if (!replay.send(zmq::buffer(who), kMore)) return false;
    replay.send(zmq::message_t(), kMore);
    if (name) replay.send(std::move(named), kMore);
    replay.send(zmq::buffer(word), kMore);
    replay.send(std::move(payload), zmq::send_flags::dontwait);
    return true;
  }
};

Result<std::unique_ptr<KvEventPublisher>> KvEventPublisher::open(PublisherOptions options) {
  std::unique_ptr<KvEventPublisher> made(new KvEventPublisher(std::move(options)));
  KVILT_TRY(made->bind());
  {
    MutexLock lock(made->mutex_);
    made->push_cleared();
  }
  made->wake();
  try {
    made->thread_ = std::thread([publisher = made.get()] { publisher->run(); });
  } catch (const std::system_error& e) {
    return error(Code::kExhausted, "KV events: the system refused a thread ({})", e.what());
  }
  return made;
}

KvEventPublisher::KvEventPublisher(PublisherOptions options) : options_(std::move(options)) {
  exact_.name = options_.topic;
  approximate_.name = options_.approximate_topic;
}

Status KvEventPublisher::bind() {
  std::string_view at = options_.endpoint;
  try {
    sockets_ = std::make_unique<Sockets>();
    if (sockets_->wake < 0) return error(Code::kExhausted, "KV events: the system refused a file descriptor");
    sockets_->pub.set(zmq::sockopt::sndhwm, kMostWaiting);
    sockets_->pub.set(zmq::sockopt::linger, static_cast<int>(kLinger.count()));
    sockets_->pub.set(zmq::sockopt::maxmsgsize, kMostFrame);
    sockets_->replay.set(zmq::sockopt::maxmsgsize, kMostFrame);
    sockets_->replay.set(zmq::sockopt::sndhwm, kReplayWaiting);
    sockets_->replay.set(zmq::sockopt::router_mandatory, true);  // so that a full connection is told
    sockets_->replay.set(zmq::sockopt::linger, static_cast<int>(kLinger.count()));
    if (at.starts_with(kConnect)) {
      sockets_->pub.connect(std::string(at.substr(kConnect.size())));
    } else {
      sockets_->pub.bind(std::string(at));
    }
    endpoint_ = sockets_->pub.get(zmq::sockopt::last_endpoint);
    if (options_.replay.empty()) return {};
    at = options_.replay;
    sockets_->replay.bind(std::string(at));
    sockets_->replays = true;
    replay_endpoint_ = sockets_->replay.get(zmq::sockopt::last_endpoint);
  } catch (const zmq::error_t& e) {
    return error(Code::kInvalidArgument,
                 "KV events: '{}' cannot be used ({}); ZeroMQ takes tcp://127.0.0.1:5557, tcp://*:5557 or ipc:///PATH, "
                 "and connect:tcp://HOST:PORT for a subscriber that listens",
                 at, e.what());
  }
  return {};
}

KvEventPublisher::~KvEventPublisher() { stop(); }

void KvEventPublisher::stop() {
  if (!thread_.joinable()) return;
  stop_ = true;
  wake();
  thread_.join();
  sockets_.reset();
}

void KvEventPublisher::on_retell(Retell retell) {
  MutexLock lock(mutex_);
  retell_ = std::move(retell);
}

PublisherCounters KvEventPublisher::counters() const { return {batches_, dropped_, restarts_}; }

// ---- The engine thread ----------------------------------------------------------------------------------------------

bool KvEventPublisher::wants(const ToldDomain& domain) const {
  return (domain.open || options_.tenants) && (domain.exact || !approximate_.name.empty());
}

void KvEventPublisher::wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(sockets_->wake, &one, sizeof one);  // full: it is awake
}

// make() gives the event. ids: about what it holds.
template <class Make>
void KvEventPublisher::push(const ToldDomain& domain, int64_t ids, Make&& make) noexcept {
  if (!wants(domain) || stop_) return;
  bool was_empty = false;
  {
    MutexLock lock(mutex_);
    was_empty = queue_.empty();
    // A part of a telling of everything is not refused: it would be asked for again.
    if (!lost_ && (asked_ || was_empty || queued_ids_ + ids <= options_.queue_ids)) {
      try {
        queue_.push_back({!domain.exact, make()});
        queued_ids_ += ids;
      } catch (const std::bad_alloc&) {
        lost_ = true;
      }
    } else {
      lost_ = true;
    }
    if (lost_) ++dropped_;
  }
  if (was_empty) wake();
}

void KvEventPublisher::blocks_stored(const ToldDomain& domain, const ToldBlocks& blocks) noexcept {
  const auto size = static_cast<int32_t>(blocks.keys.empty() ? 0 : blocks.tokens.size() / blocks.keys.size());
  push(domain, std::ssize(blocks.tokens) + 2 * std::ssize(blocks.keys) + 8, [&] {
    return KvEvent{.kind = KvEvent::Kind::kStored,
                   .hashes = {blocks.keys.begin(), blocks.keys.end()},
                   .parent = blocks.parent,
                   .tokens = {blocks.tokens.begin(), blocks.tokens.end()},
                   .block_size = size,
                   .domain = domain.open && domain.exact ? 0 : domain.digest};
  });
}

void KvEventPublisher::blocks_removed(const ToldDomain& domain, std::span<const uint64_t> keys) noexcept {
  push(domain, 2 * std::ssize(keys) + 8, [&] {
    return KvEvent{.kind = KvEvent::Kind::kRemoved, .hashes = {keys.begin(), keys.end()}};
  });
}

void KvEventPublisher::piece_stored(const ToldDomain& domain, SegmentId id, std::span<const int32_t> tokens) noexcept {
  push(domain, std::ssize(tokens) + 10, [&] {
    return KvEvent{.kind = KvEvent::Kind::kStored,
                   .hashes = {id},
                   .tokens = {tokens.begin(), tokens.end()},
                   .block_size = static_cast<int32_t>(tokens.size()),
                   .domain = domain.digest};
  });
}

void KvEventPublisher::piece_removed(const ToldDomain& domain, SegmentId id) noexcept {
  push(domain, 10, [&] { return KvEvent{.kind = KvEvent::Kind::kRemoved, .hashes = {id}}; });
}

void KvEventPublisher::push_cleared() {
  try {
    queue_.push_back({false, {}});
    if (!approximate_.name.empty()) queue_.push_back({true, {}});
  } catch (const std::bad_alloc&) {
    lost_ = true;
  }
}

// What waits is not there any more either; what was lost needs no other word.
void KvEventPublisher::cleared() noexcept {
  {
    MutexLock lock(mutex_);
    queue_.clear();
    queued_ids_ = 0;
    lost_ = false;
    push_cleared();
  }
  wake();
}

void KvEventPublisher::begin_again() noexcept {
  MutexLock lock(mutex_);
  if (!lost_) return;
  lost_ = false;
  push_cleared();
}

void KvEventPublisher::told_part(bool more) noexcept {
  {
    MutexLock lock(mutex_);
    asked_ = false;
    telling_ = more;
  }
  wake();
}

// ---- The publisher's thread -----------------------------------------------------------------------------------------

void KvEventPublisher::run() {
  for (bool last = false; !last;) {
    std::array<zmq_pollitem_t, 2> items{
        {{nullptr, sockets_->wake, ZMQ_POLLIN, 0}, {sockets_->replay.handle(), 0, ZMQ_POLLIN, 0}}};
    if (!stop_ && zmq_poll(items.data(), sockets_->replays ? 2 : 1, wait_ms()) < 0 && errno != EINTR) break;
    last = stop_;
    // One answer a round, and asked for before the queue is looked at: a replay holds all that was told before it.
    const bool asked = (items[1].revents & ZMQ_POLLIN) != 0;
    uint64_t times;
    [[maybe_unused]] const auto read = ::read(sockets_->wake, &times, sizeof times);
    std::vector<Queued> events;
    {
      MutexLock lock(mutex_);
      events.swap(queue_);
      queued_ids_ = 0;
    }
    try {
      send_all(std::move(events));
      if (asked) hear_asker();
      go_on_replaying();
      if (!last) go_on_telling();
    } catch (const std::exception& e) {  // no memory, or the library's: those who hear of a gap ask
      spdlog::error("KV events: {}", e.what());
      rest_until_ = std::chrono::steady_clock::now() + kRest;
      MutexLock lock(mutex_);
      lost_ = true;
    }
  }
}

// When the engine thread is to be asked for the next part of a telling; none: not before something happens.
std::optional<KvEventPublisher::Time> KvEventPublisher::tell_at() const {
  if (asked_ || !retell_) return std::nullopt;
  if (lost_ || telling_) return rest_until_;
  if (too_late_) return std::max(rest_until_, retold_ + options_.between_late);
  return std::nullopt;
}

// For zmq_poll; -1: until something happens.
int KvEventPublisher::wait_ms() const {
  std::optional<Time> at;
  {
    MutexLock lock(mutex_);
    at = tell_at();
  }
  using Milliseconds = std::chrono::milliseconds;
  const auto now = std::chrono::steady_clock::now();
  const int64_t most = replays_.empty() ? -1 : kReplayPause;
  if (!at) return static_cast<int>(most);
  const int64_t wait = std::max<int64_t>(0, std::chrono::ceil<Milliseconds>(*at - now).count());
  return static_cast<int>(std::min(most < 0 ? wait : most, wait));
}

void KvEventPublisher::send_all(std::vector<Queued> events) {
  std::vector<KvEvent> batch;
  for (size_t begin = 0; begin < events.size();) {
    const bool approximate = events[begin].approximate;
    int64_t ids = 0;
    batch.clear();
    for (; begin < events.size() && events[begin].approximate == approximate && batch.size() < kBatchEvents &&
           ids < kBatchIds;
         ++begin) {
      ids += ids_of(events[begin].event);
      batch.push_back(std::move(events[begin].event));
    }
    send(approximate ? approximate_ : exact_, batch);
  }
}

void KvEventPublisher::send(Topic& topic, std::span<const KvEvent> events) {
  auto payload = std::make_shared<const std::vector<uint8_t>>(encode_kv_events(options_.wire, now_s(), events));
  const uint64_t number = topic.next++;  // also where sending fails: a gap is seen
  const auto word = big_endian(number);
  // Made before the first frame leaves: a message that breaks off there would have the next one's frames joined to it.
  zmq::message_t message = message_of(payload);
  sockets_->pub.send(zmq::buffer(topic.name), zmq::send_flags::sndmore);
  sockets_->pub.send(zmq::buffer(word), zmq::send_flags::sndmore);
  sockets_->pub.send(std::move(message), zmq::send_flags::none);
  ++batches_;
  if (!sockets_->replays) return;
  topic.bytes += std::ssize(*payload);
  topic.ring.emplace_back(number, std::move(payload));
  while (topic.ring.size() > options_.ring_batches || (topic.bytes > options_.ring_bytes && topic.ring.size() > 1)) {
    topic.bytes -= std::ssize(*topic.ring.front().second);
    topic.ring.pop_front();
  }
}

// [who, empty, first number], and optionally the topic. What else comes is ignored: there is nobody to tell.
void KvEventPublisher::hear_asker() {
  std::vector<zmq::message_t> frames;
  do {
    frames.emplace_back();
    if (!sockets_->replay.recv(frames.back(), zmq::recv_flags::dontwait)) return;
    if (frames.size() > 5) frames.pop_back();
  } while (sockets_->replay.get(zmq::sockopt::rcvmore));
  if (frames.size() < 3 || frames.size() > 4 || frames[1].size() != 0 || frames[2].size() != 8) return;
  const bool other =
      frames.size() == 4 && !approximate_.name.empty() && frames[3].to_string_view() == approximate_.name;
  if (frames.size() == 4 && !other && frames[3].to_string_view() != exact_.name) return;
  if (replays_.size() == kMostReplays) replays_.pop_front();
  const uint64_t end = (other ? approximate_ : exact_).next;
  replays_.push_back({frames[0].to_string(), other, std::min(from_big_endian(frames[2]), end), end});
}

// In the order in which they were asked for; who does not read holds up only itself.
void KvEventPublisher::go_on_replaying() {
  std::set<std::string> full;
  for (auto at = replays_.begin(); at != replays_.end();) {
    bool done = false;
    try {
      done = !full.contains(at->who) && go_on(*at);
    } catch (const zmq::error_t&) {  // who asked is gone, maybe since it saw that it was too late
      done = true;
      too_late_ = too_late_ || at->missed;
    }
    if (!done) full.insert(at->who);
    at = done ? replays_.erase(at) : std::next(at);
  }
}

// True: its end was sent. False: the connection is full.
bool KvEventPublisher::go_on(Replay& replay) {
  const Topic& topic = replay.approximate ? approximate_ : exact_;
  // vLLM names the topic since 0.26, where its events are maps, and at the end nothing; before, there is no such frame.
  // Readers of either count frames.
  const auto answer = [&](std::string_view name, uint64_t number, zmq::message_t payload) {
    const auto named = options_.wire == KvEventWire::kMap ? std::optional(name) : std::nullopt;
    return sockets_->answer(replay.who, named, number, std::move(payload));
  };
  const uint64_t first = topic.ring.empty() ? topic.next : topic.ring.front().first;
  if (const uint64_t least = std::min(first, replay.end); replay.next < least) {
    replay.next = least;
    replay.missed = true;
  }
  const auto number_of = [](const auto& batch) { return batch.first; };
  for (auto at = std::ranges::lower_bound(topic.ring, replay.next, {}, number_of);
       at != topic.ring.end() && at->first < replay.end; ++at) {
    if (!answer(topic.name, at->first, message_of(at->second))) return false;
    replay.next = at->first + 1;
  }
  if (!answer({}, kEnd, zmq::message_t())) return false;
  too_late_ = too_late_ || replay.missed;  // once, and for those only who read or leave
  return true;
}

// Everything is told again where events were lost, or somebody came too late; the next part when this one is sent.
void KvEventPublisher::go_on_telling() {
  bool start = false;
  Retell retell;
  {
    MutexLock lock(mutex_);
    const auto at = tell_at();
    if (!at || std::chrono::steady_clock::now() < *at) return;
    start = lost_ || !telling_;
    asked_ = true;
    retell = retell_;
  }
  if (start) {
    too_late_ = false;
    retold_ = std::chrono::steady_clock::now();
    ++restarts_;
  }
  try {
    retell(start);
  } catch (const std::exception&) {  // the engine thread was not asked
    MutexLock lock(mutex_);
    asked_ = false;
    throw;
  }
}

}  // namespace kvilt
