#include "engine/options.h"

#include <algorithm>
#include <random>
#include <span>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "engine/memory.h"
#include "kvilt/request.h"
#include "peer/peer_address.h"
#include "tier/redis_address.h"

namespace kvilt {
namespace {

constexpr int kMaxThreads = 1024;  // a step of 5,000 threads takes minutes, and is a slip of the finger

template <class T>
struct Word {
  T value;
  std::string_view text;
};
constexpr Word<KvType> kKvTypes[] = {{KvType::kAuto, "auto"},
                                     {KvType::kF32, "f32"},
                                     {KvType::kF16, "f16"},
                                     {KvType::kBF16, "bf16"},
                                     {KvType::kInt8, "int8"}};
constexpr Word<ActivationType> kActivations[] = {
    {ActivationType::kAuto, "auto"}, {ActivationType::kBF16, "bf16"}, {ActivationType::kF32, "f32"}};
constexpr Word<PlacementMode> kPlacements[] = {{PlacementMode::kZeroCopy, "zero-copy"}, {PlacementMode::kCopy, "copy"}};
constexpr Word<ReuseFrom> kReuseFroms[] = {{ReuseFrom::kAuto, "auto"},
                                           {ReuseFrom::kFirst, "first"},
                                           {ReuseFrom::kLast, "last"},
                                           {ReuseFrom::kSeasoned, "seasoned"}};
constexpr Word<Discover> kDiscovers[] = {{Discover::kEqual, "equal"}, {Discover::kNear, "near"}};
constexpr Word<Trust> kTrusts[] = {{Trust::kAny, "any"}, {Trust::kClean, "clean"}};
constexpr Word<KvEventFormat> kKvEventFormats[] = {{KvEventFormat::kMap, "map"}, {KvEventFormat::kArray, "array"}};
constexpr Word<Quality> kQualities[] = {
    {Quality::kAuto, "auto"}, {Quality::kDraft, "draft"}, {Quality::kBalanced, "balanced"}, {Quality::kExact, "exact"}};

constexpr Word<Role> kRoles[] = {{Role::kBoth, "both"}, {Role::kPrefill, "prefill"}, {Role::kDecode, "decode"}};

// "a, b or c"
template <class T>
std::string list(std::span<const Word<T>> words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    out += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + std::string(words[i].text);
  }
  return out;
}

template <class T, size_t N>
Result<T> parse(const char* option, const Word<T> (&words)[N], std::string_view given) {
  for (const Word<T>& word : words) {
    if (word.text == given) return word.value;
  }
  return error(Code::kInvalidArgument, "{} is '{}', not {}", option, given, list<T>(words));
}

template <class T, size_t N>
std::string_view name(const Word<T> (&words)[N], T value) {
  for (const Word<T>& word : words) {
    if (word.value == value) return word.text;
  }
  return "?";
}

// REQUIRES: not kAuto.
DType dtype_of(KvType type) {
  CHECK(type != KvType::kAuto);
  switch (type) {
    case KvType::kF16:
      return DType::kF16;
    case KvType::kBF16:
      return DType::kBF16;
    case KvType::kInt8:
      return DType::kI8;
    case KvType::kAuto:
    case KvType::kF32:
      break;
  }
  return DType::kF32;
}

// An option that is a number, the flag that sets it, and its range.
struct Number {
  const char *option, *flag;
  int64_t value, low;
  int64_t high = INT64_MAX;
};

Status check_kv_events(const EngineOptions& o) {
  if (o.kv_events.empty()) {
    if (o.kv_events_replay.empty() && o.kv_events_approximate.empty() && o.kv_events_topic.empty()) return {};
    return error(Code::kInvalidArgument, "kv_events (--kv-events) is not given, so there is nothing to replay or name");
  }
  if (!o.cache)
    return error(Code::kInvalidArgument, "kv_events (--kv-events): nothing is stored without a cache (--no-cache)");
  const std::string &topic = o.kv_events_topic, &other = o.kv_events_approximate;
  if (!other.empty() && (other.starts_with(topic) || topic.starts_with(other))) {
    return error(Code::kInvalidArgument,
                 "kv_events_approximate (--kv-events-approximate) is '{}', kv_events_topic (--kv-events-topic) '{}': "
                 "ZeroMQ takes subscriptions as beginnings, so neither may begin with the other",
                 other, topic);
  }
  return {};
}

Status check_redis(const EngineOptions& o) {
  if (o.cache_redis.empty()) {
    if (o.cache_redis_key.empty()) return {};
    return error(Code::kInvalidArgument, "cache_redis_key (--cache-redis-key) is for cache_redis (--cache-redis)");
  }
  if (!o.cache) {
    return error(Code::kInvalidArgument,
                 "cache_redis (--cache-redis) shares what is cached, and the cache is off (--no-cache)");
  }
  const auto address = parse_redis_addresses(o.cache_redis);
  if (address.ok()) return {};
  return error(Code::kInvalidArgument, "cache_redis (--cache-redis): {}", address.error().message);
}

Status check_key(const EngineOptions& o) {
  if (o.cache_key.empty() && o.cache_key_text.empty()) return {};
  if (o.cache_dir.empty() && o.cache_redis.empty()) {
    return error(Code::kInvalidArgument,
                 "cache_key (--cache-key) is for cache_dir (--cache-dir), cache_redis (--cache-redis) and "
                 "kvilt serve --knowledge-dir");
  }
  if (o.cache_key.empty() || o.cache_key_text.empty()) return {};
  return error(Code::kInvalidArgument, "cache_key (--cache-key) and cache_key_text: give one of them");
}

// Each role with its address and no other.
Status check_role(const EngineOptions& o) {
  const bool prefill = o.role == Role::kPrefill, decode = o.role == Role::kDecode;
  if (prefill != !o.peer_listen.empty())
    return error(Code::kInvalidArgument, "role prefill (--role) and peer_listen (--peer-listen) go together");
  if (decode != !o.peer.empty())
    return error(Code::kInvalidArgument, "role decode (--role) and peer (--peer) go together");
  if (!prefill && !decode) {
    return o.peer_key.empty() && o.peer_key_text.empty()
               ? Status()
               : error(Code::kInvalidArgument, "peer_key (--peer-key) is for role prefill or decode");
  }
  if (!o.cache) {
    return error(Code::kInvalidArgument, "role {} (--role) moves what is cached, and the cache is off (--no-cache)",
                 role_name(o.role));
  }
  const char* what = prefill ? "peer_listen (--peer-listen)" : "peer (--peer)";
  const auto address = parse_peer_address(prefill ? o.peer_listen : o.peer);
  if (!address.ok()) return error(Code::kInvalidArgument, "{}: {}", what, address.error().message);
  if (decode && address->port == 0) return error(Code::kInvalidArgument, "{}: port 0 is none to connect to", what);
  if (!o.peer_key.empty() && !o.peer_key_text.empty())
    return error(Code::kInvalidArgument, "peer_key (--peer-key) and peer_key_text: give one of them");
  if (!o.peer_key.empty() || !o.peer_key_text.empty() || address->loopback()) return {};
  return error(Code::kInvalidArgument,
               "{}: {} is not of this machine, and without a key (--peer-key FILE; openssl rand -hex 32) whoever "
               "reaches it would read prompts and answers",
               what, address->host);
}

// name: of the share; of: what there is one of.
Status check_shares(const char* name, const char* of, const std::map<std::string, double>& shares) {
  double sum = 0;
  for (const auto& [tenant, share] : shares) {
    if (!(share > 0 && share <= 1))
      return error(Code::kInvalidArgument, "{} of tenant '{}' is {}, not above 0 and 1 at most", name, tenant, share);
    sum += share;
  }
  if (sum <= 1 + 1e-6) return {};  // they may come as floats
  return error(Code::kInvalidArgument, "{}: the tenants' shares make {:.3g} together; they share one {}", name, sum,
               of);
}

}  // namespace

