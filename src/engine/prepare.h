// engine/prepare.h: makes a waiting request ready to run: finds what is cached of it, places that, plans the rest, and
// says what pages that takes. A request waits instead where another is computing now what it needs.
// Threads:  the engine thread.
// Not here: which request is asked next, and whether there is room for it (sched/scheduler.h); the search
//           (engine/content_cache.h); computing.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine_parts.h"
#include "engine/in_flight.h"
#include "sched/scheduler.h"

namespace kvilt {

class Preparer {
 public:
  // parts must outlive it.
  explicit Preparer(const EngineParts& parts) : parts_(parts), in_flight_(parts.options.min_segment) {}

  // Finds, places and plans: `sequence` has its page table and its prefill, but for a session no pages. running: the
  // sequences that run.
  Admission plan(Sequence& sequence, std::span<const std::unique_ptr<Sequence>> running);
  // It runs now.
  void start(Sequence& sequence) const;
  // Pages that are free, or that dropping cached segments would free.
  int64_t available() const;

  // Back to what was placed at first: everything that was computed since is dropped.
  void place_again(Sequence& sequence) const;

 private:
  bool uses_cache(const Sequence& sequence) const;
  bool place_session(Sequence& sequence) const;
  void take_session(Sequence& sequence) const;
  std::optional<PromptLayout> place_found(Sequence& sequence) const;
  bool waits_for_disk(Sequence& sequence, const ContentCache::Wanted& wanted, const ContentCache::Found& found) const;
  bool waits_for_peer(Sequence& sequence, const ContentCache::Wanted& wanted, const ContentCache::Found& found) const;
  void note(Sequence& sequence, const ContentCache::Found& found) const;
  void place(Sequence& sequence, std::vector<Placement> placements, std::vector<Placement> overlays) const;
  void copy_placed(Sequence& sequence) const;

  const EngineParts& parts_;
  InFlight in_flight_;
};

}  // namespace kvilt
