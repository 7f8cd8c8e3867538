// One request may fail for want of memory; the process, the requests beside it and those after it do not.
// How: operator new and aligned_alloc (tensor/buffer.cc) are replaced by ones that fail once, at the n-th allocation of
//      the engine's threads after arm(n). Every n is tried until a request ends without having met it.
#include <dlfcn.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <utility>

#include "kvilt/season.h"
#include "probe_prompts.h"

namespace {
std::atomic<int64_t> left{-1};  // allocations until one fails; below 0: none does
thread_local bool exempt = false;

bool fails() {
  if (exempt || left.load(std::memory_order_relaxed) < 0) return false;
  return left.fetch_sub(1, std::memory_order_relaxed) == 0;
}
void* allocate(size_t size, size_t align) {
  if (fails()) throw std::bad_alloc();
  void* memory = align > alignof(std::max_align_t) ? ::aligned_alloc(align, (size + align - 1) / align * align)
                                                   : std::malloc(size ? size : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(size_t size) { return allocate(size, 0); }
void* operator new[](size_t size) { return allocate(size, 0); }
void* operator new(size_t size, std::align_val_t align) { return allocate(size, static_cast<size_t>(align)); }
void* operator new[](size_t size, std::align_val_t align) { return allocate(size, static_cast<size_t>(align)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

extern "C" void* aligned_alloc(size_t align, size_t size) {
  static const auto real = reinterpret_cast<void* (*)(size_t, size_t)>(::dlsym(RTLD_NEXT, "aligned_alloc"));
  return fails() ? nullptr : real(align, size);
}

namespace kvilt {
namespace {

void arm(int64_t n) { left = n; }
bool disarm() { return left.exchange(-1) < 0; }  // whether one failed

// The sink's own memory is not the engine's.
class Quiet : public TokenSink {
 public:
  void on_tokens(const TokenDelta& delta) override {
    const bool was = std::exchange(exempt, true);  // a request that is lost ends on its submitter's thread
    sink.on_tokens(delta);
    exempt = was;
  }
  void on_finish(Completion completion) override {
    const bool was = std::exchange(exempt, true);
    sink.on_finish(std::move(completion));
    exempt = was;
  }
  CollectingSink sink;
};

TEST(OutOfMemory, FailsOneRequestAndNeverTheProcess) {
  exempt = true;
  const auto engine = open_for_test({.model = kModel, .threads = 2, .kv_type = KvType::kF32});
  const std::vector<int32_t> prompt = tokens(60, 3), piece = tokens(40, 5);
  std::vector<int32_t> shuffled = tokens(9, 7);
  shuffled.insert(shuffled.end(), piece.begin(), piece.end());
  for (const int32_t id : tokens(9, 8)) shuffled.push_back(id);
  const Outcome wanted = ask_with(*engine, prompt, "full");
  for (const char* policy : {"full", "mend"}) {
    int failed = 0, refused = 0;
    for (int64_t n = 0;; n += n < 200 ? 1 : 17) {
      engine->clear_cache();
      warm(*engine, piece);
      Request request = request_of(shuffled, policy, 3);
      const auto sink = std::make_shared<Quiet>();
      arm(n);
      const bool submitted = engine->submit(request, sink).ok();
      ASSERT_TRUE(submitted);
      const Completion end = sink->sink.wait();
      engine->stats();
      const bool met = disarm();
      if (end.finish == Finish::kError) {
        ASSERT_EQ(end.error->code, Code::kExhausted) << end.error->message;
        ++refused;
      } else {
        ASSERT_EQ(end.completion_tokens, 3);
      }
      failed += met;
      if (n % 16 == 0 || n > 200 || !met) {
        const Outcome next = ask_with(*engine, prompt, "full");
        ASSERT_EQ(next.ids, wanted.ids) << policy << " after " << n;
        ASSERT_EQ(next.completion.logits.first, wanted.completion.logits.first) << policy << " after " << n;
      }
      if (!met) break;
    }
    EXPECT_GT(failed, 50) << policy;
    EXPECT_GT(refused, 20) << policy << ": power check";
    engine->clear_cache();
    EXPECT_EQ(engine->stats().kv_pages_used, 0) << "no page is lost";
  }
}

// A draft is a guess: an answer goes on without where there is no memory for one. It fails from its first token on.
TEST(OutOfMemory, ADraftIsNoReasonToFail) {
  exempt = true;
  const auto engine = open_for_test({.model = kModel, .threads = 2, .kv_type = KvType::kF32, .draft = 16});
  const std::vector<int32_t> line = tokens(30, 3), asked = join({line, line, line, line});
  class Arms final : public Quiet {
   public:
    explicit Arms(int64_t n) : n_(n) {}
    void on_tokens(const TokenDelta& delta) override {
      Quiet::on_tokens(delta);
      if (sink.ids.size() == 1) arm(n_);
    }

   private:
    const int64_t n_;
  };
  const auto answer = [&](const std::shared_ptr<Arms>& sink) {
    engine->clear_cache();
    Request request = request_of(asked, "full", 40);
    request.sampling.ignore_eos = true;
    EXPECT_TRUE(engine->submit(std::move(request), sink).ok());
    const Completion end = sink->sink.wait();
    engine->stats();
    return end;
  };
  const auto whole = std::make_shared<Arms>(-1);
  ASSERT_GT(answer(whole).usage.drafted, 0) << "power: it repeats itself";
  int went_on = 0;
  for (int64_t n = 0;; ++n) {
    const auto sink = std::make_shared<Arms>(n);
    const Completion end = answer(sink);
    const bool met = disarm();
    if (end.finish == Finish::kError) {
      ASSERT_EQ(end.error->code, Code::kExhausted) << end.error->message;
    } else {
      ASSERT_EQ(sink->sink.ids, whole->sink.ids) << "after " << n;
      went_on += met && end.usage.drafted == 0;
    }
    if (!met) break;
  }
  EXPECT_GT(went_on, 0) << "power: memory ended where a draft was made";
}

// Of a prompt that is read from disk, on the engine's thread and the one that reads: it is answered, or ends with an
// error, and who asks for the same next is answered.
TEST(OutOfMemory, WhatIsReadFromDiskHoldsNobodyUp) {
  exempt = true;
  std::string folder = testing::TempDir() + "kvilt_memory_XXXXXX";
  ASSERT_TRUE(::mkdtemp(folder.data()));
  EngineOptions options{.model = kModel, .threads = 2, .kv_type = KvType::kF32};
  options.cache_dir = folder;
  const std::vector<int32_t> known = tokens(600, 3), asked = join({known, tokens(9, 7)});
  warm(*open_for_test(options), known);  // which stores it at its end
  const Outcome wanted =
      ask_with(*open_for_test({.model = kModel, .threads = 2, .kv_type = KvType::kF32}), asked, "full");
  int read = 0, failed = 0;
  for (int64_t n = 0;; n += n < 60 ? 2 : 23) {
    const auto engine = open_for_test(options);
    const auto sink = std::make_shared<Quiet>();
    arm(n);
    ASSERT_TRUE(engine->submit(request_of(asked, "prefix", 3), sink).ok());
    const Completion end = sink->sink.wait();
    const bool met = disarm();
    if (end.finish == Finish::kError) {
      ASSERT_EQ(end.error->code, Code::kExhausted) << end.error->message;
    }
    read += end.usage.disk > 0;
    failed += met;
    const Outcome next = ask_with(*engine, asked, "prefix");
    ASSERT_EQ(next.ids, wanted.ids) << "after " << n;
    if (!met) break;
  }
  EXPECT_GT(failed, 30);
  EXPECT_GT(read, 5) << "power check";
  std::filesystem::remove_all(folder);
}

// A context that could not be added leaves the mean that was there.
TEST(OutOfMemory, LeavesTheOldMean) {
  exempt = true;
  const auto engine = open_for_test({.model = kModel, .threads = 2, .kv_type = KvType::kF32});
  const std::vector<int32_t> piece = tokens(40, 5), asked = join({tokens(9, 7), piece, tokens(9, 8)});
  const auto context = [&](uint32_t which) {
    Prompt prompt{join({tokens(20, which), piece}), {{20, 60}}};
    return season_request(std::move(prompt));
  };
  const auto answer = [&] {
    const Outcome out = ask_with(*engine, asked, "naive", {{"reuse_from", "seasoned"}});
    EXPECT_EQ(out.usage().seasoned, 40);
    return out.completion.logits.first;
  };
  ask_ok(*engine, context(1));
  const std::vector<float> one = answer();
  ask_ok(*engine, context(2));
  const std::vector<float> two = answer();
  ASSERT_NE(one, two) << "power check";
  int as_before = 0, added = 0;
  for (int64_t n = 0;; n += 5) {
    engine->clear_cache();
    ask_ok(*engine, context(1));
    const auto sink = std::make_shared<Quiet>();
    arm(n);
    ASSERT_TRUE(engine->submit(context(2), sink).ok());
    sink->sink.wait();
    engine->stats();
    const bool met = disarm();
    const std::vector<float> now = answer();
    ASSERT_TRUE(now == one || now == two) << "after " << n;
    ++(now == one ? as_before : added);
    if (!met) break;
  }
  EXPECT_GT(as_before, 10) << "power check";
  EXPECT_GT(added, 0);
  engine->clear_cache();
  EXPECT_EQ(engine->stats().kv_pages_used, 0) << "no page is lost";
}

}  // namespace
}  // namespace kvilt
