// kvilt/options.h: how an engine is opened, option by option, and the words that options are chosen from.
// Role:   plain data. Each enum has parse_x(), which reads the word that flags and JSON use, and x_name(), which gives
//         it back.
// Errors: parse_x: kInvalidArgument, listing the words there are.
// Units:  tokens, bytes, nats.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kvilt/result.h"

namespace kvilt {

enum class KvType { kAuto, kF32, kF16, kBF16, kInt8 };     // auto, f32, f16, bf16, int8
enum class ActivationType { kAuto, kBF16, kF32 };          // auto, bf16, f32
enum class PlacementMode { kZeroCopy, kCopy };             // zero-copy, copy
enum class ReuseFrom { kAuto, kFirst, kLast, kSeasoned };  // auto, first, last, seasoned
enum class Discover { kEqual, kNear };                     // equal, near
enum class Trust { kAny, kClean };                         // any, clean
enum class KvEventFormat { kMap, kArray };                 // map, array
enum class Quality { kAuto, kDraft, kBalanced, kExact };   // auto, draft, balanced, exact
enum class Role { kBoth, kPrefill, kDecode };              // both, prefill, decode

Result<KvType> parse_kv_type(std::string_view word);
Result<ActivationType> parse_activations(std::string_view word);
Result<PlacementMode> parse_placement(std::string_view word);
Result<ReuseFrom> parse_reuse_from(std::string_view word);
Result<Discover> parse_discover(std::string_view word);
Result<Trust> parse_trust(std::string_view word);
Result<KvEventFormat> parse_kv_event_format(std::string_view word);
Result<Quality> parse_quality(std::string_view word);
Result<Role> parse_role(std::string_view word);

std::string_view kv_type_name(KvType type);
std::string_view activations_name(ActivationType type);
std::string_view placement_name(PlacementMode mode);
std::string_view reuse_from_name(ReuseFrom from);
std::string_view discover_name(Discover discover);
std::string_view trust_name(Trust trust);
std::string_view kv_event_format_name(KvEventFormat format);
std::string_view quality_name(Quality quality);
std::string_view role_name(Role role);

struct EngineOptions {
  // ---- The model and the machine

  // A .gguf file, or a Hugging Face folder (config.json, *.safetensors, tokenizer.json). It has no default.
  std::string model;

  // A file with a Jinja chat template that takes the place of the model's own. One that does not parse is an error.
  // Default: empty, the model's; ChatML for a model without one.
  std::string chat_template = "";

  // Kernels, by name: `kvilt info MODEL` prints the one that "auto" chooses. An unknown name, or one whose instructions
  // this machine lacks, is an error that lists those it can run.
  // Default: "auto", the best of this machine (or what the environment variable KVILT_BACKEND names).
  std::string backend = "auto";

  // Threads that compute, the engine's own included.
  // Default: 0, the machine's cores. At most 1024.
  int threads = 0;

  // Each thread on a core of its own. Ignored where there are more threads than cores.
  // Default: false.
  bool pin = false;

  // A folder that keeps packed weights: later starts map them instead of packing again (docs/design/startup.md).
  // Default: empty, none. Cost: about the model's size on disk.
  std::string pack_cache = "";

  // ---- What is computed, and how exactly

  // The policy of requests that name none (docs/papers.md lists them), for all their text. A model whose RoPE depends
  // on the length of the prompt falls back to "prefix".
  // Default: empty, policy "auto", which repairs what it reuses as far as `quality` asks.
  std::string policy = "";

  // How near answers under policy "auto" are to a full pass, unless a request says otherwise. kDraft repairs least and
  // is quickest; kExact reuses known beginnings only. These hold for all text of a prompt.
  // Default: kAuto, where a request's marks are its consent: as kBalanced for the parts that it marks (documents), as
  // kExact for all other text.
  Quality quality = Quality::kAuto;

  // Which KV of a known piece is used: as first computed; as its last context under the same policy left it; or the mean
  // over contexts, where there is one (`season` below, kvilt/season.h), else as first computed. A mean carries traces of
  // all texts that stood before it, and comes before clean copies.
  // Default: kAuto, kSeasoned with `season`, else kFirst. kLast keeps a second copy of every piece that was repaired.
  ReuseFrom reuse_from = ReuseFrom::kAuto;

