// engine/prepare.h: makes a waiting request ready to run: finds what is cached of it, places that, plans the rest and
// takes its first pages.
// Threads:  the engine thread.
// Not here: which request is asked next (sched/scheduler.h), the search (engine/content_cache.h), computing.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/engine_parts.h"
#include "sched/scheduler.h"

namespace kvilt {

class Preparer {
 public:
  // parts must outlive it.
  explicit Preparer(const EngineParts& parts) : parts_(parts) {}

  // running: the sequences that run. moment: a count that grows when pages may have come free or content appeared;
  // while it stays the same, a sequence that found no room is not looked at again.
  Admission prepare(Sequence& sequence, std::span<const std::unique_ptr<Sequence>> running, uint64_t moment) const;

  // Back to what was placed at first: everything that was computed since is dropped.
  void place_again(Sequence& sequence) const;

 private:
  bool uses_cache(const Sequence& sequence) const;
  bool start(Sequence& sequence, bool may_wait) const;
  bool place_session(Sequence& sequence) const;
  PromptLayout place_found(Sequence& sequence) const;
  void place(Sequence& sequence, std::vector<Placement> placements, std::vector<Placement> overlays) const;
  void copy_placed(Sequence& sequence) const;

  const EngineParts& parts_;
};

}  // namespace kvilt
