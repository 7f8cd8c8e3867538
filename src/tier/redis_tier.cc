#include "tier/redis_tier.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/hex.h"
#include "tier/key_file.h"
#include "tier/piece_record.h"
#include "tier/redis_replies.h"

namespace kvilt {
namespace {

using std::chrono::milliseconds;

constexpr const char* kSecretKey = "kvilt:secret";
constexpr const char* kSecondsKept = "604800";  // a week: a piece that nobody used for so long goes
constexpr const char* kLinesKept = "100000";    // of the stream, roughly
constexpr milliseconds kFirstBackoff{100}, kMostBackoff{10'000};
constexpr std::chrono::hours kTouchEvery{1};

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string id_text(uint64_t id) { return fmt::format("{:016x}", id); }

}  // namespace

RedisTier::RedisTier(RedisOptions options, const HashSecret& secret, std::optional<Sealer> sealer)
    : options_(std::move(options)), secret_(secret), sealer_(std::move(sealer)) {}

Result<std::unique_ptr<RedisTier>> RedisTier::open(RedisOptions options) {
  std::optional<Sealer> sealer;
  if (options.key) {
    sealer.emplace(derived_key(*options.key, "kvilt.redis.values"));
    if (!options.secret) options.secret = derived_key(*options.key, "kvilt.redis.digests");
    options.key.reset();
  }
  const bool given = options.secret.has_value();
  const HashSecret drawn = options.offered ? *options.offered : HashSecret::random();
  const HashSecret secret = given ? *options.secret : drawn;
  std::unique_ptr<RedisTier> out(new RedisTier(std::move(options), secret, std::move(sealer)));
  if (given) return out;
  if (const Status done = out->connect(); !done.ok()) {
    return error(done.error().code,
                 "Redis at {}: {}; start it first, or give all servers one key file: then it may "
                 "come later",
                 out->options_.address.shown(), done.error().message);
  }
  return out;
}

// ---- The way to Redis

Status RedisTier::connect() {
  const auto connected = [&]() -> Status {
    KVILT_ASSIGN(connection_, RedisConnection::open(options_.address, options_.timeout));
    KVILT_TRY(log_in());
    if (!options_.secret) KVILT_TRY(agree_on_secret());
    return {};
  };
  const Status done = connected();
  if (!done.ok()) {
    connection_.reset();
    return done;
  }
  connected_ = Clock::now();
  next_list_ = connected_;
  return {};
}

Status RedisTier::log_in() {
  const RedisAddress& to = options_.address;
  std::vector<RedisCommand> commands;
  const std::string db = fmt::format("{}", to.db);
  if (!to.password.empty() && to.user.empty()) commands.push_back({"AUTH", to.password});
  if (!to.password.empty() && !to.user.empty()) commands.push_back({"AUTH", to.user, to.password});
  if (to.db != 0) commands.push_back({"SELECT", db});
  commands.push_back({"PING"});
  KVILT_ASSIGN(const auto replies, connection_->ask(commands, options_.timeout));
  return check_all(replies);
}

// The first process puts its own there; whoever comes later takes it. A Redis that was emptied gets the one in use again.
Status RedisTier::agree_on_secret() {
  const std::string ours = hex_text(secret_.bytes());
  const RedisCommand commands[] = {{"SET", kSecretKey, ours, "NX"}, {"GET", kSecretKey}};
  KVILT_ASSIGN(const auto replies, connection_->ask(commands, options_.timeout));
  KVILT_TRY(check_all(replies));
  const std::string& theirs = replies[1].text;
  if (theirs == ours) return {};
  const auto secret = key_of(theirs, kSecretKey);
  if (theirs.size() != ours.size() || !secret.ok())
    return error(Code::kCorrupt, "its key {} is no secret of Kvilt; remove it, or use another database", kSecretKey);
  if (space_.empty()) {
    secret_ = *secret;
  } else if (!std::exchange(other_secret_, true)) {  // digests in use depend on it
    spdlog::warn(
        "Redis at {} was emptied, and others came first: they and this server share nothing until this one "
        "starts again",
        options_.address.shown());
  }
  return {};
}

// Each failure makes the wait for the next try longer, unless the connection had lasted.
void RedisTier::drop(const Error& why) {
  const auto now = Clock::now();
  const bool was_ready = ready_.exchange(false);
  if (was_ready) heard_ = now;  // writes may have taken long
  const bool lasted = connection_ && now - connected_ > 10 * std::max(backoff_, kFirstBackoff);
  connection_.reset();
  listing_.reset();
  if (was_ready || backoff_ == milliseconds(0))
    spdlog::warn("Redis at {}: {}; what it holds is computed meanwhile", options_.address.shown(), why.message);
  backoff_ = lasted ? kFirstBackoff : std::clamp(backoff_ * 2, kFirstBackoff, kMostBackoff);
  next_try_ = now + backoff_;
}

Result<std::vector<RedisReply>> RedisTier::ask_all(std::span<const RedisCommand> commands, int64_t most_bytes) {
  if (!connection_) return error(Code::kUnavailable, "Redis at {} cannot be reached", options_.address.shown());
  auto replies = connection_->ask(commands, options_.timeout, most_bytes);
  if (!replies.ok()) drop(replies.error());
  return replies;
}

Result<RedisReply> RedisTier::ask(const RedisCommand& command) {
  KVILT_ASSIGN(auto replies, ask_all({&command, 1}));
  if (replies[0].failed()) return refusal(replies[0]);
  return std::move(replies[0]);
}

// ---- What there is: redis_news.cc

// A digest of the rest, and a piece; or a sealed piece.
std::optional<StoredPiece> RedisTier::decode(uint64_t id, std::string_view record) const {
  std::vector<std::byte> opened;
  std::span<const std::byte> bytes = std::as_bytes(std::span(record));
  if (sealer_) {
    opened.assign(bytes.begin(), bytes.end());
    if (!sealer_->open({Sealer::What::kRecord, id}, opened)) return {};
    bytes = opened;
  } else {
    Digest digest;
    if (bytes.size() < digest.size()) return {};
    std::memcpy(digest.data(), bytes.data(), digest.size());
    bytes = bytes.subspan(digest.size());
    if (KeyedHash(secret_, "kvilt.redis.record").add(as_text(bytes)).finish() != digest) return {};
  }
  auto piece = decode_piece(bytes);
  // A wrong size is damage too: get() would ask for as much. Chunks are whole here.
  if (!piece.ok() || piece->id != id || piece->maker != maker_ || piece->token_bytes != token_bytes_ ||
      piece->blocks != 1)
    return {};
  return std::move(piece).value();
}

void RedisTier::enter(const StoredPiece& piece, bool line_comes) {
  Entry entry{piece.parent, piece.count(), piece.token_bytes, piece.checksums, Clock::now(), line_comes};
  const int64_t bytes = entry.bytes();
  if (entries_.emplace(piece.id, std::move(entry)).second) bytes_ += bytes;
  ids_.heard(piece.id);  // what continues it needs a larger one
}

uint64_t RedisTier::new_id() { return ids_.next(); }

bool RedisTier::forget(uint64_t id) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return false;
  bytes_ -= it->second.bytes();
  entries_.erase(it);
  return true;
}

// ---- Pieces

std::string RedisTier::record_key(uint64_t id) const { return fmt::format("{}r:{:016x}", space_, id); }
std::string RedisTier::chunk_key(uint64_t id, int32_t chunk) const {
  return fmt::format("{}v:{:016x}:{}", space_, id, chunk);
}

// Unlike the disk's it has a key: whoever can write to Redis, and does not know the secret, cannot make one.
uint64_t RedisTier::chunk_sum(uint64_t id, int32_t chunk, std::span<const std::byte> bytes) const {
  const Digest digest = KeyedHash(secret_, "kvilt.redis.chunk")
                            .add(static_cast<int64_t>(id))
                            .add(int64_t{chunk})
                            .add(as_text(bytes))
                            .finish();
  uint64_t out;
  std::memcpy(&out, digest.data(), sizeof out);
  return out;
}

Status RedisTier::put(const StoredPiece& piece, std::span<const std::byte> values, std::vector<uint64_t>& removed) {
  CHECK(std::ssize(values) == piece.bytes() && piece.id != 0 && piece.count() > 0);
  if (piece.parent >= piece.id) return id_too_small(piece);
  if (piece.parent != 0) {
    if (!entries_.contains(piece.parent))
      return error(Code::kNotFound, "what piece {:x} continues is not stored any more", piece.id);
    KVILT_ASSIGN(const RedisReply there, ask({"EXISTS", record_key(piece.parent)}));
    if (there.number == 0) {
      remove(piece.parent);
      removed.push_back(piece.parent);
      return error(Code::kNotFound, "Redis dropped what piece {:x} continues", piece.id);
    }
    touch(piece.parent);
  }
  Status done = store(piece, values);
  if (!done.ok()) erase(piece.id, chunks_of(piece.count()));
  return done;
}

Status RedisTier::store(const StoredPiece& piece, std::span<const std::byte> values) {
  StoredPiece named = piece;
  named.blocks = 1;
  named.checksums.clear();
  for (int32_t i = 0; i < chunks_of(piece.count()); ++i) {
    const Run run = chunk_run(i, piece.count());
    const auto bytes = values.subspan(static_cast<size_t>(run.begin) * piece.token_bytes,
                                      static_cast<size_t>(run.size()) * piece.token_bytes);
    std::vector<std::byte> sealed;
    if (sealer_) {
      sealed.resize(bytes.size() + Sealer::kExtra);
      named.checksums.push_back(sealer_->seal({Sealer::What::kChunk, piece.id, i}, bytes, sealed));
    } else {
      named.checksums.push_back(chunk_sum(piece.id, i, bytes));
    }
    const std::string key = chunk_key(piece.id, i);
    KVILT_TRY(ask({"SET", key, sealer_ ? as_text(sealed) : as_text(bytes), "EX", kSecondsKept}));
  }
  KVILT_TRY(announce(named));
  enter(named, true);
  return {};
}

// decode() has the other direction.
std::string RedisTier::record_value(const StoredPiece& piece) const {
  std::vector<std::byte> record;
  encode_piece(piece, record);
  if (sealer_) return std::string(as_text(sealer_->sealed({Sealer::What::kRecord, piece.id}, record)));
  const Digest digest = KeyedHash(secret_, "kvilt.redis.record").add(as_text(record)).finish();
  std::string value(reinterpret_cast<const char*>(digest.data()), digest.size());
  value += as_text(record);
  return value;
}

// A chunk as it is in Redis; sealed ones are opened. False: it is not the one whose sum or mark this is.
bool RedisTier::is_whole(uint64_t id, int32_t chunk, uint64_t sum, std::vector<std::byte>& bytes) const {
  if (!sealer_) return chunk_sum(id, chunk, bytes) == sum;
  return sealer_->open({Sealer::What::kChunk, id, chunk}, bytes) == sum;
}

Status RedisTier::announce(const StoredPiece& piece) {
  const std::string value = record_value(piece);
  const std::string key = record_key(piece.id), id = id_text(piece.id);
  const RedisCommand commands[] = {{"SET", key, value, "EX", kSecondsKept},
                                   {"SADD", all_, id},
                                   {"XADD", log_, "MAXLEN", "~", kLinesKept, "*", "put", id}};
  KVILT_ASSIGN(const auto replies, ask_all(commands));
  return check_all(replies);
}

Status RedisTier::get(uint64_t id, int32_t chunk, std::vector<std::byte>& out) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return error(Code::kNotFound, "piece {:x} was removed", id);
  const Entry& entry = it->second;
  CHECK(chunk >= 0);
  // Whoever knows the secret can put another piece under the id of one that is asked for.
  if (chunk >= chunks_of(entry.tokens)) return error(Code::kNotFound, "piece {:x} is shorter than it was", id);
  const int64_t size = int64_t{chunk_run(chunk, entry.tokens).size()} * entry.token_bytes + extra();
  const std::string key = chunk_key(id, chunk), last = fmt::format("{}", size);  // a byte more, if it has one
  // Without its record a piece is no more: it must not seem older than the chunks.
  const std::string record = record_key(id);
  const RedisCommand commands[] = {{"GETRANGE", key, "0", last}, {"TOUCH", record}};
  KVILT_ASSIGN(const auto replies, ask_all(commands, size + RedisConnection::kSmall));
  const std::string& bytes = replies[0].text;
  const bool wrong_type = replies[0].failed() && bytes.starts_with("WRONGTYPE");
  if (replies[0].failed() && !wrong_type) return refusal(replies[0]);
  if (!wrong_type && std::ssize(bytes) == size) {
    const auto got = std::as_bytes(std::span(bytes));
    out.assign(got.begin(), got.end());
    if (is_whole(id, chunk, entry.checksums[chunk], out)) return {};
  }
  remove(id);
  if (bytes.empty()) return error(Code::kNotFound, "Redis dropped chunk {} of piece {:x}", chunk, id);
  return error(Code::kCorrupt, "Redis' chunk {} of piece {:x} is not what was written", chunk, id);
}

