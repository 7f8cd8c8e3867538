#include "engine/load.h"

#include <sodium.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/check.h"
#include "base/error.h"
#include "base/function_ref.h"
#include "base/mapped_file.h"
#include "base/sealer.h"
#include "engine/kv_maker.h"
#include "engine/memory.h"
#include "engine/options.h"
#include "kernels/dispatch.h"
#include "model/model_file.h"
#include "peer/peer_address.h"
#include "tier/disk_tier.h"
#include "tier/key_file.h"
#include "tier/redis_tier.h"
#include "tier/spread_tier.h"

namespace kvilt {
namespace {

constexpr size_t kMaxTemplate = size_t{1} << 20;  // bytes
constexpr int kMaxHeadSize = 512;                 // of kernels/x86/attend.cc
constexpr int kRedisPatience = 20;                // timeouts; then others hold what one of several held

// given: FILE, or NAME=FILE.
template <class Map>
Status read_maps(const std::vector<std::string>& given, Result<Map> (*read)(const std::string&),
                 std::map<std::string, std::shared_ptr<const Map>>& out) {
  for (const std::string& one : given) {
    const size_t eq = one.find('=');
    const bool named = eq != std::string::npos;
    const std::string name = named ? one.substr(0, eq) : PolicyFiles::kDefaultMap;
    KVILT_ASSIGN(Map map, read(named ? one.substr(eq + 1) : one));
    out[name] = std::make_shared<const Map>(std::move(map));
  }
  return {};
}

Result<PolicyFiles> read_files(const EngineOptions& options) {
  PolicyFiles out;
  KVILT_TRY(read_maps(options.head_maps, read_head_map, out.head_maps));
  KVILT_TRY(read_maps(options.sparse_maps, read_sparse_map, out.sparse_maps));
  KVILT_TRY(read_maps(options.layer_maps, read_layer_map, out.layer_maps));
  return out;
}

Result<ChatPrompts::Sources> template_sources(const EngineOptions& options, const ModelFile& model) {
  if (options.chat_template.empty()) return ChatPrompts::Sources{model.chat_template, model.tools_template};
  KVILT_ASSIGN(std::string source, read_file(options.chat_template, kMaxTemplate));
  // An empty one would be ChatML in silence.
  if (source.empty()) return error(Code::kInvalidArgument, "{}: the chat template is empty", options.chat_template);
  return ChatPrompts::Sources{std::move(source), ""};
}

ModelInfo describe(const EngineParts& parts, const PolicyFiles& files) {
  const ModelConfig& c = parts.model->config();
  const PageStore& store = parts.cache->store();
  ModelInfo info;
  info.name = c.name;
  info.arch = c.arch;
  info.description = parts.file->description;
  info.backend = std::string(parts.model->backend().name());
  info.fingerprint = parts.file->fingerprint;
  info.context = parts.options.context;
  info.vocab = c.V;
  if (parts.file->tokenizer) info.longest_prompt = parts.file->tokenizer->most_bytes(info.context).value_or(0);
  info.layers = c.L;
  info.width = c.D;
  info.heads = c.H;
  info.kv_heads = c.G;
  info.head_size = c.E;
  info.ffn = c.F;
  info.bos_token = c.bos_token;
  info.eos_token = c.eos_token;
  info.parameters = parts.model->parameters();
  info.weight_bytes = parts.model->weight_bytes();
  info.kv_type = std::string(kv_type_name(store.shape().dtype));
  info.kv_bytes_per_token = store.shape().token_bytes();
  info.kv_pool_bytes = store.pages() * store.shape().page_bytes();
  info.threads = parts.pool->size();
  info.policies = policy_names();
  info.controls = control_policies();
  if (c.rope.length_dependent) {
    info.reuse = false;
    info.reuse_refused =
        "its RoPE angles depend on the length of the prompt, so a cached key would be wrong in another one; full and "
        "prefix work";
  }
  info.sampling = parts.file->sampling;
  info.default_policy = default_policy(parts.options, info.reuse);
  std::map<std::string, std::string> params;
  if (info.default_policy == "auto")
    params["quality"] = info.default_quality = default_quality(parts.options, !parts.options.policy.empty());
  const auto policy = make_policy(info.default_policy, params, files);
  CHECK(policy.ok());  // open_engine has made it before
  info.default_trust = std::string(trust_name(parts.options.trust));
  info.default_text = !(*policy)->wants_pieces() ? "none" : (*policy)->wants_unmarked() ? "all" : "marked";
  return info;
}

PublisherOptions publisher_options(const EngineOptions& options) {
  PublisherOptions out;
  out.endpoint = options.kv_events;
  out.replay = options.kv_events_replay;
  out.topic = options.kv_events_topic;
  out.approximate_topic = options.kv_events_approximate;
  out.wire = options.kv_events_format == KvEventFormat::kArray ? KvEventWire::kArray : KvEventWire::kMap;
  out.tenants = options.kv_events_tenants;
  return out;
}

// Where KV is kept beside memory.
struct Tiers {
  std::unique_ptr<DiskTier> disk;
  std::unique_ptr<Tier> redis;               // one, or several
  std::optional<HashSecret> redis_secret{};  // of all of them
  std::string redis_at{};                    // the first one's address
  // Of the engine's digests: those who share a store share it. What a folder holds under another one it does not find.
  HashSecret secret() const { return redis_secret ? *redis_secret : disk ? disk->secret() : HashSecret::random(); }
};

// A key's text does not stay in the options.
void forget(std::string& text) {
  sodium_memzero(text.data(), text.size());
  text.clear();
}

Result<std::optional<HashSecret>> take_key(const std::string& path, std::string& text, const char* name) {
  auto out = given_key(path, text, name);
  forget(text);
  return out;
}

// Several have one secret: where no file gives it and none follows from the key, the first one's. A folder offers its
// own, so that a Redis that comes back empty gets the one under which folders hold what they hold.
Status open_redis(const EngineOptions& o, const std::optional<HashSecret>& key, Tiers& out) {
  KVILT_ASSIGN(const std::vector<RedisAddress> addresses, parse_redis_addresses(o.cache_redis));
  RedisOptions redis;
  if (!o.cache_redis_key.empty()) {
    KVILT_ASSIGN(redis.secret, read_key_file(o.cache_redis_key));
  }
  redis.key = key;
  if (out.disk && !out.disk->sealed()) redis.offered = out.disk->secret();
  redis.timeout = std::chrono::milliseconds(o.cache_redis_timeout_ms);
  if (addresses.size() > 1) redis.patience = kRedisPatience * redis.timeout;
  std::vector<SpreadTier::Place> places;
  for (const RedisAddress& address : addresses) {
    redis.address = address;
    KVILT_ASSIGN(auto tier, RedisTier::open(redis));
    redis.secret = tier->secret();
    places.push_back({address.shown(), std::move(tier)});
  }
  out.redis_secret = redis.secret;
  out.redis_at = addresses.front().shown();
  if (places.size() == 1) {
    out.redis = std::move(places[0].tier);
  } else {
    out.redis = std::make_unique<SpreadTier>(std::move(places));
  }
  return {};
}

Result<Tiers> open_tiers(const EngineOptions& o, const std::optional<HashSecret>& key) {
  Tiers out;
  if (!o.cache_dir.empty()) {
    KVILT_ASSIGN(out.disk, DiskTier::open(o.cache_dir, o.cache_disk, key, o.disk_shares));
    if (out.disk->damaged() > 0)
      spdlog::warn("{}: {} damaged or lost records are left out", o.cache_dir, out.disk->damaged());
  }
  if (!o.cache_redis.empty()) KVILT_TRY(open_redis(o, key, out));
  return out;
}

// Redis had another secret than the folder offered, and goes first. A folder that holds nothing, or only what was stored
// beside that Redis, takes that secret too: whichever server meets an empty Redis first offers it again. Another folder
// keeps its own. of: all that pieces of this model depend on, under a secret.
Status settle_secrets(const EngineOptions& o, FunctionRef<Digest(const HashSecret&)> of, uint32_t token_bytes,
                      Tiers& tiers) {
  if (!tiers.disk || !tiers.redis || tiers.disk->sealed() || !o.cache_redis_key.empty()) return {};
  const HashSecret own = tiers.disk->secret(), theirs = *tiers.redis_secret;
  if (std::ranges::equal(own.bytes(), theirs.bytes())) return {};
  if (tiers.disk->pieces() == 0) return tiers.disk->begin_anew(theirs, {});
  KVILT_ASSIGN(const auto lost, tiers.disk->known(of(own), token_bytes));
  KVILT_ASSIGN(const auto found, tiers.disk->known(of(theirs), token_bytes));
  if (!lost.empty()) {
    spdlog::warn(
        "{}: {} of its pieces were stored under its own secret and are not found, since Redis at {} has another one, "
        "which goes first ({} pieces were stored under that); to use them stop all servers, remove the key "
        "kvilt:secret from Redis, and start this server first; else they leave by age",
        o.cache_dir, lost.size(), tiers.redis_at, found.size());
  } else if (!found.empty()) {
    KVILT_TRY(tiers.disk->take_secret(theirs));
    tiers.disk.reset();
    KVILT_ASSIGN(tiers.disk, DiskTier::open(o.cache_dir, o.cache_disk, {}, o.disk_shares));
  }
  return {};
}

// How many layers of a prefix are read at once; for measurements (docs/design/disk.md#layer-by-layer).
Status set_layers_at_once(DiskCache& store) {
  const char* const given = std::getenv("KVILT_LOAD_LAYERS");
  if (given == nullptr || *given == 0) return {};
  const std::string_view text = given;
  int layers = -1;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), layers);
  if (failed != std::errc() || end != text.data() + text.size() || layers < 0)
    return error(Code::kInvalidArgument, "KVILT_LOAD_LAYERS='{}': give a number of layers; 0 reads all of them first",
                 text);
  store.layers_at_once(layers);
  return {};
}

