// engine/in_flight.h: what running prefills are computing and will publish, and whether a request should wait for it.
// Idea:       twenty questions over the same new documents, asked at once, would each compute them. A request waits
//             where a running prefill computes a good part of what it lacks, unless that takes much longer than
//             computing it here: then it would rather go first (sched/scheduler.h).
// Invariants: a request waits only for prefills that run now, each at most until it ends, and for kMostWaits of them in
//             all; only for what it can use: the exact part where its policy wants a prefix; new text anywhere where it
//             wants pieces, in its marks where it uses marked text only, and what a policy leaves behind a piece only
//             under the same policy; clean copies where it trusts nothing else; all of the same prompt under the same
//             policy.
// Threads:    the engine thread.
// Cost:       a comparison with each running prompt up to the first token that differs. For pieces, an index of what
//             the running ones compute: up to 35 ns a token, once a prefill and only while others wait.
// Not here:   what is cached (engine/content_cache.h).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "index/content_index.h"
#include "sched/sequence.h"

namespace kvilt {

class InFlight {
 public:
  static constexpr int kMostWaits = 4;

  // min_segment: the shortest piece that is looked for.
  explicit InFlight(int min_segment);

  // Of a request that was planned by what is cached now: whether it should wait for one of `running`. It is noted in
  // sequence.waited_for.
  bool worth_waiting(Sequence& sequence, std::span<const std::unique_ptr<Sequence>> running, const ModelConfig& config);

  // Positions of the prompt that `running` prefills are computing, where the policy could use them.
  Runs computed_by(const Sequence& sequence, std::span<const std::unique_ptr<Sequence>> running);

 private:
  struct Entry {  // a prefill of which the index has the new text
    RequestId id;
    uint32_t start;        // Sequence::starts
    SegmentId begin, end;  // its segments
  };
  using Others = std::vector<const Sequence*>;
  DomainId like(DomainId of_cache);
  void update(std::span<const std::unique_ptr<Sequence>> running);
  Runs pieces(const Sequence& sequence, const Others& others, Others& used);

  const int min_segment_;
  ContentIndex index_;
  std::vector<Entry> entries_;
  SegmentId next_ = 1;
};

}  // namespace kvilt
