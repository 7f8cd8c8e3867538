// kvilt/request.h: a request, what becomes of it, and the sink that hears of it; plain data of the public interface.
// Role:  the words that server, engine, scheduler and sampler share (kvilt/engine.h has the engine itself).
// Units: tokens, seconds, bytes, floating point operations (a multiply-add is two).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvilt/constraint.h"
#include "kvilt/explain.h"
#include "kvilt/result.h"
#include "kvilt/retention.h"

namespace kvilt {

// A part of the prompt that the caller marked as one piece (cache_control, documents): tokens [begin, end). Where
// nothing is said about quality it is the consent to reuse it approximately.
struct TokenMark {
  int32_t begin = 0, end = 0;
};

// Marks of one prompt: more are an error. Each is a piece of its own, with a seam on both sides.
inline constexpr int kMaxMarks = 4096;

// Tokens that are drafted at once at most (EngineOptions::draft).
inline constexpr int kMostDrafted = 64;

// Contexts over which a marked part's KV is averaged at most (Request::season); more leave its mean as it is.
inline constexpr int kMostContexts = 16;

// A text of the caller's in a chat's prompt: tokens [begin, end). A change of one part changes no ids of the others.
struct PromptPart {
  enum class Of : uint8_t { kMessage, kDocument };
  Of of = Of::kMessage;
  int32_t index = 0, part = -1;  // messages[index].content[part]; -1: the content is one string
  int32_t begin = 0, end = 0;
};

// The prompt's first `tokens` tokens are kept with preference for a time from each use on: within bounds, and not longer
// than requests can do without their room (docs/design/kv.md#shares-pins-and-frozen-texts).
struct KeptPrefix {
  int32_t tokens = 0;
  Retention retention = Retention::kNone;
};

// A marked part whose KV is frozen under this name of the tenant's when the prompt is published, until Engine::thaw: what
// later prompts find of its text, whoever computed it.
struct FrozenPart {
  TokenMark tokens;
  std::string name;
  // Set by who is about to thaw the name: from then on nothing is frozen under it for this part. Null: that never comes.
  std::shared_ptr<const std::atomic<bool>> withdrawn = nullptr;
};

// Where a chat's documents are: where the template has a place for them, or else in the first user message, which is made
// if there is none.
enum class DocumentsPlace : uint8_t { kNone, kTemplate, kFirstUserMessage, kMadeUserMessage };

struct Prompt {
  std::vector<int32_t> ids;
  std::vector<TokenMark> marks;  // sorted, disjoint, at most kMaxMarks; those of less than 8 tokens have no effect
  std::vector<PromptPart> parts = {};                // of a chat's, in order
  int folded = 0;                                    // lines that EngineOptions::fold_volatile changed
  std::vector<KeptPrefix> kept = {};                 // of what has cache_control
  bool opens_reasoning = false;                      // a chat's prompt ended with AnswerSyntax::reasoning_begin
  DocumentsPlace documents = DocumentsPlace::kNone;  // of a chat with some
  std::vector<FrozenPart> frozen = {};               // documents that the caller keeps under names

