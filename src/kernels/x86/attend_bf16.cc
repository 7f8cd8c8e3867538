// kernels/x86/attend_bf16.cc: whether attention multiplies in bf16: what this machine measures, not what its flags say.
#include "kernels/x86/attend_bf16.h"

#include <cpuid.h>

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

// KVILT_BF16_DOTS: '0' or '1', or 0 where it says nothing.
char forced() {
  const char* value = std::getenv("KVILT_BF16_DOTS");
  return value == nullptr ? '\0' : *value;
}

bool measure() {
  constexpr double kWorth = 1.3;  // 2.0 on Zen 4, 0.5 on Emerald Rapids
  if (!__builtin_cpu_supports("avx512bf16")) return false;
  if (forced() != 0) return forced() == '1';
  return rate(avx512bf16::peak::bf16_dots) > kWorth * rate(avx512::peak::fmas);
}

bool has_bf16_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22;
  return __builtin_cpu_supports("avx512bf16") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBf16) != 0;
}

bool exact_in_bf16(Element kv) { return kv == Element::kBF16 || kv == Element::kI8; }

TileKernels with_bf16(const Bf16Tiles& bf16, bool direct) {
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
  tiles.enter = bf16.enter;
  tiles.leave = bf16.leave;
  return tiles;
}

}  // namespace

bool bf16_dots_pay() {
  static const bool pays = measure();
  return pays;
}

bool bf16_tiles_pay() {
  static const bool pays = has_bf16_tiles() && forced() != '0';
  return pays;
}

bool bf16_serves(int E) { return E % 32 == 0 && bf16_dots_pay(); }
bool bf16_tiles_serve(int E) { return E % 32 == 0 && bf16_tiles_pay(); }

const TileKernels& avx512_tiles(const TileShape& shape) {
  static const TileKernels bf16 = with_bf16(avx512bf16::kBf16Tiles, true),
                           int8 = with_bf16(avx512bf16::kBf16Tiles, false);
  if (!exact_in_bf16(shape.kv) || !bf16_serves(shape.E)) return avx512::kAttendTiles;
  return shape.kv == Element::kBF16 ? bf16 : int8;
}

const TileKernels& amx_tiles(const TileShape& shape) {
  static const TileKernels bf16 = with_bf16(amx::kBf16Tiles, true), int8 = with_bf16(amx::kBf16Tiles, false);
  if (!exact_in_bf16(shape.kv) || !bf16_tiles_serve(shape.E)) return avx512::kAttendTiles;
  return shape.kv == Element::kBF16 ? bf16 : int8;
}

}  // namespace kvilt::x86
