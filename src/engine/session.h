// engine/session.h: sessions that leave the engine and come back (kvilt/session.h).
// Threads: the engine thread.
#pragma once

#include <memory>

#include "kv/page_table.h"
#include "kv/session_file.h"
#include "kvilt/request.h"
#include "policy/policy.h"

namespace kvilt {

// What stands behind the session's tokens is computed with its views, and so is everything where the session's KV is not at
// hand. It looks for nothing.
std::unique_ptr<ReusePolicy> session_policy(std::vector<HeadKeep> keeps);

// The KV of all positions that `table` knows; the other tokens follow.
std::shared_ptr<const ExportedSession> export_kv(const PageTable& table, std::span<const int32_t> tokens,
                                                 const std::string& model);

}  // namespace kvilt
