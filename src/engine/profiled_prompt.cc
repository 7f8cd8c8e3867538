#include "engine/profiled_prompt.h"

#include <algorithm>

namespace kvilt {

int64_t profiled_pages(const ProfilerParts& parts, size_t tokens) {
  PageTable table(parts.store, parts.model.config().ropes(static_cast<int64_t>(tokens)));
  const std::vector<Runs> sets{{{0, static_cast<int32_t>(tokens)}}};
  return table.pages_for(sets, std::vector<uint16_t>(static_cast<size_t>(parts.model.config().L), 0));
}

Chunk chunk_of(PageTable& kv, const Plan& plan, const Band& band, std::span<const int32_t> ids) {
  Chunk out;
  out.kv = &kv;
  out.plan = &plan;
  out.stage = &plan.stages[0];
  out.band = &band;
  out.tokens = ids;
  return out;
}

void run_chunks(Driver& driver, Chunk chunk, const Runs& last, int64_t V) {
  float* logits = chunk.logits;
  const auto T = static_cast<int32_t>(chunk.tokens.size());
  for (int32_t begin = 0; begin < T; begin += kSparseBlock) {
    chunk.range = {begin, std::min(T, begin + kSparseBlock)};
    const int64_t rows = logits ? count(intersect(last, Runs{chunk.range})) : 0;
    chunk.logits = rows > 0 ? logits : nullptr;
    driver.run({&chunk, 1});
    if (rows > 0) logits += rows * V;
  }
}

ProfilePass::ProfilePass(const ProfilerParts& parts, std::span<const int32_t> of)
    : driver(parts.driver),
      V(parts.model.config().V),
      ids(of),
      kv(parts.store, parts.model.config().ropes(std::ssize(of))) {
  const std::vector<Runs> sets{{{0, static_cast<int32_t>(ids.size())}}};
  kv.add(sets, std::vector<uint16_t>(static_cast<size_t>(parts.model.config().L), 0));
}

void ProfilePass::run(const Plan& plan, const Band& band, std::span<Probe> probes, const Runs& wanted, float* logits) {
  Chunk chunk = chunk_of(kv, plan, band, ids);
  chunk.hidden = &hidden;
  chunk.probes = probes;
  chunk.logits = band.last ? logits : nullptr;
  run_chunks(driver, chunk, wanted, V);
}

}  // namespace kvilt
