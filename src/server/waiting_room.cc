#include "server/waiting_room.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>

namespace kvilt::server {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 500ms;  // an idle connection looks every 100 ms whether it shall give way
constexpr auto kLinger = 1s;       // for a refused client to read its answer
constexpr auto kNoMemoryPause = 100ms;

void close_socket(int sock) {
  ::shutdown(sock, SHUT_RDWR);
  ::close(sock);
}

// Reads and drops what has come. False: the client closed its side.
bool drop_input(int sock) {
  char block[8192];
  for (int i = 0; i < 8; ++i) {  // others wait too
    const ssize_t got = ::recv(sock, block, sizeof block, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    if (got == 0) return false;
  }
  return true;
}

}  // namespace

bool is_probe(std::string_view bytes) {
  if (bytes.find("\r\n\r\n") == std::string_view::npos) return false;
  for (const std::string_view method : {"GET ", "HEAD "}) {
    if (!bytes.starts_with(method)) continue;
    const std::string_view target = bytes.substr(method.size());
    return target.starts_with("/health ") || target.starts_with("/metrics ");
  }
  return false;
}

WaitingRoom::WaitingRoom(Options options) : options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC)) {
  if (wake_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  thread_ = std::thread([this] { run(); });
}

WaitingRoom::~WaitingRoom() {
  leave();
  ::close(wake_);
}

void WaitingRoom::enter(int sock) {
  {
    MutexLock lock(mutex_);
    entered_.push_back(sock);
  }
  look_again();
}

void WaitingRoom::look_again() { ::eventfd_write(wake_, 1); }

bool WaitingRoom::gives_way() {
  int wanted = wanted_;
  while (wanted > 0) {
    if (wanted_.compare_exchange_weak(wanted, wanted - 1)) return true;
  }
  return false;
}

void WaitingRoom::leave() {
  leaving_ = true;
  look_again();
  if (thread_.joinable()) thread_.join();
}

void WaitingRoom::run() {
  std::vector<Guest> guests;  // in the order in which they came
  for (;;) {
    const bool leaving = leaving_;  // read first: who entered before leave() is seen below
    try {
      take_entered(guests);
      if (leaving && guests.empty()) return;
      poll_all(guests);
    } catch (const std::bad_alloc&) {  // of lists that are made before anybody is looked at
      std::this_thread::sleep_for(kNoMemoryPause);
    }
    while (guests.size() > options_.places) {
      if (guests.front().state != State::kRefused) options_.refuse(guests.front().sock);
      close_socket(guests.front().sock);
      guests.erase(guests.begin());
    }
  }
}

void WaitingRoom::take_entered(std::vector<Guest>& guests) {
  MutexLock lock(mutex_);
  const auto until =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.silent_s));
  guests.reserve(guests.size() + entered_.size());  // from here on nothing throws: nobody is taken twice
  for (const int sock : entered_) guests.push_back({sock, State::kSilent, until});
  entered_.clear();
}

// Waits until there is something to do, and does it for every guest in turn.
void WaitingRoom::poll_all(std::vector<Guest>& guests) {
  std::vector<pollfd> polled{{wake_, POLLIN, 0}};
  const auto now = Clock::now();
  auto next = guests.size() > options_.places ? now : now + 1h;
  for (const Guest& guest : guests) {
    // Who waits for a thread has its bytes in the socket: poll() would return for ever.
    polled.push_back({guest.sock, static_cast<short>(guest.state == State::kWaiting ? 0 : POLLIN), 0});
    next = std::min(next, leaving_ && guest.state != State::kRefused ? now : guest.until);
  }
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - now).count();
  ::poll(polled.data(), polled.size(), left <= 0 ? 0 : static_cast<int>(left) + 1);
  if (polled[0].revents) {
    eventfd_t ignored = 0;
    ::eventfd_read(wake_, &ignored);
  }
  int waiting = 0;
  size_t kept = 0;
  for (size_t i = 0; i < guests.size(); ++i) {
    Guest guest = guests[i];
    const Fate fate = visit(guest, polled[i + 1].revents != 0, waiting);
    if (fate == Fate::kCloses) close_socket(guest.sock);
    if (fate != Fate::kStays) continue;
    waiting += guest.state == State::kWaiting;
    guests[kept++] = guest;
  }
  guests.resize(kept);
  wanted_ = waiting;
}

// waiting: how many guests before this one wait for a thread.
WaitingRoom::Fate WaitingRoom::visit(Guest& guest, bool ready, int waiting) {
  const bool late = Clock::now() >= guest.until;
  switch (guest.state) {
    case State::kSilent:
      if (ready) return hear(guest, waiting);
      return leaving_ || late ? Fate::kCloses : Fate::kStays;
    case State::kWaiting:
      if (ready) return Fate::kCloses;  // only errors are reported for it: the client is gone
      if (!leaving_ && options_.admit(guest.sock)) return Fate::kAdmitted;
      if (leaving_ || late || waiting >= options_.idle()) refuse(guest);
      return Fate::kStays;
    case State::kRefused:
      return late || (ready && !drop_input(guest.sock)) ? Fate::kCloses : Fate::kStays;
  }
  return Fate::kCloses;
}

// The first bytes of a connection, or its end. The bytes stay in the socket for who reads the request.
WaitingRoom::Fate WaitingRoom::hear(Guest& guest, int waiting) {
  char head[4096];
  const ssize_t got = ::recv(guest.sock, head, sizeof head, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return Fate::kStays;
  if (got <= 0) return Fate::kCloses;
  if (!leaving_ && options_.admit(guest.sock)) return Fate::kAdmitted;
  if (!leaving_ && is_probe({head, static_cast<size_t>(got)})) {
    options_.answer_probe(guest.sock);
    see_off(guest);
  } else if (!leaving_ && waiting < options_.idle()) {
    guest.state = State::kWaiting;
    guest.until = Clock::now() + kPatience;
  } else {
    refuse(guest);
  }
  return Fate::kStays;
}

void WaitingRoom::refuse(Guest& guest) {
  options_.refuse(guest.sock);
  see_off(guest);
}

// After its answer: nothing more is sent, and what comes is dropped, what is there at once.
void WaitingRoom::see_off(Guest& guest) {
  ::shutdown(guest.sock, SHUT_WR);
  drop_input(guest.sock);
  guest.state = State::kRefused;
  guest.until = Clock::now() + kLinger;
}

}  // namespace kvilt::server