Result<KvType> parse_kv_type(std::string_view word) { return parse("kv_type", kKvTypes, word); }
Result<ActivationType> parse_activations(std::string_view word) { return parse("activations", kActivations, word); }
Result<PlacementMode> parse_placement(std::string_view word) { return parse("placement", kPlacements, word); }
Result<ReuseFrom> parse_reuse_from(std::string_view word) { return parse("reuse_from", kReuseFroms, word); }
Result<Discover> parse_discover(std::string_view word) { return parse("discover", kDiscovers, word); }
Result<Trust> parse_trust(std::string_view word) { return parse("trust", kTrusts, word); }
Result<KvEventFormat> parse_kv_event_format(std::string_view word) {
  return parse("kv_events_format", kKvEventFormats, word);
}
Result<Quality> parse_quality(std::string_view word) { return parse("quality", kQualities, word); }
Result<Role> parse_role(std::string_view word) { return parse("role", kRoles, word); }

std::string_view kv_type_name(KvType type) { return name(kKvTypes, type); }
std::string_view activations_name(ActivationType type) { return name(kActivations, type); }
std::string_view placement_name(PlacementMode mode) { return name(kPlacements, mode); }
std::string_view reuse_from_name(ReuseFrom from) { return name(kReuseFroms, from); }
std::string_view discover_name(Discover discover) { return name(kDiscovers, discover); }
std::string_view trust_name(Trust trust) { return name(kTrusts, trust); }
std::string_view kv_event_format_name(KvEventFormat format) { return name(kKvEventFormats, format); }
std::string_view quality_name(Quality quality) { return name(kQualities, quality); }
std::string_view role_name(Role role) { return name(kRoles, role); }