// It and what it continues are kept for another while.
void RedisTier::touch(uint64_t id) {
  const auto now = Clock::now();
  std::vector<std::string> keys;
  for (auto it = entries_.find(id); it != entries_.end(); it = entries_.find(it->second.parent)) {
    Entry& entry = it->second;
    if (now - entry.touched < kTouchEvery) break;
    entry.touched = now;
    keys.push_back(record_key(it->first));
    for (int32_t i = 0; i < chunks_of(entry.tokens); ++i) keys.push_back(chunk_key(it->first, i));
  }
  std::vector<RedisCommand> commands;
  for (const std::string& key : keys) commands.push_back({"EXPIRE", key, kSecondsKept});
  if (!commands.empty()) (void)ask_all(commands);
}

void RedisTier::remove(uint64_t id) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  const int32_t chunks = chunks_of(it->second.tokens);
  forget(id);
  erase(id, chunks);
}

// What is left where this fails leaves by its time.
void RedisTier::erase(uint64_t id, int32_t chunks) {
  std::vector<std::string> keys{record_key(id)};
  for (int32_t i = 0; i < chunks; ++i) keys.push_back(chunk_key(id, i));
  RedisCommand unlink{"UNLINK"};
  unlink.insert(unlink.end(), keys.begin(), keys.end());
  const std::string text = id_text(id);
  const RedisCommand commands[] = {
      std::move(unlink), {"SREM", all_, text}, {"XADD", log_, "MAXLEN", "~", kLinesKept, "*", "del", text}};
  (void)ask_all(commands);
}

Status RedisTier::clear() {
  listing_.reset();  // what came since it began goes too
  clear_first_ = true;
  return go_on_clearing(Clock::now() + options_.known_for);
}

Status RedisTier::go_on_clearing(Clock::time_point until) {
  if (!connection_)
    return error(Code::kUnavailable, "Redis at {} is cleared when it can be reached", options_.address.shown());
  News others;
  KVILT_TRY(list(others, until));
  if (listing_) return error(Code::kUnavailable, "Redis lists too slowly to be cleared at once: that goes on");
  std::vector<uint64_t> ids;
  for (const auto& [id, entry] : entries_) ids.push_back(id);
  for (const uint64_t id : ids) {
    if (!connection_) break;
    remove(id);
  }
  clear_first_ = !connection_ || cut_;  // of a set that is too large the rest comes with the next call
  return connection_ ? Status() : Status(error(Code::kUnavailable, "Redis went away while it was cleared"));
}

}  // namespace kvilt
