// tier/redis_for_test.h: a real redis-server of a test's own, and a proxy before it that stalls, closes and lies.
// Invariants: the server listens on a unix socket in a folder of its own and ends with the test, also if that is killed.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tier/redis_connection.h"

namespace kvilt {

class RedisServerForTest {
 public:
  // Empty: neither is installed.
  static std::string program() {
    for (const char* folder : {"/usr/bin/", "/usr/local/bin/"}) {
      for (const char* name : {"redis-server", "valkey-server"}) {
        if (std::filesystem::exists(std::string(folder) + name)) return std::string(folder) + name;
      }
    }
    return {};
  }

  explicit RedisServerForTest(std::vector<std::string> more = {}) : more_(std::move(more)) {
    std::string name = "/tmp/kvilt_redis_XXXXXX";  // a socket's path is short
    folder_ = ::mkdtemp(name.data());
    start();
  }
  ~RedisServerForTest() {
    end();
    std::filesystem::remove_all(folder_);
  }
  void start() {
    std::vector<std::string> words{program(),      "--port", "0",     "--unixsocket", socket(),    "--save",        "",
                                   "--appendonly", "no",     "--dir", folder_,        "--logfile", folder_ + "/log"};
    words.insert(words.end(), more_.begin(), more_.end());
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::execv(pointers[0], pointers.data());
      ::_exit(127);
    }
    for (int i = 0; i < 3000 && !answers(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  void end() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
    std::filesystem::remove(socket());
  }
  void stop() { ::kill(process_, SIGSTOP); }  // it answers nobody
  void go_on() { ::kill(process_, SIGCONT); }

  std::string socket() const { return folder_ + "/redis"; }
  RedisAddress address() const {
    RedisAddress out;
    out.socket = socket();
    return out;
  }
  // An empty reply where that fails.
  RedisReply ask(const RedisCommand& command) const {
    const auto connection = RedisConnection::open(address(), std::chrono::seconds(30));
    if (!connection.ok()) return {};
    auto replies = (*connection)->ask({&command, 1}, std::chrono::seconds(30), int64_t{1} << 30);
    return replies.ok() ? std::move((*replies)[0]) : RedisReply();
  }
  std::vector<std::string> keys(const std::string& pattern = "*") const {
    std::vector<std::string> out;
    for (const RedisReply& key : ask({"KEYS", pattern}).array) out.push_back(key.text);
    return out;
  }

 private:
  bool answers() const {
    const RedisReply pong = ask({"PING"});
    return pong.text == "PONG" || pong.failed();  // it may want a password
  }
  const std::vector<std::string> more_;
  std::string folder_;
  pid_t process_ = -1;
};

class RedisProxyForTest {
 public:
  enum class Mode { kPass, kStall, kClose, kFlip, kGarbage, kTrickle, kClaimMuch, kSendMuch, kSay };

  explicit RedisProxyForTest(const RedisServerForTest& server) : to_(server.socket()), at_(to_ + ".proxy") {
    listener_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
    const sockaddr_un address = of(at_);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    thread_ = std::thread([this] { run(); });
  }
  ~RedisProxyForTest() {
    ends_ = true;
    thread_.join();
    ::close(listener_);
  }
  void set(Mode mode) { mode_ = mode; }
  void close_at(std::string words) { closes_at_ = std::move(words); }  // when a client sends these; before it asks
  void say(std::string words) {                                        // to whatever is asked, from now on
    words_ = std::move(words);
    mode_ = Mode::kSay;
  }
  RedisAddress address() const {
    RedisAddress out;
    out.socket = at_;
    return out;
  }

 private:
  struct Pair {
    int client, server;
  };
  static sockaddr_un of(const std::string& path) {
    sockaddr_un out{};
    out.sun_family = AF_UNIX;
    path.copy(out.sun_path, sizeof out.sun_path - 1);
    return out;
  }
  static bool send_all(int to, const char* data, size_t size) {
    while (size > 0) {
      const ssize_t n = ::send(to, data, size, MSG_NOSIGNAL);
      if (n <= 0) return false;
      data += n;
      size -= static_cast<size_t>(n);
    }
    return true;
  }
  void accept() {
    const int client = ::accept(listener_, nullptr, nullptr);
    const int server = ::socket(AF_UNIX, SOCK_STREAM, 0);
    const sockaddr_un address = of(to_);
    if (client >= 0 && ::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      timeval limit{1, 0};  // whoever does not read is left
      ::setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
      pairs_.push_back({client, server});
    } else {
      if (client >= 0) ::close(client);
      ::close(server);
    }
  }
  // What the server said, in the mode's way. False: the connection ends.
  bool answer(int client, std::string bytes) {
    switch (mode_.load()) {
      case Mode::kPass:
        break;
      case Mode::kStall:
        return true;
      case Mode::kClose:
        return false;
      case Mode::kFlip:
        if (bytes.size() > 600) bytes[bytes.size() / 2] ^= 4;
        break;
      case Mode::kGarbage:
        for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 37 + 11);
        break;
      case Mode::kTrickle:
        for (const char c : bytes) {
          if (mode_ != Mode::kTrickle || !send_all(client, &c, 1)) return false;
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return true;
      case Mode::kClaimMuch:
        bytes = "*2147483646\r\n$2000000000\r\n";
        break;
      case Mode::kSay:
        bytes = words_;
        break;
      case Mode::kSendMuch:
        bytes = "$2000000000\r\n" + std::string(size_t{8} << 20, 'x');
        break;
    }
    return send_all(client, bytes.data(), bytes.size());
  }
  void run() {
    std::vector<char> buffer(size_t{1} << 20);
    while (!ends_) {
      std::vector<pollfd> watched{{listener_, POLLIN, 0}};
      for (const Pair& pair : pairs_)
        watched.push_back({pair.client, POLLIN, 0}), watched.push_back({pair.server, POLLIN, 0});
      if (::poll(watched.data(), watched.size(), 20) <= 0) continue;
      for (size_t i = pairs_.size(); i-- > 0;) {
        const Pair pair = pairs_[i];
        bool good = true;
        if (watched[1 + 2 * i].revents != 0) {
          const ssize_t n = ::recv(pair.client, buffer.data(), buffer.size(), 0);
          const std::string_view asked(buffer.data(), static_cast<size_t>(std::max<ssize_t>(n, 0)));
          const bool closes = !closes_at_.empty() && asked.find(closes_at_) != asked.npos;
          good = n > 0 && !closes && send_all(pair.server, buffer.data(), static_cast<size_t>(n));
        }
        if (good && watched[2 + 2 * i].revents != 0) {
          const ssize_t n = ::recv(pair.server, buffer.data(), buffer.size(), 0);
          good = n > 0 && answer(pair.client, std::string(buffer.data(), static_cast<size_t>(n)));
        }
        if (good) continue;
        ::close(pair.client);
        ::close(pair.server);
        pairs_.erase(pairs_.begin() + static_cast<ptrdiff_t>(i));
      }
      if (watched[0].revents != 0) accept();
    }
    for (const Pair& pair : pairs_) ::close(pair.client), ::close(pair.server);
  }

  const std::string to_, at_;
  std::string closes_at_;
  int listener_ = -1;
  std::vector<Pair> pairs_;
  std::string words_;
  std::atomic<Mode> mode_{Mode::kPass};
  std::atomic<bool> ends_{false};
  std::thread thread_;  // last
};

}  // namespace kvilt
