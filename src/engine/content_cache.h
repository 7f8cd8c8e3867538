// engine/content_cache.h: the cache as the engine sees it: pool, cached segments and index in one place.
// Role:       finds what a prompt can reuse, publishes what a request computed, makes room when the pool is full.
// Invariants: only KV that equals a full prefill of its chain is published as exact prefix: that of the positions
//             before the prompt's first piece. Approximate KV is in the domains of the policy that left it: its pieces,
//             and whole prompts as chains, by which the next turn of a conversation goes on from what was repaired once
//             (docs/design/kv.md#chains). Clean copies of marked parts come before exact KV with other text in front,
//             and that before approximate KV; means over contexts, for those who want them, before all.
// Threads:    the engine thread.
// Not here:   policies (policy/), pages (kv/), the search itself (index/content_index.h).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "base/thread_pool.h"
#include "forward/hidden_rows.h"
#include "index/clip_pieces.h"
#include "index/content_index.h"
#include "kv/ghost_list.h"
#include "kv/mean_kv.h"
#include "kv/page_table.h"
#include "kv/segment_cache.h"
#include "kvilt/engine.h"
#include "policy/policy.h"

namespace kvilt {

// Whose cache: requests find what was left under an equal one. Texts are found in several namespaces while their KV is
// there once: what a request finds in another namespace than its own becomes a view in its own (views.cc).
struct KeySpace {
  std::string_view tenant = {}, name_space = {}, salt = {};
};

// A marked part of a prompt, and how many more contexts its mean should be over (kvilt/season.h).
struct LacksContexts {
  TokenMark mark;
  int contexts = 0;
};

class ContentCache {
 public:
  using Published = PublishedPrompt;
  // fingerprint: of the weights and of what else decides the bytes of KV (its type).
  ContentCache(PageStore store, const HashSecret& secret, std::string fingerprint, int min_segment);

  PageStore& store() { return store_; }
  int64_t reclaimable() const { return store_.idle().pages(); }  // pages that evicting would free now

  ContentDomains domains(const KeySpace& space) { return {.exact = domain("", space)}; }
  // For a policy (name and parameters) that reuses pieces: what it leaves is approximate, and only requests of the same
  // policy find it. Nothing of it is ever an exact prefix, nor a piece for others.
  ContentDomains domains(const KeySpace& space, const std::string& policy) {
    return {.exact = domain("", space),
            .approximate = domain("/approximate/" + policy, space),
            .chain = domain("/chain/" + policy, space)};
  }
  // Where pieces are kept as one policy left them in their last context.
  DomainId repaired_domain(const std::string& policy, const KeySpace& space) {
    return domain("/repaired/" + policy, space);
  }

  // Where marked parts are kept as the mean over their contexts.
  DomainId seasoned_domain(const KeySpace& space) { return domain("/seasoned", space); }

  struct Found {
    PromptLayout layout;
    std::vector<Placement> placements, overlays;  // overlays: of the chain (PageTable::overlay)
    ChainEnd exact, chain;                        // layout.prefix is the end of the one that is used
    std::vector<Piece> known;                     // what was found, by segment
    Runs begun;                                   // beginnings of marked parts that were found and are too short to use
    Runs near;                                    // of the pieces: in text that nearly repeats a segment's
    SearchCost cost;                              // of the search for pieces
    // Of what is placed, those of these segments.
    int32_t tokens_of(const std::vector<SegmentId>& segments) const;
    void drop_pieces() {  // the prefix stays
      layout.pieces.clear();
      layout.seasoned = 0;
      layout.near = 0;
      layout.look_alikes = 0;
      layout.piece_look_alikes.clear();
      layout.shared_context.clear();
      layout.spread.clear();
      std::erase_if(placements, [&](const Placement& p) { return p.pos >= layout.prefix; });
    }
  };
  struct Wanted {
    bool prefix = true, pieces = true;
    bool unmarked = true;      // false: pieces are cut to the marks
    bool clean_only = false;   // no pieces but clean copies of marked parts (index/clean_pieces.h)
    bool seasoned = false;     // pieces that are means over contexts come first, and serve where nothing else is known
    int32_t near = 0;          // > 0: runs of so many equal tokens too, where the text is nearly a segment's
    bool look_alikes = false;  // the layout says how many of the pieces' tokens are
    int32_t shared_context = 0;  // > 0: the layout says how many tokens before each piece it shares, up to so many
    int32_t chosen_by = 0;       // > 0: a chain's rows chose together, in blocks of so many positions
    bool make_clean = false;     // the prefix ends where the first marked part begins, unless that has a clean copy
  };
  // How much of the layout's pieces looks alike, of all together and of each. A layout whose pieces changed is measured
  // again.
  static void measure_look_alikes(std::span<const int32_t> prompt, PromptLayout& layout);
  // What is known of `prompt` (T tokens): at most T - 1 of them as prefix; pieces may cover the last one too. The prefix
  // is exact, or what an earlier request of the same policy left of the same text, where that reaches further by
  // kChainGain tokens or more.
  static constexpr int32_t kChainGain = 64;
  Found find(std::span<const int32_t> prompt, std::span<const TokenMark> marks, const ContentDomains& domains,
             Wanted wanted);

