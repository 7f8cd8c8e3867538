#include "kv/kept_keys.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace kvilt {

KeptKeys::KeptKeys(PageList& pages)
    : pages_(pages),
      heads_(static_cast<size_t>(pages.store().shape().L) * static_cast<size_t>(pages.store().shape().G)) {}

// The next `count` slots, for positions after those that are there.
void KeptKeys::append(Head& to, int32_t pos, int32_t count, const float* rotation) {
  if (!to.runs.empty()) {
    KeptRun& last = to.runs.back();
    CHECK(last.pos + last.count <= pos);
    if (last.pos + last.count == pos && last.slot + last.count == to.slots && last.rotation == rotation) {
      last.count += count;
      to.slots += count;
      return;
    }
  }
  to.runs.push_back({pos, count, to.slots, rotation});
  to.slots += count;
}

void KeptKeys::put(int layer, int head, std::span<const KvSpan> spans) {
  const int64_t row_bytes = pages_.store().shape().row_bytes();
  std::vector<std::byte> k, v;
  Head now;
  for (const KvSpan& span : spans) {
    const auto *from_k = static_cast<const std::byte*>(span.k), *from_v = static_cast<const std::byte*>(span.v);
    k.insert(k.end(), from_k, from_k + span.count * row_bytes);
    v.insert(v.end(), from_v, from_v + span.count * row_bytes);
    append(now, span.pos, span.count, span.rotation);
  }
  const int32_t need = pages_.pages_of(now.slots);
  for (int32_t page = need; page < pages_.end(layer, head); ++page) {
    if (pages_.held(layer, head, page)) pages_.drop(layer, head, page);
  }
  for (int32_t page = 0; page < need; ++page) {
    if (!pages_.held(layer, head, page)) pages_.hold(layer, head, page);
  }
  heads_[layer * pages_.store().shape().G + head] = std::move(now);
  write(layer, head, k, v);
}

// The head's rows, from its first slot on.
void KeptKeys::write(int layer, int head, const std::vector<std::byte>& k, const std::vector<std::byte>& v) {
  const KvShape& shape = pages_.store().shape();
  const int32_t slots = of(layer, head).slots;
  for (int32_t slot = 0; slot < slots; slot += shape.P) {
    const auto begin = static_cast<size_t>(slot * shape.row_bytes());
    const auto bytes = static_cast<size_t>(std::min(shape.P, slots - slot) * shape.row_bytes());
    std::memcpy(pages_.k(layer, head, slot), k.data() + begin, bytes);
    std::memcpy(pages_.v(layer, head, slot), v.data() + begin, bytes);
  }
}

int64_t KeptKeys::pages_for_next() const {
  const KvShape& shape = pages_.store().shape();
  int64_t pages = 0;
  for (size_t i = 0; i < heads_.size(); ++i) {
    const int layer = static_cast<int>(i) / shape.G, head = static_cast<int>(i) % shape.G;
    pages += heads_[i].slots % shape.P == 0 && !pages_.held(layer, head, heads_[i].slots / shape.P) ? 1 : 0;
  }
  return std::max<int64_t>(0, pages - pages_.spare());
}

void KeptKeys::add_next(int32_t pos) {
  const KvShape& shape = pages_.store().shape();
  for (size_t i = 0; i < heads_.size(); ++i) {
    const int layer = static_cast<int>(i) / shape.G, head = static_cast<int>(i) % shape.G;
    const int32_t page = heads_[i].slots / shape.P;
    if (!pages_.held(layer, head, page)) pages_.hold(layer, head, page);
    append(heads_[i], pos, 1, nullptr);
  }
}

int32_t KeptKeys::slot_of(int layer, int head, int32_t pos) const {
  const std::vector<KeptRun>& runs = of(layer, head).runs;
  const auto after = std::ranges::upper_bound(runs, pos, {}, &KeptRun::pos);
  if (after == runs.begin()) return -1;
  const KeptRun& run = *std::prev(after);
  return pos < run.pos + run.count ? run.slot + pos - run.pos : -1;
}

void KeptKeys::resolve(int layer, int head, Run positions, std::vector<KvSpan>& spans) const {
  if (positions.begin >= positions.end) return;
  const int32_t P = pages_.store().shape().P;
  const std::vector<KeptRun>& runs = of(layer, head).runs;
  const auto ends_by = [&](const KeptRun& run) { return run.pos + run.count <= positions.begin; };
  int32_t pos = positions.begin;
  for (auto run = std::partition_point(runs.begin(), runs.end(), ends_by);
       run != runs.end() && run->pos < positions.end; ++run) {
    const int32_t end = std::min(run->pos + run->count, positions.end);
    while (pos < end) {
      CHECK(run->pos <= pos);
      const int32_t slot = run->slot + pos - run->pos, here = std::min(end - pos, P - slot % P);
      spans.push_back({pages_.k(layer, head, slot), pages_.v(layer, head, slot), run->rotation, pos, here});
      pos += here;
    }
  }
  CHECK(pos == positions.end);  // what is gone cannot be read
}

}  // namespace kvilt