  // Which text is known. kNear: also what is equal, from `min_near` tokens on, in a text that nearly repeats a cached one:
  // a document with an edited sentence, a file with line numbers. What differs is computed, whatever the policy.
  // Default: kEqual. kNear costs about .15 us for a token that is not known otherwise, and some 16 bytes a
  // cached token from the first request on that asks for it.
  Discover discover = Discover::kEqual;

  // Whose KV of a known piece may be used at all. KV carries the text that stood before it. kClean: that of marked parts
  // which were computed behind a beginning of the asking prompt itself, so that nobody else's text reaches its answer;
  // exact prefixes are the prompt's own text in any case.
  // Default: kAny, right for one user; those come first, then other exact KV. Cost of kClean: what has no such copy is
  // computed (POST /v1/documents, Request::clean_copy make them).
  Trust trust = Trust::kAny;

  // How found pieces enter a request. kZeroCopy reads them where they are and rotates queries instead of keys; kCopy
  // copies and rotates them into the request's own pages.
  // Default: kZeroCopy. kCopy costs pages and a pass over the pieces, and is there to be compared with.
  PlacementMode placement = PlacementMode::kZeroCopy;

  // How keys and values are kept. kInt8 takes about a quarter of kF32's memory, kF16 and kBF16 half; all three round.
  // Default: kAuto, bf16 where attention over it is measured to be faster on this machine (twice the products an
  // instruction on AMD since Zen 4; heads of a multiple of 32), else f32. ModelInfo::kv_type says which.
  KvType kv_type = KvType::kAuto;

  // What rows of activations are rounded to where they meet weights (kernels/backend.h Activations).
  // Default: kAuto, int8 with quantised weights. kBF16 and kF32 widen quantised weights in memory: nearer to exact
  // arithmetic, and slower.
  ActivationType activations = ActivationType::kAuto;

  // Files for policy "redknot" (docs/formats/head_map.md): FILE, or NAME=FILE for requests with map=NAME.
  // Default: none.
  std::vector<std::string> head_maps = {};

  // Files for policy "minference" (docs/formats/sparse_map.md), named alike, for its map=NAME. A default one holds where
  // a request gives it no pattern.
  // Default: none.
  std::vector<std::string> sparse_maps = {};
  // Files for policy "samkv" (docs/formats/layer_map.md): FILE, or NAME=FILE for requests with layers=NAME.
  // Default: none, which means the last eighth of the layers.
  std::vector<std::string> layer_maps = {};

  // Seeds of requests that bring none are drawn from this one.
  // Default: 0, drawn when the engine opens.
  uint64_t seed = 0;

  // ---- Memory and cache

  // Bytes of the KV pool, for running requests and the cache together. All of it is reserved when the engine opens.
  // Default: 0, half of what machine and control groups (containers) have available then, at most 4 GiB.
  int64_t kv_bytes = 0;

  // Tenants' shares of the pool, above 0, together 1 at most. Who holds more than its share gives way first when memory
  // is needed; what is not used is lent. Tenants without a share have the rest together.
  // Default: none, all have all of it together.
  std::map<std::string, double> pool_shares = {};

  // Tokens of a KV page.
  // Default: 32. Smaller pages waste less at the ends of pieces and cost more entries per token.
  int page_slots = 32;

  // The shortest unmarked piece that is reused, in tokens. Shorter ones save less than finding and placing them costs.
  // Default: 32.
  int min_segment = 32;

  // The shortest run of equal tokens that is reused in a text that nearly repeats a cached one (`discover`). Runs that
  // follow each other must have min_segment tokens together.
  // Default: 8, the least. Longer ones leave more to be computed and have fewer seams.
  int min_near = 8;

  // Tokens of an answer that are guessed and verified in one step at most: what followed the same tokens before, in the
  // prompt, in the answer so far or in a cached text (docs/design/drafts.md). The text is the same to the bit. How many
  // are tried follows from how many were right, and from what rows cost; none where it does not pay. What a constraint
  // leaves next (a JSON key) is drafted whatever this says.
  // Default: 0, none, so that who embeds or measures an engine gets single steps; the program's own default is 16, which
  // is what was measured (docs/results/drafts.md). Cost: up to 32 bytes a cached token, and as much a token of running
  // requests.
  int draft = 0;