  // Adds tokens at the end as one marked part.
  void add_marked(std::span<const int32_t> part) {
    const auto begin = static_cast<int32_t>(ids.size());
    ids.insert(ids.end(), part.begin(), part.end());
    marks.push_back({begin, static_cast<int32_t>(ids.size())});
  }
};

struct SamplingParams {
  int max_tokens = -1;  // -1: until the context is full; 0: prefill only (warms the cache)
  float temperature = 1, top_p = 1, min_p = 0;
  int top_k = 0;  // 0: all
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  int penalty_window = -1;  // tokens before the next one that these count; -1: all, 0: they do nothing
  std::map<int32_t, float> logit_bias = {};
  std::vector<int32_t> allowed_ids = {};  // only these are drawn; empty: all
  std::optional<uint64_t> seed = {};
  std::vector<std::string> stop = {};  // text; not part of the answer
  std::vector<int32_t> stop_ids = {};
  std::vector<int32_t> shown_ids = {};  // control tokens whose text is part of the answer's; that of others is not
  bool ignore_eos = false;
  // So many are drawn before an end token can be, and before a stop text ends the answer. Not with a constraint.
  int min_tokens = 0;
  int logprobs = -1;  // -1: none; n: those of the chosen token and of the n most likely ones
  // They are of what tokens are drawn from, behind penalties, temperature and filters: what those leave out is not among
  // the likely ones. False: the model's own, of the tokens that a constraint allows.
  bool drawn_logprobs = false;
  // For code: the answer ends, as with max_tokens, before a line that begins with fewer blanks or tabs (its first line may;
  // 0: any), and with the first line that is whole so many seconds after the first token (less than 0: any time).
  int min_indent = 0;
  double line_seconds = -1;
};

struct PolicyChoice {
  // Empty: `auto` if params have a "quality", else the engine's default. What is asked for by name is for all text; the
  // engine's own default reuses approximately only what Prompt::marks name (EngineOptions::quality).
  std::string name;
  // "reuse_from", "discover" and "trust" (kvilt/options.h), and the policy's own parameters,
  // e.g. {"quality": "exact"} or {"k": "0.15", "l_star": "4"}; "budget" is each policy's main dial
  std::map<std::string, std::string> params;
};

// A request's KV as bytes (docs/formats/session.md, kvilt/session.h): for each KV head what it keeps.
struct ExportedSession {
  std::vector<std::byte> bytes;
  int64_t kv = 0;     // how many of them are rows of keys and values
  int64_t dense = 0;  // how many those would be if every head kept everything
};

// What measurements ask for and a server does not; by default nothing. Results: Completion::logits.
struct Evaluation {
  // Teacher forcing: the answer's tokens are these. Empty: they are sampled.
  std::vector<int32_t> forced = {};
  bool first_logits = false;  // EvaluationLogits::first is filled; with `forced`, EvaluationLogits::all too
  int prompt_logits = 0;      // EvaluationLogits::prompt is filled, for this many of the prompt's last tokens
  bool held_mass = false;     // PromptUsage::held_mass and decode_held_mass are measured, which takes time
  bool all_logits = false;    // EvaluationLogits::all is filled without `forced` too: V floats a token
  // What is drafted (EngineOptions::draft) instead of what is found: token n of the answer is guessed to be drafts[n].
  std::vector<int32_t> drafts = {};
};

struct EvaluationLogits {
  std::vector<float> first;  // V: what chose the first token
  // After each of the prompt's last Evaluation::prompt_logits tokens (fewer where an exact prefix holds them), V each.
  std::vector<std::vector<float>> prompt;
  // Per sampled token, V each; where an end token ended the answer, its logits come last.
  std::vector<std::vector<float>> all;
};

inline constexpr size_t kMostNamespaces = 8;  // that a request looks in

struct Request {
  Prompt prompt = {};
  SamplingParams sampling = {};
  Constraint constraint = {};  // not with sampling.ignore_eos, nor with evaluation.forced
  PolicyChoice policy = {};
  // Whose request this is. Requests find what requests of the same tenant and salt left in a namespace that they name,
  // and nothing else. Not "(peer)", whose work a prefill server's answers to decode servers are.
  std::string tenant = "";
  // What is in an earlier one is taken first. What this request leaves goes to the first. None: the common one, "".
  std::vector<std::string> namespaces = {};
  std::string cache_salt = "";
  bool publish = true;  // keep this request's KV for later ones
  // The first marked part is computed behind the text before it even where a copy with other text in its KV is cached
  // (EngineOptions::trust). With policy "prefix" and max_tokens 0 it warms a document.
  bool clean_copy = false;
  // Marked parts that this request computes exactly count as one more context of theirs: the mean over contexts of a
  // part's KV is kept apart and found with reuse_from=seasoned (docs/math/seasoning.md). Whether or not it publishes.
  bool season = false;
  bool progress = false;           // TokenSink::on_progress is called
  Explain explain = Explain::kNo;  // Completion::quilt is filled
  // Tokens that are drafted at once at most; -1: as EngineOptions::draft says, which is the most, and as many as pay of
  // what the constraint leaves next; 0: none of either.
  int draft = -1;
  // The prompt's KV is frozen under this name of the tenant's, until Engine::thaw: it outlives what is ordinary.
  std::string frozen_as = "";
  Evaluation evaluation = {};
  // Completion::last_hidden is filled; with max_tokens 0 nothing else is made. Approximate reuse changes it too.
  bool last_hidden = false;
  // TokenSink::on_prompt is called: with the log probabilities of the prompt's tokens, and of the n most likely ones at
  // each place. -1: it is not. All of the prompt is computed for it: a cached token has no logits. Not with `session`.
  int prompt_logprobs = -1;
  // Completion::session is filled: with max_tokens 1 another process decodes what was prefilled here.
  bool export_session = false;
  // KV of the prompt's first tokens, exported by an engine of this model: the prompt must begin with the session's
  // tokens and have at least one more. The rest is computed after it with the session's views; `policy` must be empty,
  // and nothing is published.
  std::shared_ptr<const ExportedSession> session = nullptr;
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top = {};  // most likely first
  int32_t rank = 1;                                 // 1: the most likely one
};

// One or more tokens of an answer. `text` is what became certain with them: whole UTF-8 texts, nothing of a stop text.
struct TokenDelta {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<TokenLogprob> logprobs;  // with SamplingParams::logprobs >= 0
};

// One sum for each class of KV heads (docs/formats/head_map.md). A head that was made local, or restored, counts as
// what it is in this request; heads of requests without head classes count as dense.
struct ByHeadClass {
  int64_t global = 0, local = 0, retrieval = 0, dense = 0;
};

// What happened to the prompt. prompt = prefix + reused + fresh; recomputed is a part of reused.
struct PromptUsage {
  int prompt = 0, prefix = 0, reused = 0, recomputed = 0, fresh = 0;
  int chain = 0;     // the end of the prefix: what an earlier turn repaired, so that it is not exact
  int seasoned = 0;  // of the reused ones: those whose KV was a mean over contexts
  int disk = 0;      // of prefix and reused ones: those whose KV was read from disk for this request
  int remote = 0;    // the same, from the shared store (EngineOptions::cache_redis) or a prefill server (peer)
  int near = 0;      // of the reused ones: those in text that nearly repeats what is cached (discover=near)
  double kept = 1;   // of the reused ones' keys, the share that the answer sees, all layers together
  int folded = 0;    // Prompt::folded
  std::string policy;
  double flops = 0;  // of the prefill
  double bytes = 0;  // read and written by the prefill: weights once a step, and KV; activations are not counted
  double linear_flops = 0, attention_flops = 0;  // flops = their sum
  // Of the answer's rows: attention, the choice of keys included, and what they read and wrote.
  double decode_attention_flops = 0, decode_bytes = 0;
  // The share of full attention that the keys hold that the prompt's rows, and the answer's, saw; with
  // Evaluation::held_mass, else -1. Over rows that were computed, their query heads and layers.
  double held_mass = -1, decode_held_mass = -1;
  // Of the pages that were the request's own when its prefill ended; those of placed pieces belong to the cache.
  ByHeadClass kv_bytes;
  // Tokens of the answer that were guessed and verified together, and the steps that right ones saved: one each, but
  // for one with which the answer ends.
  int drafted = 0, accepted = 0;
  // K and V of prompt and answer that the request let go of while it answered (decode_evict).
  int64_t evicted_bytes = 0;
  int joined = 0;       // rows of the prefill that an equal request had computed whose client went away
  int steps = 0;        // engine steps that the prefill took
  double find_s = 0;    // of queued_s: to look the prompt up and to plan it
  double queued_s = 0;  // from submit to the first step
  double ttft_s = 0;    // from submit to the first token
};

enum class Finish { kStop, kLength, kCancelled, kError };

struct Completion {
  Finish finish = Finish::kStop;
  std::optional<Error> error;  // with kError
  std::string stop_text;       // the stop string that was met
  PromptUsage usage;
  int completion_tokens = 0;
  double total_s = 0;
  EvaluationLogits logits;  // with Request::evaluation
  // D: the state of the prompt's last token behind the model's final norm, which embeddings are made of.
  std::vector<float> last_hidden;
  std::shared_ptr<const ExportedSession> session;  // with export_session, unless the request failed or was cancelled
  // With first_logits: positions outside the exact prefix that were placed from the cache, and those of them that were
  // computed again.
  std::vector<TokenMark> reused_runs, recomputed_runs;
  std::vector<PromptPatch> quilt = {};  // with Request::explain: all of the prompt, in order
  // With Request::season: of each mark, over how many contexts its mean is with this one; 0: this one was not added,
  // since the part is short, or was not computed exactly, or there was no room, or there are kMostContexts already.
  std::vector<int> contexts = {};
};

// How far a prompt is. What a repair has left is an estimate; processed never falls, and ends at total.
struct PromptProgress {
  int total = 0, cached = 0, processed = 0;  // tokens; processed counts the cached ones
  double seconds = 0;                        // since the first step
};

class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void on_tokens(const TokenDelta& delta) = 0;  // delta is the engine's, and valid during the call only
  virtual void on_finish(Completion completion) = 0;    // exactly once, last
  virtual void on_progress(const PromptProgress&) {}    // before the first token, with Request::progress
  // Once, before the first token, with Request::prompt_logprobs: one entry a token. Of the first one only the id counts.
  virtual void on_prompt(std::vector<TokenLogprob>) {}
};

using RequestId = uint64_t;

}  // namespace kvilt