Status open_stores(Tiers tiers, EngineParts& parts) {
  const HashSecret secret = tiers.secret();
  const Digest maker = kv_maker(secret, *parts.file, parts.options, parts.model->backend(), *parts.pool);
  const auto add = [&](std::unique_ptr<Tier> tier) -> Status {
    if (!tier) return {};
    KVILT_ASSIGN(auto store, DiskCache::open(std::move(tier), secret, maker, *parts.cache, parts.options.min_segment));
    KVILT_TRY(set_layers_at_once(*store));
    parts.stores.push_back(std::move(store));
    return {};
  };
  KVILT_TRY(add(std::move(tiers.disk)));
  return add(std::move(tiers.redis));
}

// The other server of a pair: who is asked, or who asks.
Status open_peer(EngineParts& parts, const std::optional<HashSecret>& given,
                 std::optional<PeerServer::Options>& peers) {
  const ResolvedOptions& o = parts.options;
  if (o.role == Role::kBoth) return {};
  const HashSecret key = given ? *given : *HashSecret::of(std::string(32, '\0'));  // of a machine's own: anybody's
  KVILT_ASSIGN(const PeerAddress address, parse_peer_address(o.role == Role::kPrefill ? o.peer_listen : o.peer));
  const HashSecret makers = derived_key(key, "kvilt.peer.makers");
  const PeerHello hello{kv_maker(makers, *parts.file, o, parts.model->backend(), *parts.pool),
                        static_cast<uint32_t>(parts.cache->store().shape().token_bytes())};
  if (o.role == Role::kPrefill) {
    // Of the model, which is the other side's too: an ask that is too long for this one's --context is refused alone.
    peers = PeerServer::Options{address, key, hello, parts.file->config.context};
  } else {
    parts.peer = std::make_unique<PeerCache>(PeerCache::Options{{address, key, hello}, o.peer_least}, *parts.cache);
  }
  return {};
}

}  // namespace

