// engine/engine_parts.h: what the engine thread works with; open_engine builds it before the thread starts.
#pragma once

#include <memory>
#include <vector>

#include "engine/content_cache.h"
#include "engine/disk_cache.h"
#include "engine/options.h"
#include "engine/peer_cache.h"
#include "events/publisher.h"
#include "forward/prepared_model.h"

namespace kvilt {

struct EngineParts {
  ResolvedOptions options;
  std::shared_ptr<const ModelFile> file;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<PreparedModel> model;
  std::unique_ptr<KvEventPublisher> events;  // null: nobody hears of the cache
  std::unique_ptr<ContentCache> cache;
  std::vector<std::unique_ptr<DiskCache>> stores;  // in the order in which requests ask them: disk, shared
  std::unique_ptr<PeerCache> peer;                 // asked after them; null: there is none

  // Whatever has KV beside memory: calls visitor(source) for the stores, then for the peer.
  template <class Visitor>
  void each_source(Visitor&& visitor) const {
    for (const auto& store : stores) visitor(*store);
    if (peer) visitor(*peer);
  }
};

}  // namespace kvilt