  // A folder that keeps cached pieces and exact prefixes beyond memory and beyond this process (docs/design/disk.md): what
  // is cached is written there beside the work, and the rest of it when the engine closes; what a later prompt holds of it
  // is read instead of computed. One engine at a time; several models may take turns in one folder. It holds what was asked,
  // readable by its owner only; `cache_key` encrypts it.
  // Default: empty, none. Cost: disk, and some 16 bytes of memory a token that is stored.
  std::string cache_dir = "";

  // The most bytes that the folder takes; what was used once is removed first, what was used longest ago before the rest.
  // Default: 16 GiB.
  int64_t cache_disk = int64_t{16} << 30;

  // Tenants' shares of these, above 0, together 1 at most. A tenant holds no more than its share: what it used longest
  // ago goes for what it stores. What is left is of all others together, who give way for it first where the folder is
  // full. Who owns what outlives the engine.
  // Default: none, all have all of it together.
  std::map<std::string, double> disk_shares = {};

  // A Redis or Valkey that several engines share (docs/design/redis.md): what one computed the others read instead of
  // computing it, whatever text it is. HOST:PORT, redis://[[USER]:PASSWORD@]HOST[:PORT][/DB] or unix:PATH; several with
  // commas between them, each of which holds a part (tier/spread_tier.h). With cache_dir too, requests ask memory, then
  // the folder, then Redis. It holds what was asked and is asked without TLS; `cache_key` encrypts what it holds. What
  // cannot be reached is computed.
  // Default: empty, none. Cost: what is computed is copied and sent; some 16 bytes of memory a token that is stored.
  std::string cache_redis = "";

  // A file with the secret of all engines that share it: 32 bytes, or 64 hexadecimal digits. Whoever does not know it can
  // neither guess salts from what is stored nor put KV there that an engine takes.
  // Default: empty: with `cache_key` the secret follows from that; else the first engine puts one into Redis itself, so
  // Redis must be there when an engine starts.
  std::string cache_redis_key = "";

  // The longest that Redis may take for an answer, in milliseconds, beside what its bytes take at 8 MB/s; then it counts
  // as gone until a connection succeeds. A request waits for as long as computing would take, or for a tenth of this.
  // Default: 500, from 1 to 60,000.
  int cache_redis_timeout_ms = 500;

  // A file with the key that seals what cache_dir and cache_redis keep (docs/design/disk.md#with-a-key): 32 bytes, or 64
  // hexadecimal digits; only its owner may be able to read it. A folder is sealed from its beginning or never: without its
  // key, or with another one, opening the engine fails. In Redis each key has values of its own.
  // Default: empty, nothing is sealed. Cost: about a nanosecond a byte that is written or read; 40 bytes a chunk.
  std::string cache_key = "";

  // The key itself, for who has it in a variable; not with `cache_key`.
  std::string cache_key_text = "";

  // Whether a page of the KV pool is overwritten with zeros when it is given back: when its request or its place in the
  // cache ends, at the latest when the engine closes. Copies outside of the pool, token ids and texts are not
  // (SECURITY.md).
  // Default: false. Cost: writing these bytes, on the thread that schedules.
  bool zero_memory = false;

  // Whether anything is found or kept. false is for measurements.
  // Default: true.
  bool cache = true;

  // Whether a chat's system message loses what changes with every request, before it is tokenised: times of day, a coding
  // agent's `cch=` digits, its git status (engine/volatile_lines.h). The model is not told them.
  // Default: false. Prompt::folded counts the lines.
  bool fold_volatile = false;

  // ---- Who else hears of the cache (docs/design/events.md)

  // A ZeroMQ endpoint from which blocks that are stored and removed are published as vLLM does: tcp://127.0.0.1:5557 or
  // tcp://*:5557 is bound, connect:tcp://HOST:PORT connected to. Events hold token ids: whoever can subscribe reads
  // prompts.
  // Default: empty, nobody hears anything. Cost: a thread, and copies of the tokens of what is stored.
  std::string kv_events = "";

