// engine/content_cache.h: the cache as the engine sees it: pool, cached segments and index in one place.
// Role:       finds what a prompt can reuse, publishes what a request computed, makes room when the pool is full.
// Invariants: only KV that equals a full prefill of its chain is published as exact prefix: that of the positions
//             before the prompt's first piece. Approximate KV is found as segments only, never as a prefix. Clean
//             copies of marked parts come before exact KV with other text in front, and that before approximate KV.
// Threads:    the engine thread.
// Not here:   policies (policy/), pages (kv/), the search itself (index/content_index.h).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "index/content_index.h"
#include "kv/page_table.h"
#include "kv/segment_cache.h"
#include "kvilt/engine.h"
#include "policy/policy.h"

namespace kvilt {

class ContentCache {
 public:
  // fingerprint: of the weights and of what else decides the bytes of KV (its type).
  ContentCache(PageStore store, const HashSecret& secret, std::string fingerprint, int min_segment);

  PageStore& store() { return store_; }
  DomainId domain(const std::string& name_space, const std::string& salt) {
    return index_.domain(fingerprint_, name_space, salt);
  }
  // Where pieces are kept as one policy (name and parameters) left them in their last context: a domain of its own, so
  // that requests of other policies do not find them. Nothing in it is ever a prefix.
  DomainId repaired_domain(const std::string& policy, const std::string& name_space, const std::string& salt) {
    return index_.domain(fingerprint_ + "/repaired/" + policy, name_space, salt);
  }

  struct Found {
    PromptLayout layout;
    std::vector<Placement> placements;
    void drop_pieces() {  // the exact prefix stays
      layout.pieces.clear();
      std::erase_if(placements, [&](const Placement& p) { return p.pos >= layout.prefix; });
    }
  };
  struct Wanted {
    bool prefix = true, segments = true;
    DomainId repaired = 0;    // not 0: pieces that this domain has too are taken from there
    bool unmarked = true;     // false: pieces are cut to the marks
    bool clean_only = false;  // no pieces but clean copies of marked parts (index/clean_pieces.h)
    bool make_clean = false;  // the prefix ends where the first marked part begins, unless that has a clean copy
  };
  // What is known of `prompt` (T tokens): at most T - 1 of them as exact prefix; pieces may cover the last one too.
  Found find(std::span<const int32_t> prompt, std::span<const TokenMark> marks, DomainId domain, Wanted wanted);

  // Those marked parts of a prompt that have no clean copy for it (index/clean_pieces.h), but for the shortest.
  std::vector<TokenMark> without_clean_copy(std::span<const int32_t> prompt, std::span<const TokenMark> marks,
                                            DomainId domain) const;

  // True if `pages` pages are free, after dropping the least recently used segments if need be.
  bool make_room(int64_t pages);

  // What a request computed itself: positions [0, computed) have their KV; from layout.prompt_len on, generated.
  struct Own {
    const PageTable& kv;
    const PromptLayout& layout;
    std::span<const int32_t> tokens;
    std::span<const TokenMark> marks;
    DomainId domain;
    int32_t computed;
    DomainId repaired = 0;  // not 0: pieces of which all KV is the request's own now are kept there
    Runs recomputed = {};   // a piece without any of these is not kept as repaired
  };
  // Neither function publishes anything of a request whose heads keep less than all (PageTable::whole): its segments
  // would lack keys, and no dense pass computed them.
  //
  // At the end of the prefill: the exact part after the prefix and every fresh run after a piece; also repaired pieces,
  // each in place of what its last context left. Returns the ids of the former.
  std::vector<SegmentId> publish_prompt(const Own& own);
  // At the end of the request: the answer, as an exact continuation, or as one approximate segment with the prompt's
  // last fresh run (so that a question and its answer are found together). of_prompt: what publish_prompt returned.
  void publish_answer(const Own& own, std::span<const SegmentId> of_prompt);

  void clear();
  const SegmentCache& segments() const { return segments_; }
  int64_t evicted() const { return evicted_; }

 private:
  struct Parent {
    SegmentId segment = 0;
    int32_t tokens = 0;
  };
  SegmentId insert(const Own& own, DomainId domain, Run positions, bool exact, Parent parent);
  void publish_repaired(const Own& own);
  std::shared_ptr<const KvSegment> use(SegmentId id);
  void touch_prefix(const Own& own);
  std::optional<SegmentId> known_exactly(const Own& own, int32_t end);

  PageStore store_;  // before segments_: pages return to it
  SegmentCache segments_;
  ContentIndex index_;
  const std::string fingerprint_;
  const int min_segment_;
  int64_t evicted_ = 0;
};

}  // namespace kvilt
