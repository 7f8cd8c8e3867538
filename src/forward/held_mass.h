// forward/held_mass.h: how much of full attention the keys hold that rows saw: the recovered mass of methods that show
// rows few keys. For measurements (kvilt/request.h, Evaluation::held_mass).
// Idea:       a row's normaliser over the keys that it saw, divided by that over all keys before it, is the share of
//             its attention that they hold. So a second pass of some rows over all keys tells.
// Threads:    the engine thread; the kernel runs on the pool.
// Cost:       dense attention of one row in kHeldEvery, and of every row of an answer. Not in the request's account.
#pragma once

#include <span>

#include "forward/chunk.h"
#include "forward/looking_rows.h"

namespace kvilt {

inline constexpr int32_t kHeldEvery = 32;  // of a prompt's positions

// rows: as they attended, lse included; heads: those KV heads that would see all. Rows are numbered by position, query
// heads count alike.
HeldMass held_mass(const PreparedModel& model, const PageTable& kv, const RowsAt& rows, std::span<const int> heads,
                   ThreadPool& pool);

}  // namespace kvilt
