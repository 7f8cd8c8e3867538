// engine/layer_loader.cc: DiskCache's way back, layer by layer: who waits for the rest of an exact prefix runs on its first
// layers while the next ones are read.
// Idea:       all chunks' first layers are read first, then the next ones. The I/O thread copies them straight into pages,
//             which are reserved when the reading begins. When the first layers are there, requests may start: they have
//             the pages placed before the cache knows of them, and their bands end at the last layer that came
//             (Prefill::layers_there). When the last layer is there the parts are adopted as others are.
// Invariants: nothing but these requests sees KV that is not all there. No page is written after it was given back.
// Limits:     one at a time, when nothing else is being read, for prompts with few rows behind what comes; others are read
//             chunk by chunk (loader.cc).
#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "engine/disk_cache.h"

namespace kvilt {
namespace {

// Rows whose hidden states wait from band to band, and that go through the layers at the pace of the disk: one step's.
constexpr int32_t kMostRows = 512;

}  // namespace

bool DiskCache::may_layer(const Question& q, const Loading& loading) const {
  const auto L = static_cast<uint32_t>(cache_.store().shape().L);
  if (layers_at_once_ <= 0 || loading_ > 1 || layered_ || L < 2) return false;
  for (const Part& part : loading.parts) {
    if (!part.prefix || !is_there(part) || stored_.find(part.id)->blocks != L) return false;
  }
  const Part& last = loading.parts.back();
  const int32_t end = last.pos + last.count;
  return end < std::ssize(q.prompt) && std::ssize(q.prompt) - end <= kMostRows;
}

// Pages for all of it, and a segment over each part's. False: there is no room, or memory has some of it by now.
bool DiskCache::reserve(Loading& loading) try {
  PageStore& store = cache_.store();
  std::vector<Run> wanted;
  int64_t pages = 0;
  for (const Part& part : loading.parts) {
    wanted.push_back(lacking(loading, part, part.offset + part.count));
    if (wanted.back() != Run{part.offset, part.offset + part.count}) return false;
    pages += pages_for_rows(store, wanted.back());
  }
  if (!hooks_.make_room(pages, loading.owner)) return false;
  auto layered = std::make_unique<Layered>();
  Fetch::Coming coming;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Part& part = loading.parts[i];
    const int32_t base = stored(part.id).pos;
    const Run positions{base + wanted[i].begin, base + wanted[i].end};
    auto table = table_for_rows(store, loading.ropes, positions);
    table->give_to(loading.owner);
    coming.parts.push_back(table->publish(positions));
    Layered::Each& each = layered->parts.emplace_back(part, static_cast<int32_t>(index_->info(part.id).tokens.size()),
                                                      RowPlaces(store, *coming.parts.back()));
    each.arriving.table = std::move(table);
    each.arriving.wanted = wanted[i];
    each.arriving.base = base;
  }
  const Part& last = loading.parts.back();
  coming.prompt.assign(loading.prompt.begin(), loading.prompt.begin() + last.pos + last.count);
  loading.layered = std::move(layered);
  loading.fetch->coming = std::move(coming);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

// The I/O thread.
void DiskCache::read_layers(const std::shared_ptr<Loading>& loading) {
  const auto start = Clock::now();
  const int32_t L = cache_.store().shape().L;
  const Part* damaged = nullptr;
  Status done;
  int64_t bytes = 0;
  int32_t there = 0;
  for (int32_t next = 0; there < L; there = next) {
    next = std::min(L, there + layers_at_once_);
    done = read_layers(loading, {there, next}, damaged, bytes);
    if (!done.ok()) break;
  }
  for (Layered::Each& each : loading->layered->parts) {
    if (done.ok()) read_annexes(each.part.id, each.arriving);
  }
  try {
    for (const Part& part : loading->parts) {
      if (done.ok()) tier_->touch(part.id);
    }
  } catch (const std::bad_alloc&) {  // they only seem older than they are
  }
  count();
  learn_pace(start, bytes);  // also where nobody waited for the end
  say([this, loading, damaged, done = std::move(done)] { layers_came(loading, damaged, done); });
}

// Of all chunks of all parts, and tells of it. kUnavailable: nobody wants them any more. of: the part that could not be
// read.
Status DiskCache::read_layers(const std::shared_ptr<Loading>& loading, Run layers, const Part*& of, int64_t& bytes) {
  Fetch& fetch = *loading->fetch;
  try {
    for (const Layered::Each& each : loading->layered->parts) {
      const int32_t last = (each.part.offset + each.part.count - 1) / StoredPiece::kChunkTokens;
      for (int32_t chunk = each.part.offset / StoredPiece::kChunkTokens; chunk <= last; ++chunk) {
        if (loading->fetch.use_count() == 1) fetch.left = true;
        if (fetch.left) return Error{Code::kUnavailable, "nobody waits for it"};
        of = &each.part;
        KVILT_TRY(read_blocks(*loading->layered, each, chunk, layers, bytes));
        of = nullptr;
      }
    }
    if (layers.end == cache_.store().shape().L) return {};
    const auto came = [loading, layers] { loading->fetch->coming.layers = layers.end; };
    layers.begin == 0 ? hooks_.post(came) : hooks_.post_unheard(came);  // who waits may start with the first
    return {};
  } catch (const std::bad_alloc&) {
    return Error{Code::kExhausted, "no memory left"};  // short: it takes none
  }
}

Status DiskCache::read_blocks(Layered& to, const Layered::Each& each, int32_t chunk, Run layers, int64_t& read_bytes) {
  std::vector<std::byte> bytes = buffers_.take();
  const Status read = tier_->get_blocks(each.part.id, chunk, layers, bytes);
  moved_ = Clock::now();
  if (read.ok()) read_bytes += std::ssize(bytes);
  const Arriving& into = each.arriving;
  const Run run = chunk_run(chunk, each.tokens);
  const size_t size = bytes.size() / static_cast<size_t>(layers.size());
  const Run wanted{into.base + std::max(run.begin, into.wanted.begin), into.base + std::min(run.end, into.wanted.end)};
  for (int32_t layer = layers.begin; read.ok() && layer < layers.end; ++layer) {
    const auto block = std::span(bytes).subspan(static_cast<size_t>(layer - layers.begin) * size, size);
    MutexLock lock(to.mutex);  // no longer than a block takes: the engine thread may want the pages back
    if (to.gone) return Error{Code::kUnavailable, "its pages were given back"};
    each.places.copy_in(layer, {into.base + run.begin, into.base + run.end}, block, wanted);
  }
  buffers_.give(std::move(bytes));
  return read;
}

// All of it is there, or no more comes. Whoever runs on it finds it in the cache, or starts again.
void DiskCache::layers_came(const std::shared_ptr<Loading>& loading, const Part* damaged, const Status& done) {
  if (layered_ == loading) layered_.reset();
  Fetch& fetch = *loading->fetch;
  const auto layered = std::move(loading->layered);  // its tables end here: the pool is the engine thread's
  try {
    for (Layered::Each& each : layered->parts) {
      each.arriving.end = each.part.offset + each.part.count;
      if (done.ok() && !fetch.coming.broken) adopt(*loading, each.part, each.arriving, each.arriving.table.get());
    }
  } catch (const std::bad_alloc&) {
    fetch.coming.broken = true;
  }
  if (!done.ok()) {
    fetch.coming.broken = true;
    try {
      if (damaged && done.error().code != Code::kUnavailable) refuse(*damaged, done.error());
    } catch (const std::bad_alloc&) {  // whoever reads it next refuses it
    }
  }
  fetch.coming.parts.clear();
  finished(loading);
}

// even_in_use: also where a request runs on it, whose pages are free when it starts again. False: none is free now.
bool DiskCache::drop_layered(bool even_in_use) {
  if (!layered_) return false;
  Fetch::Coming& coming = layered_->fetch->coming;
  const bool in_use = std::ranges::any_of(coming.parts, [](const auto& part) { return part.use_count() > 1; });
  if (in_use && !even_in_use) return false;
  const auto loading = std::exchange(layered_, nullptr);
  {
    MutexLock lock(loading->layered->mutex);
    loading->layered->gone = true;
  }
  coming.broken = true;
  coming.parts.clear();
  for (Layered::Each& each : loading->layered->parts) each.arriving.table.reset();
  return !in_use;
}

}  // namespace kvilt
