// engine/prepare.h: makes a waiting request ready to run: finds what is cached of it, places that, plans the rest, and
// says what pages that takes. A request waits instead where another is computing now what it needs.
// Threads:  the engine thread.
// Not here: which request is asked next, and whether there is room for it (sched/scheduler.h); the search
//           (engine/content_cache.h); computing.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/engine_parts.h"
#include "engine/in_flight.h"
#include "sched/scheduler.h"

namespace kvilt {

class Preparer {
 public:
  // Frees pages for the owner, as the loop does it for a running request.
  using MakeRoom = std::function<bool(int64_t pages, OwnerId owner)>;
  // parts must outlive it.
  Preparer(const EngineParts& parts, MakeRoom make_room)
      : parts_(parts), make_room_(std::move(make_room)), in_flight_(parts.options.min_segment) {}

  // Finds, places and plans: `sequence` has its page table and its prefill, but for a session no pages. running: the
  // sequences that run.
  Admission plan(Sequence& sequence, std::span<const std::unique_ptr<Sequence>> running);
  // Of a running sequence whose prefix is still coming: how much of it is there. When all of it is cached, the sequence
  // is as others are.
  void take_layers(Sequence& sequence) const;
  // It runs now.
  void start(Sequence& sequence) const;
  // Pages that are free, or that dropping cached segments would free.
  int64_t available() const;

  // Back to what was placed at first: everything that was computed since is dropped.
  void place_again(Sequence& sequence) const;

 private:
  bool uses_cache(const Sequence& sequence) const;
  Status place_session(Sequence& sequence) const;  // kExhausted: there is no room for it
  void take_session(Sequence& sequence) const;
  ContentCache::Wanted wanted_of(const Sequence& sequence) const;
  std::optional<PromptLayout> place_found(Sequence& sequence) const;
  std::optional<PromptLayout> place_coming(Sequence& sequence) const;
  bool waits_for_disk(Sequence& sequence, const ContentCache::Wanted& wanted, const ContentCache::Found& found) const;
  bool waits_for_peer(Sequence& sequence, const ContentCache::Wanted& wanted, const ContentCache::Found& found) const;
  void note(Sequence& sequence, const ContentCache::Found& found) const;
  void place(Sequence& sequence, std::vector<Placement> placements, std::vector<Placement> overlays) const;
  bool copies_placed(const Sequence& sequence) const;
  void copy_placed(Sequence& sequence) const;

  const EngineParts& parts_;
  const MakeRoom make_room_;
  InFlight in_flight_;
};

}  // namespace kvilt
