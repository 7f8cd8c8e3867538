// kernels/peak.cc: runs the register-only loops of x86/peak.cc on every thread at once and takes the best rate. Of
// reading memory it takes the median: a best moment (a virtual machine's memory has phases) bounds no longer work.
#include "kernels/peak.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <vector>

#include "tensor/view.h"
#ifdef KVILT_X86
#include "kernels/x86/attend_bf16.h"
#include "kernels/x86/isa.h"
#endif

namespace kvilt {

#ifdef KVILT_X86
#define KVILT_PEAK(isa)                                         \
  namespace isa::peak {                                         \
  double int8_dots(int64_t rounds, int* sink);                  \
  double fmas(int64_t rounds, int* sink);                       \
  double read(const std::byte* data, int64_t bytes, int* sink); \
  }
KVILT_EACH_LINEAR_ISA(KVILT_PEAK)
#undef KVILT_PEAK
namespace amx::peak {
double int8_dots(int64_t rounds, int* sink);
}
#endif

namespace {

// Work units a nanosecond of each of `rounds` rounds, in rising order; body(thread) returns the units it did.
template <class Body>
std::vector<double> rates_of(ThreadPool& pool, int rounds, Body body) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> rates;
  std::vector<double> done(pool.size());
  for (int i = 0; i < rounds; ++i) {
    const auto start = Clock::now();
    pool.parallel_for(pool.size(), [&](int64_t index, int) { done[index] = body(index); });
    const double ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
    double sum = 0;
    for (const double value : done) sum += value;
    rates.push_back(sum / ns);
  }
  std::ranges::sort(rates);
  return rates;
}

template <class Body>
double best_rate(ThreadPool& pool, int rounds, Body body) {
  return rates_of(pool, rounds, body).back();
}

// Of each thread: 128 MB, and of all together more than the last cache. Where that has 480 MB, 128 MB a thread are partly
// in it, and were read 1.08 times as fast as 256 MB and 2 GB.
int64_t region_bytes(const ThreadPool& pool) {
  constexpr int64_t kLeast = 128 << 20, kPage = 4096;
  const int64_t cache = std::max<int64_t>(::sysconf(_SC_LEVEL3_CACHE_SIZE), 0);
  return std::max(kLeast, cache * 5 / 4 / pool.size() / kPage * kPage);
}

double read_rate(ThreadPool& pool, double (*read)(const std::byte*, int64_t, int*)) {
  const int64_t bytes = region_bytes(pool);
  const Buffer buffer(bytes * pool.size());
  auto* data = buffer.as<std::byte>();
  pool.parallel_for(pool.size(), [&](int64_t i, int) { std::memset(data + i * bytes, 1, bytes); });
  constexpr int kRounds = 15;
  return rates_of(pool, kRounds, [&](int64_t i) {
    int sink = 0;
    return read(data + i * bytes, bytes, &sink);
  })[kRounds / 2];
}

#ifdef KVILT_X86
struct Loops {
  std::string_view backend;
  double (*int8_dots)(int64_t, int*);
  double (*fmas)(int64_t, int*);
  double (*bf16_dots)(int64_t, int*);  // where Backend::bf16_matmul_pays()
  double (*read)(const std::byte*, int64_t, int*);
};
#define KVILT_LOOPS(isa) {#isa, isa::peak::int8_dots, isa::peak::fmas, avx512bf16::peak::bf16_dots, isa::peak::read},
constexpr Loops kLoops[] = {{"amx", amx::peak::int8_dots, avx512::peak::fmas, amx::peak::bf16_dots, avx512::peak::read},
                            KVILT_EACH_LINEAR_ISA(KVILT_LOOPS)};
#undef KVILT_LOOPS
#else
double plain_read(const std::byte* data, int64_t bytes, int* sink) {
  const auto* words = reinterpret_cast<const int64_t*>(data);
  int64_t sum = 0;
  for (int64_t i = 0; i < bytes / 8; ++i) sum ^= words[i];
  *sink += static_cast<int>(sum);
  return static_cast<double>(bytes);
}
#endif

}  // namespace

MachinePeak measure_peak(const Backend& backend, ThreadPool& pool) {
  MachinePeak peak;
#ifdef KVILT_X86
  constexpr int64_t kRounds = 400000;
  for (const Loops& loops : kLoops) {
    if (loops.backend != backend.name()) continue;
    const auto rate_of = [&](double (*loop)(int64_t, int*)) {
      return best_rate(pool, 15, [&](int64_t) {
        int sink = 1;
        return loop(kRounds, &sink);
      });
    };
    peak.int8_gops = rate_of(loops.int8_dots);
    peak.fp32_gflops = rate_of(loops.fmas);
    if (backend.bf16_matmul_pays()) peak.bf16_gflops = rate_of(loops.bf16_dots);
  }
#endif
  peak.read_gbs = measure_read_gbs(backend, pool);
  return peak;
}

double measure_read_gbs(const Backend& backend, ThreadPool& pool) {
#ifdef KVILT_X86
  for (const Loops& loops : kLoops) {
    if (loops.backend == backend.name()) return read_rate(pool, loops.read);
  }
  return read_rate(pool, avx2::peak::read);
#else
  return read_rate(pool, plain_read);
#endif
}

}  // namespace kvilt