Result<LoadedEngine> load_engine(EngineOptions options, std::function<void(double)> progress) {
  KVILT_TRY(check_options(options));
  KVILT_ASSIGN(PolicyFiles files, read_files(options));
  KVILT_ASSIGN(const std::optional<HashSecret> key,
               take_key(options.cache_key, options.cache_key_text, "cache_key_text (KVILT_CACHE_KEY)"));
  KVILT_ASSIGN(const std::optional<HashSecret> peer_key,
               given_key(options.peer_key, options.peer_key_text, "peer_key_text (KVILT_PEER_KEY)"));
  const std::string policy = options.policy.empty() ? "auto" : options.policy;
  KVILT_ASSIGN(const auto default_policy, make_policy(policy, {}, files));
  KVILT_ASSIGN(const Backend* backend, find_backend(options.backend));
  EngineParts parts;
  parts.pool = std::make_unique<ThreadPool>(threads_of(options));
  // Weights are packed, or mapped and checked, while the tokenizer is built on a thread of its own.
  const auto prepare = [&](const ModelFile& file) {
    if (file.config.E > kMaxHeadSize) return;
    const std::shared_ptr<const ModelFile> seen(std::shared_ptr<const ModelFile>(), &file);  // parts.file owns it later
    parts.model = PreparedModel::prepare(seen, *backend, *parts.pool, progress, options.pack_cache,
                                         activations_of(options.activations));
  };
  KVILT_ASSIGN(auto file, open_model(options.model, prepare));
  parts.file = std::move(file);
  const ModelConfig& c = parts.file->config;
  if (c.E > kMaxHeadSize) {
    return error(Code::kUnsupported, "{}: heads of {} elements; the attention kernels take {} at most", options.model,
                 c.E, kMaxHeadSize);
  }
  KVILT_ASSIGN(parts.options, resolve(options, c, *backend));
  forget(options.peer_key_text);  // only now: whether there is a key was checked again
  forget(parts.options.peer_key_text);
  for (const std::string& warning : parts.file->warnings) spdlog::warn("{}", warning);
  if (const std::string warning = pool_warning(options.kv_bytes, available_memory()); !warning.empty())
    spdlog::warn("{}", warning);
  if (options.context > c.context) {
    spdlog::warn("a context of {} tokens (--context) is more than the {} that the model has: it has {}",
                 options.context, c.context, parts.options.context);
  }
  for (const auto& [name, map] : files.head_maps) {
    KVILT_TRY(check_head_map(*map, c, "head map '" + name + "'"));
  }
  for (const auto& [name, map] : files.sparse_maps) {
    KVILT_TRY(check_sparse_map(*map, c, "sparse map '" + name + "'"));
  }
  for (const auto& [name, map] : files.layer_maps) {
    KVILT_TRY(check_layer_map(*map, c.L, "layer map '" + name + "'"));
  }
  const DType kv_type = parts.options.kv_dtype;
  KVILT_ASSIGN(auto store, PageStore::create({c.kv_layers(), c.G, c.E, parts.options.page_slots, kv_type, c.kv_readers},
                                             parts.options.kv_bytes));
  if (parts.options.zero_memory) store.zero_freed();
  KVILT_ASSIGN(Tiers tiers, open_tiers(parts.options, key));
  const auto maker = [&](const HashSecret& of) {
    return kv_maker(of, *parts.file, parts.options, parts.model->backend(), *parts.pool);
  };
  KVILT_TRY(settle_secrets(parts.options, maker, static_cast<uint32_t>(store.shape().token_bytes()), tiers));
  const HashSecret secret = tiers.secret();
  parts.cache = std::make_unique<ContentCache>(std::move(store), secret,
                                               cache_fingerprint(parts.file->fingerprint, kv_type_name(kv_type)),
                                               parts.options.min_segment);
  parts.cache->set_shares(parts.options.pool_shares, parts.options.disk_shares);
  if (parts.options.draft > 0 && parts.options.cache) parts.cache->keep_continuations();
  if (tiers.disk || tiers.redis) KVILT_TRY(open_stores(std::move(tiers), parts));
  std::optional<PeerServer::Options> peers;
  KVILT_TRY(open_peer(parts, peer_key, peers));
  if (!parts.options.kv_events.empty()) {
    KVILT_ASSIGN(parts.events, KvEventPublisher::open(publisher_options(parts.options)));
    parts.cache->listen(parts.events.get());
  }
  std::optional<ChatPrompts> chat;
  if (parts.file->tokenizer) {
    KVILT_ASSIGN(const ChatPrompts::Sources sources, template_sources(options, *parts.file));
    auto made = ChatPrompts::create(*parts.file->tokenizer, sources, c.bos_token, c.eos_token, parts.options.context);
    const std::string& from = options.chat_template.empty() ? options.model : options.chat_template;
    if (!made.ok()) return error(made.error().code, "{}: chat template: {}", from, made.error().message);
    chat.emplace(std::move(made).value());
    chat->fold_volatile(parts.options.fold_volatile);
  }
  ModelInfo info = describe(parts, files);
  if (chat) {
    info.answers = chat->answers();
    info.chat_template = chat->source();
  }
  return LoadedEngine{std::move(parts), std::move(chat), std::move(info), std::move(files), std::move(peers)};
}

}  // namespace kvilt