  // What of it is in other namespaces than the request's own: exact KV, and pieces that its policy computed.
  std::vector<Piece> elsewhere(const Found& found, const ContentDomains& domains) const;

  // With Wanted::seasoned: whether what was found of this text of the prompt comes before a clean copy of it. REQUIRES:
  // nothing has changed here since.
  bool before_clean(std::span<const int32_t> prompt, const Found& found, Run text) const;

  // Those marked parts of a prompt that have no clean copy for it (index/clean_pieces.h), but for the shortest.
  std::vector<TokenMark> without_clean_copy(std::span<const int32_t> prompt, std::span<const TokenMark> marks,
                                            const ContentDomains& domains) const;
  // Those marked parts of a prompt that are means over less than `contexts` contexts, or not kept as a mean at all; but
  // for the shortest.
  std::vector<LacksContexts> without_contexts(std::span<const int32_t> prompt, std::span<const TokenMark> marks,
                                              DomainId seasoned, int contexts) const;

  // True if `pages` pages are free, after evicting idle extents if need be: for this owner's sake.
  using Reach = IdleExtents::Reach;
  bool make_room(int64_t pages, OwnerId wanted_by = 0, Reach reach = Reach::kAll);
  int64_t room(OwnerId wanted_by, Reach reach);  // pages that it could make free, those that are included

  // ---- What is kept with preference, and for whom (retention.cc; docs/design/kv.md#shares-pins-and-frozen-texts)

  // Before anything is cached. The tenants' shares of the pool, each above 0, together 1 at most. others: tenants that
  // have a share elsewhere; all of these are told apart too.
  void set_shares(const std::map<std::string, double>& shares, const std::map<std::string, double>& others = {});
  // Whose extents a tenant's requests make. Beyond kMostOwners tenants all are nobody's in particular.
  static constexpr size_t kMostOwners = 1024;
  OwnerId owner(const std::string& tenant);
  const std::string& tenant_of(OwnerId owner) const { return tenants_[owner]; }  // empty: nobody's
  void tenant_pools(std::vector<TenantPool>& out) const;                         // out: of the last call

  static inline const Runs kNone{};
  // What a request computed itself: positions [0, computed) have their KV; from layout.prompt_len on, generated.
  struct Own {
    const PageTable& kv;
    const PromptLayout& layout;
    std::span<const int32_t> tokens;
    std::span<const TokenMark> marks;
    const ContentDomains& domains;
    int32_t computed = 0;
    ChainEnd exact = {}, chain = {};  // what Found had; then as the functions below returned them
    const Runs& recomputed = kNone;   // a piece without any of these is not kept as repaired
    std::span<KeptRows> kept = {};    // what the plan keeps; published with the segments, where `spare` pages hold it
    int64_t spare = 0;                // pages that no running request needs, evicted ones included
    RequestId request = 0;
    std::span<const Piece> elsewhere = {};  // of what was found: in the request's own namespace it becomes views
    KeptRows* mean_state = nullptr;  // what a mean's tokens get of it besides (policy/mean_state.h); null: nothing

    // Of the whole prompt: the exact part goes to the first piece, and is all of it if there is no piece; it is none if
    // the prefix is itself a chain, or rows saw few keys.
    int32_t exact_end() const { return exact.pos < layout.prefix || !kv.whole() ? layout.prefix : layout.exact_end(); }
  };
  // None of these functions publishes anything of a request whose heads keep less than all (PageTable::whole): its
  // segments would lack keys, and no dense pass computed them.
  // At the end of the prefill: the exact part after the prefix and every fresh run after a piece; the whole prompt as a
  // chain, if anything of it is approximate; also repaired pieces, each in place of what its last context left.
  Published publish_prompt(const Own& own);
  // Of a prefill that goes on, or was broken off: the exact part of positions [0, computed), as far as it is not
  // published yet. Returns where what is published ends now. goes_on: a marked part that has only begun is left for the
  // next time, so that one segment holds it whole.
  ChainEnd publish_part(const Own& own, bool goes_on = false);
  // At the end of the request, or when it is preempted: the answer, as an exact continuation, or as one approximate
  // segment with the prompt's last fresh run (so that a question and its answer are found together), and as what
  // continues the chain. of_prompt: what publish_prompt returned.
  void publish_answer(const Own& own, const Published& of_prompt);

