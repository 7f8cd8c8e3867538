// kernels/x86/attend_bf16.cc: whether attention multiplies in bf16: what this machine measures, not what its flags say.
#include "kernels/x86/attend_bf16.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace kvilt::avx512::peak {
double fmas(int64_t rounds, int* sink);
}

namespace kvilt::x86 {
namespace {

// Operations a nanosecond, best of a few short runs: others may use the machine.
double rate(double (*work)(int64_t, int*)) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int i = 0; i < 20; ++i) {
    int sink = 1;
    const auto start = Clock::now();
    const double done = work(2000, &sink);
    best = std::max(best, done / std::chrono::duration<double, std::nano>(Clock::now() - start).count());
  }
  return best;
}

bool measure() {
  constexpr double kWorth = 1.3;  // 2.0 on Zen 4, 0.5 on Emerald Rapids
  if (!__builtin_cpu_supports("avx512bf16")) return false;
  if (const char* forced = std::getenv("KVILT_BF16_DOTS"); forced != nullptr && *forced != 0) return *forced == '1';
  return rate(avx512bf16::kBf16Tiles.dots) > kWorth * rate(avx512::peak::fmas);
}

TileKernels with_bf16(bool direct) {
  const Bf16Tiles& bf16 = avx512bf16::kBf16Tiles;
  TileKernels tiles = avx512::kAttendTiles;
  tiles.load_queries = bf16.load_queries;
  tiles.query_bytes = 2;
  tiles.gather_keys = bf16.gather_keys;
  tiles.gather_values = bf16.gather_values;
  tiles.scores = bf16.scores;
  if (direct) {
    tiles.scores_direct = bf16.scores_direct;
    tiles.add_values_direct = bf16.add_values_direct;
  }
  tiles.softmax = bf16.softmax;
  tiles.add_values = bf16.add_values;
  return tiles;
}

}  // namespace

bool bf16_dots_pay() {
  static const bool pays = measure();
  return pays;
}

bool bf16_serves(int E) { return E % 32 == 0 && bf16_dots_pay(); }

const TileKernels& avx512_tiles(const TileShape& shape) {
  static const TileKernels bf16 = with_bf16(true), int8 = with_bf16(false);
  if ((shape.kv != Element::kBF16 && shape.kv != Element::kI8) || !bf16_serves(shape.E)) return avx512::kAttendTiles;
  return shape.kv == Element::kBF16 ? bf16 : int8;
}

}  // namespace kvilt::x86
