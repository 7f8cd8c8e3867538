// engine/session.h: sessions that leave the engine and come back (kvilt/session.h).
// Threads: the engine thread.
#pragma once

#include <memory>

#include "kv/page_table.h"
#include "kv/session_file.h"
#include "kvilt/request.h"
#include "policy/policy.h"

namespace kvilt {

// Computes what follows the session's tokens with the session's views; everything, where the session's KV is not at
// hand. It looks for nothing in the cache.
std::unique_ptr<ReusePolicy> session_policy(std::vector<HeadKeep> keeps);

// The KV of all positions that `table` knows; the other tokens follow.
std::shared_ptr<const ExportedSession> export_kv(const PageTable& table, std::span<const int32_t> tokens,
                                                 const std::string& model);

}  // namespace kvilt