  // What holds positions [0, end) of the request is kept with preference for so long from each use on. REQUIRES: what is
  // published of them has been.
  void retain(const Own& own, int32_t end, Retention retention);
  int64_t frozen_extents() const;  // in the lists of all names
  // What holds the whole prompt is frozen under a name of the tenant's, until it is thawed.
  void freeze(const Own& own, const std::string& tenant, const std::string& name);
  // Parts of the prompt, each under its name, as later prompts find them: a clean copy, else all pieces that hold its
  // text, until there is one. REQUIRES: what is published of them has been.
  void freeze(const Own& own, const std::string& tenant, std::span<const FrozenPart> parts);
  // All names that begin so.
  void thaw(const std::string& tenant, const std::string& name);

  // Stores what was found out about placed tokens with their segment, where `spare` pages hold it.
  void attach(const PageTable& kv, const AnnexBlock& block, int64_t spare);

  // The marked parts that the request computed exactly count as one more context of theirs, unless they have `most`
  // already. Their means are kept apart from everything else (kv/mean_kv.h), where there is room for them. Returns
  // Completion::contexts.
  std::vector<int> season(const Own& own, ThreadPool& pool, int most = kMostContexts);
  // What a pass needs for that besides its own KV: the means as they are, which stay until the new ones are there, and
  // pages for these and for the states of their tokens, so many bytes each.
  struct MeansToMake {
    std::vector<PinnedPages> old;
    int64_t pages = 0;
  };
  MeansToMake means_to_make(std::span<const int32_t> prompt, std::span<const TokenMark> marks, DomainId seasoned,
                            int64_t state_bytes) const;

  void clear();
  // From now on the cached texts' continuations can be found (ContentIndex::find_continuation).
  void keep_continuations() { index_.keep_continuations(); }

  // From now on the listener hears what can be found (index/index_listener.h). It must outlive the cache.
  void listen(IndexListener* listener);
  // A part more of what was known before near duplicates were asked for first (ContentIndex::near_more).
  void near_more() { index_.near_more(kNearTokens); }
  bool near_waits() const { return index_.near_waits(); }  // parts are left
  // Tells it everything again, a part at a time: see ContentIndex.
  void tell_again() { index_.tell_again(); }
  bool tell_more() { return index_.tell_more(kTellTokens); }
  std::vector<uint64_t> block_keys() const { return index_.block_keys(); }  // for tests
  const SegmentCache& segments() const { return segments_; }
  // The piece as a patch. REQUIRES: it was just found.
  PromptPatch patch_of(const Piece& piece, PatchKind kind) const;
  const ContentIndex& index() const { return index_; }

  // ---- For what is kept outside of memory (engine/disk_cache.h)

  // Called for each segment that is about to lose tokens to an eviction, while it has them all. It must not change
  // anything here.
  void on_evict(std::function<void(SegmentId)> call) { on_evict_ = std::move(call); }
  // Called for each segment when it can be found.
  void on_enter(std::function<void(SegmentId)> call) { on_enter_ = std::move(call); }
  struct Returned {
    std::span<const int32_t> tokens;
    DomainId domain = 0;
    bool exact = false;
    std::optional<std::span<const int32_t>>
        continues;        // exact KV behind these tokens, from position 0 on; else a piece
    ChainEnd reach = {};  // how much of them was found to be cached: it is not hashed again
    Runs marks;           // of the tokens, as the notes
    std::vector<CleanNote> clean;
  };
  // Tokens that were cached before and are again, with their KV at `positions` of the table. 0: they could not be found.
  SegmentId adopt(const PageTable& kv, Run positions, const Returned& returned);
  bool exact(SegmentId id) const { return index_.info(id).exact; }  // REQUIRES: it is cached
  int64_t evicted() const { return evicted_; }                      // extents
  int64_t evicted_segments() const { return evicted_segments_; }    // of which nothing is left
  // Tokens of exact blocks that were evicted, and of those that were computed anew soon afterwards (kv/ghost_list.h).
  int64_t evicted_tokens() const { return evicted_tokens_; }
  int64_t regretted_tokens() const { return regretted_tokens_; }
  const SeasonedCount& seasoned() const { return index_.seasoned(); }