Status check_options(const EngineOptions& o) {
  for (const Number& n : {Number{"threads", "--threads", o.threads, 0, kMaxThreads},
                          {"kv_bytes", "--kv-bytes", o.kv_bytes, 0},
                          {"page_slots", "--page-slots", o.page_slots, 1},
                          {"min_segment", "--min-segment", o.min_segment, 1},
                          {"min_near", "--min-near", o.min_near, 8},
                          {"draft", "--draft", o.draft, 0, kMostDrafted},
                          {"context", "--context", o.context, 0},
                          {"chunk_tokens", "--chunk", o.chunk_tokens, 1},
                          {"max_sequences", "--max-sequences", o.max_sequences, 1},
                          {"cache_redis_timeout_ms", "--cache-redis-timeout", o.cache_redis_timeout_ms, 1, 60000},
                          {"peer_least", "--peer-least", o.peer_least, 2},
                          {"season", "--season", o.season, 0, kMostContexts}}) {
    if (n.value >= n.low && n.value <= n.high) continue;
    const std::string range = n.high == INT64_MAX ? fmt::format("{} or more", n.low)  //
                                                  : fmt::format("from {} to {}", n.low, n.high);
    return error(Code::kInvalidArgument, "{} ({}) is {}, not {}", n.option, n.flag, n.value, range);
  }
  if (!(o.audit >= 0 && o.audit <= 1) || !(o.audit_limit >= 0)) {
    return error(Code::kInvalidArgument, "audit is a share from 0 to 1, audit_limit nats from 0 on");
  }
  if (!(o.linger_s >= 0 && o.linger_s <= 86400)) {
    return error(Code::kInvalidArgument, "linger_s (--linger) is {}, not from 0 to 86400", o.linger_s);
  }
  if (!o.cache_dir.empty() && !o.cache) {
    return error(Code::kInvalidArgument,
                 "cache_dir (--cache-dir) keeps what is cached, and the cache is off (--no-cache)");
  }
  if (!o.cache_dir.empty() && o.cache_disk <= 0) {
    return error(Code::kInvalidArgument, "cache_disk (--cache-disk) is {}, not 1 or more bytes", o.cache_disk);
  }
  KVILT_TRY(check_redis(o));
  KVILT_TRY(check_key(o));
  KVILT_TRY(check_role(o));
  if (!(o.season_share >= 0.001 && o.season_share <= 1)) {
    return error(Code::kInvalidArgument, "season_share (--season-share) is {}, not from 0.001 to 1", o.season_share);
  }
  KVILT_TRY(check_shares("pool_share", "pool", o.pool_shares));
  KVILT_TRY(check_shares("disk_share", "folder", o.disk_shares));
  if (o.disk_shares.contains(""))
    return error(Code::kInvalidArgument, "disk_share: who has no name is nobody in the folder, and has what is left");
  return check_kv_events(o);
}

Result<ResolvedOptions> resolve(const EngineOptions& options, const ModelConfig& config, const Backend& backend) {
  KVILT_TRY(check_options(options));
  ResolvedOptions out{options};
  out.backend = std::string(backend.name());
  out.threads = threads_of(options);
  if (out.reuse_from == ReuseFrom::kAuto) out.reuse_from = out.season > 0 ? ReuseFrom::kSeasoned : ReuseFrom::kFirst;
  if (out.kv_type == KvType::kAuto) out.kv_type = backend.bf16_attention_pays(config.E) ? KvType::kBF16 : KvType::kF32;
  out.kv_dtype = dtype_of(out.kv_type);
  if (out.kv_bytes == 0) out.kv_bytes = default_kv_bytes(available_memory());
  out.context = options.context > 0 ? std::min(options.context, config.context) : config.context;
  if (out.seed == 0) out.seed = (uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  return out;
}

int threads_of(const EngineOptions& options) {
  return options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Activations activations_of(ActivationType type) {
  return type == ActivationType::kBF16  ? Activations::kBF16
         : type == ActivationType::kF32 ? Activations::kF32
                                        : Activations::kAuto;
}

std::string default_policy(const EngineOptions& options, bool reuse) {
  if (reuse) return options.policy.empty() ? "auto" : options.policy;
  return options.policy == "full" ? "full" : "prefix";
}

std::string default_quality(const EngineOptions& options, bool asked) {
  const bool all = asked && options.quality == Quality::kAuto;
  return std::string(quality_name(all ? Quality::kBalanced : options.quality));
}

}  // namespace kvilt
