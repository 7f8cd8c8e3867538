// sched/sequence.h: one request on its way: tokens, policy, prefill, pages. Plain data that scheduler and engine share.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "forward/driver.h"
#include "forward/sampler.h"
#include "index/cached_segment.h"
#include "kv/page_table.h"
#include "kvilt/request.h"
#include "policy/policy.h"
#include "sched/prefill.h"
#include "sched/turns.h"

namespace kvilt {

using Clock = std::chrono::steady_clock;

inline double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// A decode step as a plan: one row, or some with drafts, through all layers, with the prefill's views. Rebuilt in place
// every step.
struct DecodeRow {
  Plan plan;
  Band band;
  std::vector<Runs> unseen;    // as the prefill's last stage has it
  std::optional<FarKeys> far;  // the same
  void take_views(const Plan& prefill);
  void set(Run rows, const ModelConfig& config);
};

// What was found of a prompt, for Completion::quilt.
struct FoundNotes {
  std::vector<PromptPatch> patches;              // prefix and pieces, in order
  Runs declined, begun, unmarked, running;       // begun: ContentCache::Found's
  bool refused = false, pieces_refused = false;  // nothing is looked for; no pieces are
};

// What a request hears that asks to start.
enum class Admission : uint8_t {
  kReady,
  kNoRoom,  // nobody after it may take the pages that it waits for
  kLater,   // it waits for something else than pages; those after it may pass
};

// Cached KV that is read from a tier for requests that wait (engine/disk_cache.h).
struct Fetch {
  bool done = false;                // or nobody waits any longer
  std::atomic<bool> left{false};    // by all who waited, before it was there: it is not read on
  bool late = false;                // it took too long
  bool remote = false;              // from a shared tier, not from disk
  std::vector<SegmentId> segments;  // that it became
  // Or of a prompt whose heads have views: what the prefill server left, instead of segments.
  std::shared_ptr<const ExportedSession> session = nullptr;

  // Of the rest of an exact prefix that comes layer by layer, whose pages are there from the beginning on: a request may
  // run on it before the last layer came (docs/design/disk.md#layer-by-layer). Nobody else sees it until it is cached.
  struct Coming {
    std::vector<int32_t> prompt;                          // all tokens up to its end
    std::vector<std::shared_ptr<const KvSegment>> parts;  // in order, of the prompt's own positions
    int layers = 0;                                       // that are there of all parts: less than the model has
    bool broken = false;                                  // the rest will not come: whoever runs on it starts again
  };
  Coming coming = {};  // no parts: there is nothing to run on yet
};

struct Sequence {
  RequestId id = 0;
  Turn turn;  // its place among all: given when it comes, and kept
  Request request;
  std::shared_ptr<TokenSink> sink;
  std::unique_ptr<ReusePolicy> policy;
  ContentDomains domains;       // of the content index
  OwnerId owner = 0;            // whose its pages are
  bool clean_only = false;      // pieces are clean copies only
  bool from_seasoned = false;   // seasoned pieces come first
  bool near = false;            // pieces are looked for in text that nearly repeats what is cached too
  bool idle_work = false;       // nobody waits for it: its steps are short, so that whoever comes waits little
  std::vector<int32_t> tokens;  // the prompt, then what was generated
  int32_t prompt_len = 0;       // of the request
  int32_t max_len = 0;          // tokens.size() never exceeds it

  int32_t session_len = 0;    // positions that request.session holds; 0: there is none
  int64_t session_pages = 0;  // that importing it takes at most