 private:
  static constexpr int64_t kTellTokens = 1 << 14;  // in one step of the engine: well below a millisecond
  static constexpr int64_t kNearTokens = 1 << 10;  // some milliseconds, where tables grow meanwhile and pages are new
  struct Parent {
    SegmentId segment = 0;
    int32_t tokens = 0;
  };
  DomainId domain(const std::string& of, const KeySpace& space) {
    return index_.domain(fingerprint_ + of, space.name_space, space.salt, space.tenant);
  }
  bool keeps(const TokenMark& mark, Run run) const;
  void enter(CachedSegment segment, SegmentInfo info, const Runs& marks = {});
  SegmentId insert(const Own& own, DomainId domain, Run positions, bool exact, Parent parent);
  void attach_kept(const Own& own, const KvSegment& kv);
  void add_views(const Own& own);
  ChainEnd add_view(const Own& own, const Piece& piece, const ChainEnd& behind);
  ChainEnd publish_exact(const Own& own, int32_t end);
  ChainEnd publish_chain(const Own& own, int32_t end);
  const CachedSegment* copy_of(std::span<const int32_t> tokens, DomainId domain) const;
  void mark_prefix(const Own& own);
  void publish_repaired(const Own& own);
  std::optional<Piece> holder_of(std::span<const int32_t> tokens, DomainId domain) const;
  struct NewMean {
    int contexts = 0;  // 0: this one was not added
    std::shared_ptr<const KvSegment> kv = nullptr;
    PinnedPages pages = {};              // it stays until its states are there
    std::vector<std::byte> states = {};  // of its tokens; none: they are not known
  };
  NewMean season(const Own& own, const TokenMark& mark, ThreadPool& pool, int most);
  std::vector<std::byte> states_of(const Own& own, const MeanPart& now, const CachedSegment* old) const;
  void attach_state(const Own& own, const NewMean& mean);
  std::optional<PinnedPages> pinned_mean(std::span<const int32_t> tokens, DomainId seasoned) const;
  std::vector<SegmentId> parts_of_mean(std::span<const int32_t> tokens, DomainId seasoned) const;
  std::optional<SegmentId> known_exactly(const Own& own, int32_t end);
  struct Search;
  std::vector<Piece> find_pieces(const Search& search) const;
  std::vector<Piece> find_clean(std::span<const int32_t> prompt, std::span<const Run> marks,
                                const ContentDomains& domains) const;
  std::vector<Piece> find_means(std::span<const int32_t> prompt, const ClipRules& rules, const ContentDomains& domains,
                                SearchCost& cost) const;
  bool is_whole(const Piece& piece, const ClipRules& rules) const;
  bool covers(const Piece& copy, Run text) const;
  bool in_same_context(std::span<const int32_t> prompt, Run text, std::span<const Piece> exact) const;
  Runs add_near(const Search& search, std::vector<Piece>& pieces) const;
  void erase(SegmentId id);
  void evict(Extent& extent);
  void remember(SegmentId id, const Runs& lost, bool again);
  void regret(SegmentId id, const SegmentPart& part, OwnerId owner);
  std::vector<ExtentKeep> extents_of(const Own& own, int32_t end) const;
  std::vector<ExtentKeep> extents_of(std::span<const Piece> pieces) const;
  std::vector<Piece> holders_of(const Own& own, const TokenMark& part) const;
  void freeze(const std::vector<ExtentKeep>& extents, const std::string& tenant, const std::string& name);
  void forget_frozen(Extent& extent);
  void thaw_all();
  void cut(SegmentId id, const Runs& lost);
  static constexpr int64_t kChainTokens = 4;  // some 20 bytes each, where KV of a small model has 12,288
  int32_t least_left(const CachedSegment& segment) const;
  void bound_chains(SegmentId continued);
  int64_t pool_tokens() const;

  PageStore store_;  // before segments_: pages return to it
  SegmentCache segments_;
  ContentIndex index_;
  IndexListener* listener_ = nullptr;
  const std::string fingerprint_;
  const int min_segment_;
  std::function<void(SegmentId)> on_evict_, on_enter_;
  GhostList ghosts_;
  OwnerId add_owner(const std::string& tenant, double share);
  std::map<std::string, OwnerId> owners_;
  std::vector<std::string> tenants_ = {""};  // by OwnerId
  struct Frozen {
    uint64_t number = 0;
    std::vector<ExtentKeep> extents;
  };
  std::map<std::string, Frozen> frozen_;  // by tenant, a zero byte and the name
  std::map<uint64_t, std::map<std::string, Frozen>::iterator> frozen_by_number_;
  uint64_t last_frozen_ = 0;
  int64_t evicted_ = 0, evicted_segments_ = 0, evicted_tokens_ = 0, regretted_tokens_ = 0;
};

}  // namespace kvilt
