// Power: each that is refused or waits stands next to one that is not.
#include "grammar/compile_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace kvilt {
namespace {

CompileQueue::Outcome outcome_named(const char* name) { return error(Code::kInvalidArgument, "{}", name); }

template <class Condition>
void wait_until(Condition is) {
  while (!is()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// One that runs until it is let go.
class HeldJob {
 public:
  HeldJob(CompileQueue& queue, std::string name)
      : thread_([this, &queue, name] {
          outcome = queue.run(name, [&] {
            began = true;
            wait_until([&] { return ends.load(); });
            return outcome_named(name.c_str());
          });
        }) {}
  ~HeldJob() {
    ends = true;
    if (thread_.joinable()) thread_.join();
  }
  std::string said() {
    ends = true;
    if (thread_.joinable()) thread_.join();
    return outcome->error().message;
  }

  std::atomic<bool> began{false}, ends{false};
  std::optional<CompileQueue::Outcome> outcome;

 private:
  std::thread thread_;
};

std::string said_at_once(CompileQueue& queue, const char* name) {
  const auto outcome = queue.run(name, [&] { return outcome_named(name); });
  return outcome.error().message;
}

TEST(CompileQueue, ABoundedNumberWaits) {
  CompileQueue queue(2, 1, 1e6);
  HeldJob a(queue, "a"), b(queue, "b");
  wait_until([&] { return a.began && b.began; });
  HeldJob c(queue, "c");
  wait_until([&] { return queue.waiting() == 1; });
  const auto refused = queue.run("d", [] { return outcome_named("d"); });
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  EXPECT_EQ(refused.error().message, "1 constraints wait to be compiled already; try again");
  EXPECT_FALSE(c.began);
  EXPECT_EQ(a.said(), "a");
  wait_until([&] { return c.began.load(); });
  EXPECT_EQ(queue.waiting(), 0u);
  EXPECT_EQ(b.said(), "b");
  EXPECT_EQ(c.said(), "c");
  EXPECT_EQ(said_at_once(queue, "d"), "d") << "power";
}

// Many clients that send one schema are no crowd.
TEST(CompileQueue, TheSameIsDoneOnceAndTakesNoPlace) {
  CompileQueue queue(1, 0, 1e6);
  HeldJob a(queue, "a");
  wait_until([&] { return a.began.load(); });
  std::atomic<int> works{0}, same{0};
  std::vector<std::thread> others;
  for (int i = 0; i < 8; ++i) {
    others.emplace_back([&] {
      const auto outcome = queue.run("a", [&] {
        ++works;
        return outcome_named("anew");
      });
      same += outcome.error().code == Code::kInvalidArgument;
    });
  }
  EXPECT_EQ(queue.run("b", [] { return outcome_named("b"); }).error().code, Code::kExhausted) << "power";
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // most of them have asked by then; all hold either way
  EXPECT_EQ(a.said(), "a");
  for (std::thread& other : others) other.join();
  EXPECT_EQ(same, 8);
  EXPECT_LE(works, 8);
  EXPECT_EQ(said_at_once(queue, "b"), "b");
}

TEST(CompileQueue, WaitsInOrderAndNotForEver) {
  CompileQueue queue(1, 8, 1e6);
  HeldJob a(queue, "a");
  wait_until([&] { return a.began.load(); });
  HeldJob b(queue, "b");
  wait_until([&] { return queue.waiting() == 1; });
  HeldJob c(queue, "c");
  wait_until([&] { return queue.waiting() == 2; });
  EXPECT_EQ(a.said(), "a");
  wait_until([&] { return b.began.load(); });
  EXPECT_FALSE(c.began);
  EXPECT_EQ(b.said(), "b");
  EXPECT_EQ(c.said(), "c");

  CompileQueue hurried(1, 8, 0);
  EXPECT_EQ(said_at_once(hurried, "x"), "x");
  HeldJob d(hurried, "d");
  wait_until([&] { return d.began.load(); });
  for (const char* name : {"d", "e"})
    EXPECT_EQ(said_at_once(hurried, name), "too many constraints are compiled at once; try again");
  EXPECT_EQ(hurried.waiting(), 0u);
  EXPECT_EQ(d.said(), "d");
  EXPECT_EQ(said_at_once(hurried, "e"), "e");
}

// Two that end together make room for two.
TEST(CompileQueue, EveryTurnThatIsFreeIsTaken) {
  for (int i = 0; i < 50; ++i) {
    CompileQueue queue(2, 2, 1e6);
    HeldJob a(queue, "a"), b(queue, "b");
    wait_until([&] { return a.began && b.began; });
    HeldJob c(queue, "c"), d(queue, "d");
    wait_until([&] { return queue.waiting() == 2; });
    a.ends = b.ends = true;
    wait_until([&] { return c.began && d.began; });
  }
}

TEST(CompileQueue, OutlivesWhatIsThrown) {
  CompileQueue queue(1, 0, 1e6);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW((void)queue.run("a", []() -> CompileQueue::Outcome { throw std::runtime_error("x"); }),
                 std::runtime_error);
  }
  EXPECT_EQ(said_at_once(queue, "a"), "a");
}

}  // namespace
}  // namespace kvilt