  // What it has while it runs. Preemption drops all of it (`running = {}`): a field that must survive belongs outside.
  struct Running {
    std::unique_ptr<PageTable> kv;
    std::unique_ptr<Prefill> prefill;  // null once decoding
    // While a prefill guesses: the prompt, then its guesses. In a step with drafts: the last token, then these.
    std::vector<int32_t> ahead;
    int32_t prefill_len = 0;               // tokens.size() when the prefill was planned
    std::vector<float> logits;             // V, of the step just run
    std::vector<float> last_hidden;        // D, of the prefill, with Request::last_hidden
    std::optional<PromptScores> scores;    // of a prefill that scores its prompt
    double row_cost = 1;                   // of its rows in a step's budget: those whose logits are wanted cost more
    FoundNotes notes;                      // with Request::explain
    ChainEnd exact, chain;                 // what of its tokens was found as an exact prefix, and as a chain
    std::vector<Piece> elsewhere;          // what it placed from other namespaces than its own
    int32_t from_disk = 0;                 // tokens that were placed, of segments that it had waited for
    int32_t from_remote = 0;               // the same, of those from a shared tier
    std::shared_ptr<const Fetch> runs_on;  // what its exact prefix is still coming from (Fetch::coming)
    bool ran_ahead = false;                // it did so: its time tells nothing of computing
    std::vector<PinnedPages> means;        // with Request::season: those that it adds to stay until then

    // As the scheduler counts pages. promised: the most that kv will hold, as far as is known. Not in the pool, in
    // pages: outside: a prefill's hidden states; choosing: what a decode rule keeps, to the answer's end. band_pages:
    // that the current band takes; -1: not counted yet.
    int64_t promised = 0, outside = 0, choosing = 0, band_pages = -1;
    uint64_t step = 0;  // the last one that it has rows in

    // From the end of the prefill on.
    PromptLayout layout;  // of the prefill, for publishing the answer
    DecodeRow decode;
    std::unique_ptr<SelectedKeys> keys;  // of a plan with a decode rule, from the prefill on
    bool own_kv = false;                 // the plan was narrowed: what it computed is not published
    std::vector<int32_t> draft;          // of the step that runs: what may follow the last token (engine/drafts.h)
    std::vector<int32_t> drawn;          // by it: one token, and one more for each right one of the draft
    std::vector<TokenLogprob> logprobs;  // of these, with SamplingParams::logprobs
    PublishedPrompt published;
  };
  Running running;

  std::vector<std::shared_ptr<const Fetch>> fetches;  // all that it waited for, or waits for: the last one
  bool asked_peer = false;                            // one of them is the peer's

  std::optional<Sampler> sampler;
  bool without_cache = false;  // what it placed kept it from going on: it starts again and places nothing
  struct Asked {               // whether it could start, when the scheduler asked last
    uint64_t moment = 0;       // the answer holds until something has changed since; 0: never asked
    Admission answer = Admission::kReady;
    int64_t rows = 0;  // of its plan
    int64_t room = 0;  // kNoRoom: pages that must be free for it
  };
  Asked asked;
  uint32_t starts = 0;                             // how often it began to run: two starts can have different plans
  std::vector<RequestId> waited_for;               // requests whose prefill it waited for
  std::optional<Clock::time_point> lingers_until;  // its client is gone (engine/lingering.h): nobody hears of it
  bool started = false;                            // a step has worked for it
  bool prompt_told = false;                        // TokenSink::on_prompt was called
  Clock::time_point submitted, first_step, first_token;
  PromptUsage usage;
  Work work;          // of the prefill
  int64_t rows = 0;   // that its prefill has run
  int processed = 0;  // PromptProgress, as it was told last
  HeldMass decode_held;
  Completion completion;

  bool decoding() const { return running.kv && !running.prefill; }
  // Its prefill makes log probabilities of the prompt, for which every row is computed.
  bool scores_prompt() const { return request.prompt_logprobs >= 0 && !prompt_told; }
  // Pages that it was promised and does not hold yet; those that stand for memory outside of the pool are never held.
  // An answer that grows is promised a page for each head, so that it does not at once preempt who came after it.
  int64_t owed() const {
    if (!running.kv) return 0;
    const KvShape& shape = running.kv->shape();
    const bool grows = static_cast<int32_t>(tokens.size()) < max_len;
    if (decoding()) return (grows ? int64_t{shape.L} * shape.G : 0) + running.choosing;
    return std::max<int64_t>(0, running.promised - running.kv->private_pages()) + running.outside + running.choosing;
  }
};

}  // namespace kvilt
