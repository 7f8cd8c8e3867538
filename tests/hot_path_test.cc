// A steady decode step allocates nothing and takes no lock: this program counts both, in whatever thread.
// How: operator new and pthread_mutex_lock are replaced by ones that count. A sink of one of 16 sequences that decode
//      together reads the counters whenever its token comes; the difference is what one whole step did: engine loop,
//      scheduler, page tables, driver, kernels, sampler. Steps that take new pages or end an answer are events, and
//      apart.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <thread>

#include "engine/draft_finder.h"
#include "engine/side_thread.h"
#include "engine_harness.h"
#include "model/tiny_gguf_for_test.h"

namespace {
std::atomic<uint64_t> allocations{0}, locks{0};

void* counted(size_t size, size_t align) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = align > alignof(std::max_align_t) ? std::aligned_alloc(align, (size + align - 1) / align * align)
                                                   : std::malloc(size ? size : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(size_t size) { return counted(size, 0); }
void* operator new[](size_t size) { return counted(size, 0); }
void* operator new(size_t size, std::align_val_t align) { return counted(size, static_cast<size_t>(align)); }
void* operator new[](size_t size, std::align_val_t align) { return counted(size, static_cast<size_t>(align)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size ? size : 1);
}
void* operator new[](size_t size, const std::nothrow_t& tag) noexcept { return operator new(size, tag); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static const auto real = reinterpret_cast<int (*)(pthread_mutex_t*)>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  locks.fetch_add(1, std::memory_order_relaxed);
  return real(mutex);
}

namespace kvilt {
namespace {

constexpr int kTokens = 50, kPrompt = 5, kPage = 64;  // the whole context: pages are taken by prefills only

struct Counts {
  uint64_t allocations = 0, locks = 0;
};
Counts now() { return {allocations.load(), locks.load()}; }

class Sink : public TokenSink {
 public:
  explicit Sink(std::function<void()> at_token) : at_token_(std::move(at_token)) {}
  void on_tokens(const TokenDelta& delta) override {
    if (delta.ids.empty()) return;  // the rest of the text, at the end
    ++seen;
    at_token_();
  }
  void on_finish(Completion) override { done = true; }
  std::atomic<int> seen{0};
  std::atomic<bool> done{false};

 private:
  const std::function<void()> at_token_;
};

Request question(int number, const SamplingParams& sampling, int draft = 0) {
  Request request = request_of({}, "full", kTokens);
  for (int t = 0; t < kPrompt; ++t) request.prompt.ids.push_back(3 + (number + t * 7) % 26);
  request.evaluation.first_logits = false;
  request.sampling = sampling;
  request.sampling.max_tokens = kTokens;
  request.sampling.ignore_eos = true;
  if (draft > 0) request.evaluation.drafts.assign(kTokens, 1);  // a token that no answer below has
  return request;
}

struct Setting {
  int sequences = 16, threads = 2;
  SamplingParams sampling{.temperature = 0};
  int draft = 0;  // tokens of it in each step, all wrong: how many the engine would find differs from step to step
  std::function<void()> disturb = [] {};  // called once in every step
};

// What the steps did in which all sequences decoded.
struct Steady {
  int steps = 0;
  uint64_t drafted = 0;
  Counts sum;
};

Steady run(const std::string& path, const Setting& setting) {
  const auto engine =
      open_for_test({.model = path, .threads = setting.threads, .page_slots = kPage, .draft = setting.draft});
  std::vector<std::shared_ptr<Sink>> sinks;
  Steady out;
  Counts last;
  int steady_steps = 0;        // the first may grow what later ones reuse
  const auto at_token = [&] {  // of the first sequence, on the engine thread
    const auto decodes = [](const auto& sink) { return sink->seen >= 2 && sink->seen < kTokens; };
    const bool steady = std::all_of(sinks.begin() + 1, sinks.end(), decodes);
    const Counts counts = now();
    if (steady && steady_steps > 1 && sinks[0]->seen < kTokens - 2) {  // before the ends, which publish
      ++out.steps;
      out.sum.allocations += counts.allocations - last.allocations;
      out.sum.locks += counts.locks - last.locks;
    }
    last = counts;
    setting.disturb();
    steady_steps = steady ? steady_steps + 1 : 0;
  };
  // The engine thread waits inside a first answer until all are in the queue, so that they decode together.
  std::atomic<bool> reached = false, go = false;
  const auto gate = std::make_shared<Sink>([&] {
    reached = true;
    while (!go) std::this_thread::yield();
  });
  Request first = question(99, {.temperature = 0});
  first.draft = 0;
  EXPECT_TRUE(engine->submit(std::move(first), gate).ok());
  while (!reached) std::this_thread::yield();
  for (int i = 0; i < setting.sequences; ++i) {
    sinks.push_back(std::make_shared<Sink>(i == 0 ? std::function<void()>(at_token) : [] {}));
  }
  for (int i = 0; i < setting.sequences; ++i) {
    EXPECT_TRUE(engine->submit(question(i, setting.sampling, setting.draft), sinks[i]).ok());
  }
  go = true;
  for (const auto& sink : sinks) {
    while (!sink->done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  out.drafted = engine->stats().drafted_tokens;
  return out;
}

class HotPath : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    std::string name = "/tmp/kvilt_hot_XXXXXX";
    const int fd = ::mkstemp(name.data());
    ASSERT_GE(fd, 0);
    ::close(fd);
    path_ = name + ".gguf";
    std::filesystem::rename(name, path_);
    TinyGguf tiny;
    tiny.type = kTinyTypes[GetParam()].id;
    tiny.dtype = kTinyTypes[GetParam()].dtype;
    std::ofstream(path_, std::ios::binary) << tiny.build();
  }
  void TearDown() override { std::filesystem::remove(path_); }
  std::string path_;
};

void expect_nothing(const Steady& steady, const char* what) {
  EXPECT_GT(steady.steps, kTokens / 2) << what;
  EXPECT_EQ(steady.sum.allocations, 0u) << what << ", " << steady.steps << " steps";
  EXPECT_EQ(steady.sum.locks, 0u) << what << ", " << steady.steps << " steps";
}

TEST_P(HotPath, ADecodeStepAllocatesNothingAndTakesNoLock) {
  expect_nothing(run(path_, {}), "16 sequences");
  expect_nothing(run(path_, {.threads = 1}), "one thread");
  expect_nothing(run(path_, {.sequences = 2}), "few tiles of attention: super-blocks are shared out");
  expect_nothing(run(path_, {.sampling = {.temperature = 0.8f, .top_p = 0.9f, .min_p = 0.01f, .top_k = 20}}),
                 "sampled");
}

TEST_P(HotPath, NorDoesOneWithDrafts) {
  const SamplingParams never{.temperature = 0, .logit_bias = {{1, -100.f}}};
  const Steady steady = run(path_, {.sampling = never, .draft = 3});
  expect_nothing(steady, "three wrong tokens each");
  EXPECT_GT(steady.drafted, 0u) << "power";
}

// What the engine looks up with every token.
TEST(DraftsHotPath, LookingAllocatesNothing) {
  ContentIndex index(HashSecret::fixed(1));
  index.keep_continuations();
  const DomainId domain = index.domain("m", "", "");
  std::vector<int32_t> text;
  for (int i = 0; i < 3000; ++i) text.push_back(i * 7919 % 1000);
  index.insert(1, {.tokens = text, .domain = domain});
  std::vector<int32_t> own(text.begin(), text.begin() + 500), draft;
  own.reserve(2000);
  draft.reserve(16);
  DraftFinder finder(3);
  uint64_t looking = 0;
  size_t found = 0;
  for (int i = 0; i < 500; ++i) {
    const uint64_t before = allocations;
    const DraftFinder::Texts texts{own, &index, domain, 0};
    finder.read(texts);
    draft.clear();
    finder.propose(
        texts, 16, [](double) { return true; }, draft);
    if (i > 0) looking += allocations - before;  // the first look makes its tables
    found += draft.size();
    own.push_back(i % 50 == 0 ? i : text[own.size()]);
  }
  EXPECT_EQ(looking, 0u);
  EXPECT_GT(found, 1000u) << "power";
}

// Else a thread that comes late to a busy core takes its first lock beside a decode step.
TEST(SideThreadHotPath, ItsStartIsOverWhenItIsThere) {
  for (int i = 0; i < 50; ++i) {
    const SideThread side;
    const uint64_t before = locks;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_EQ(locks, before) << i;
  }
}

// The counters count: one allocation or one lock a step shows.
TEST_P(HotPath, OneOfThemAStepWouldShow) {
  const Steady allocating = run(path_, {.disturb = [] {
                                  static std::atomic<int*> kept;
                                  kept = new int;
                                  delete kept.load();
                                }});
  EXPECT_EQ(allocating.sum.allocations, static_cast<uint64_t>(allocating.steps));
  std::mutex mutex;
  const Steady locking = run(path_, {.disturb = [&] { std::lock_guard lock(mutex); }});
  EXPECT_EQ(locking.sum.locks, static_cast<uint64_t>(locking.steps));
  EXPECT_GT(locking.steps, 0);
}

// Q4_K, Q8_0 (int8 kernels) and F32 (fp32 kernels)
INSTANTIATE_TEST_SUITE_P(Types, HotPath, testing::Values(0, 7, 8));

}  // namespace
}  // namespace kvilt