  // An endpoint on which subscribers ask for events that they missed. At most 10,000 batches or 64 MiB are kept.
  // Default: empty, nobody can ask.
  std::string kv_events_replay = "";

  // The topics of exact blocks, and of approximate blocks and pieces. Neither may begin with the other.
  // Default: empty, as vLLM's; approximate ones are not told.
  std::string kv_events_topic = "", kv_events_approximate = "";

  // How events are written and replayed: kMap as vLLM does since 0.26, kArray as its releases up to 0.23 did.
  // Default: kMap.
  KvEventFormat kv_events_format = KvEventFormat::kMap;

  // Whether what belongs to a tenant, namespace or cache_salt is told too, with a keyed digest as an extra key.
  // Default: false.
  bool kv_events_tenants = false;

  // ---- Two servers, one that computes prompts and one that answers (docs/deploy/prefill_decode.md)

  // kPrefill: others' prompts are computed and their KV is sent as it comes (`peer_listen`). kDecode: long prompts are
  // asked of such a server (`peer`). Both answer requests of their own as ever.
  // Default: kBoth, one server does it all.
  Role role = Role::kBoth;

  // HOST:PORT where a prefill server listens for decode servers (port 0: any free one, EngineStats::peer), and the one
  // that a decode server asks. Their protocol is authenticated and encrypted by `peer_key`; without that both must be
  // addresses of this machine.
  // Default: none.
  std::string peer_listen = "", peer = "";

  // A file with the key of the servers that know each other: 32 bytes, or 64 hexadecimal digits; only its owner may be
  // able to read it. Who has it may have prompts computed, and is believed that the KV it sends is right.
  // Default: none, on one machine only.
  std::string peer_key = "";

  // The key itself, as 64 hexadecimal digits, in place of a file. It does not stay in the options of an engine.
  // Default: none.
  std::string peer_key_text = "";

  // Tokens that must be missing here for a prompt to be asked of the peer, at least 2.
  // Default: 512. Fewer are computed sooner than they travel.
  int peer_least = 512;

  // ---- Who runs when

  // The longest prompt and answer together, in tokens. What the model was trained for is the most.
  // Default: 0, the model's own.
  int context = 0;

  // Rows of prefill that one step computes at most. Long chunks keep the kernels busy; short ones let other requests'
  // next tokens come sooner.
  // Default: 512.
  int chunk_tokens = 512;

  // Requests computed at once. More wait.
  // Default: 64.
  int max_sequences = 64;

  // Requests that wait. More get kExhausted.
  // Default: 1024.
  int max_queue = 1024;

  // Seconds that a prefill is kept whose client went away (Engine::cancel), for the same request of the same tenant to go
  // on from it. It goes on meanwhile while nothing else is there, and gives its pages to whoever needs them; four at most.
  // Default: 15. 0: none; what was computed exactly is kept in the cache in any case.
  double linger_s = 15;

  // ---- Idle time

  // Marked parts that requests ask for again and again are kept as the mean over so many contexts, computed when the
  // engine is idle (docs/math/seasoning.md). At most 16; what an interrupted pass did is lost.
  // Default: 0, none. Cost: for each context a full pass over the parts that were asked for together, dropped as soon as
  // a request comes; a second copy of each part in the pool.
  int season = 0;

  // Whether what makes means (here, or Request::season) keeps a hidden state of each of their tokens as well, from which
  // `auto` and `mend` with `enter` compute a part of what they choose (docs/math/seasoning.md#states).
  // Default: false. Cost: 2 bytes for each element of a token's state: a seventh more for a mean of the model measured.
  bool season_states = false;

  // The share of the idle time that seasoning takes at most, and audits the same: from 0.001 to 1.
  // Default: 0.5.
  double season_share = 0.5;

  // The share of the requests that are computed again in full when the engine is idle, to measure what reuse changes
  // (EngineStats::audits).
  // Default: 0, none. Cost: a full prefill for each, dropped as soon as a request comes.
  double audit = 0;

  // A policy whose last 20 audits have a higher mean KL, in nats, is switched off: its requests run with "prefix".
  // Default: 0, never.
  double audit_limit = 0;
};

}  // namespace kvilt
