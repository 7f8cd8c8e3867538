// base/sealer_bench.cc: what sealing a chunk costs: bytes a second of one core, beside the sums that it replaces.
// Run: sealer_bench. The size is that of a chunk of 256 tokens with 12 KiB of KV each.
#include <benchmark/benchmark.h>

#include "base/checksum.h"
#include "base/sealer.h"

namespace kvilt {
namespace {

constexpr size_t kChunkBytes = size_t{256} * 12288;
constexpr Sealer::Place kPlace{Sealer::What::kChunk, 1, 0};

std::vector<std::byte> chunk() {
  std::vector<std::byte> out(kChunkBytes);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i * 31 >> 3);
  return out;
}

void seal(benchmark::State& state) {
  const Sealer sealer(HashSecret::fixed(1));
  const auto plain = chunk();
  std::vector<std::byte> out(plain.size() + Sealer::kExtra);
  for (auto _ : state) benchmark::DoNotOptimize(sealer.seal(kPlace, plain, out));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kChunkBytes));
}

// Opening is in place, so each time a copy is opened; `copy` is what that takes.
void open(benchmark::State& state) {
  const Sealer sealer(HashSecret::fixed(1));
  const auto sealed = sealer.sealed(kPlace, chunk());
  std::vector<std::byte> bytes;
  for (auto _ : state) {
    bytes.assign(sealed.begin(), sealed.end());
    benchmark::DoNotOptimize(sealer.open(kPlace, bytes));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kChunkBytes));
}

void copy(benchmark::State& state) {
  const auto plain = chunk();
  std::vector<std::byte> bytes;
  for (auto _ : state) {
    bytes.assign(plain.begin(), plain.end());
    benchmark::DoNotOptimize(bytes.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kChunkBytes));
}

// What a folder without a key has.
void sum(benchmark::State& state) {
  const auto plain = chunk();
  for (auto _ : state) benchmark::DoNotOptimize(checksum(plain));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kChunkBytes));
}

// What Redis without a key has.
void keyed_digest(benchmark::State& state) {
  const HashSecret secret = HashSecret::fixed(1);
  const auto plain = chunk();
  const std::string_view text(reinterpret_cast<const char*>(plain.data()), plain.size());
  for (auto _ : state) benchmark::DoNotOptimize(KeyedHash(secret, "bench").add(text).finish());
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kChunkBytes));
}

BENCHMARK(seal);
BENCHMARK(open);
BENCHMARK(copy);
BENCHMARK(sum);
BENCHMARK(keyed_digest);

}  // namespace
}  // namespace kvilt

BENCHMARK_MAIN();
