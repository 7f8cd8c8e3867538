#include "tier/redis_tier.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <new>
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
constexpr const char* kLinesAtOnce = "1000";
constexpr size_t kRecordsAtOnce = 16;
constexpr size_t kKeysAtOnce = 1000;                    // that are asked for, and those of one piece more
constexpr int64_t kNoSuchKey = -2;                      // of TTL
constexpr int kMostPages = 1 << 14;                     // of the set, with kIdsAtOnce ids each
constexpr int64_t kMostRecordBytes = int64_t{1} << 24;  // 4 million tokens
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

// ---- What there is

std::optional<Tier::Sharing> RedisTier::sharing() const { return Sharing{kNewsEvery, options_.timeout}; }

Result<std::vector<StoredPiece>> RedisTier::known(const Digest& maker, uint32_t token_bytes) {
  maker_ = maker;
  token_bytes_ = token_bytes;
  KeyedHash space(secret_, "kvilt.redis.space.2");
  space.add(maker);
  if (sealer_) space.add(sealer_->name());  // who has another key, or none, sees nothing of it
  space_ = fmt::format("kvilt:{}:", hex_text(space.finish()));
  all_ = space_ + "all";
  log_ = space_ + "log";
  std::vector<StoredPiece> out;
  const auto until = Clock::now() + options_.known_for;
  do {
    News news = this->news();
    unheard_ += news.errors;
    std::ranges::move(news.stored, std::back_inserter(out));
  } while (listing_ && Clock::now() < until);
  return out;
}

Tier::News RedisTier::news() {
  News out;
  out.errors = std::exchange(unheard_, 0);
  if (!connection_ && Clock::now() < next_try_) return out;
  const bool reached = connection_ != nullptr || [&] {
    const Status done = connect();
    if (!done.ok()) drop(done.error());
    return done.ok();
  }();
  const Status done = reached ? hear(out) : Status(Error{Code::kUnavailable, {}});
  if (done.ok()) return out;
  ++out.errors;
  if (connection_) drop(done.error());  // it answers, but not what it should
  return out;
}

// Where memory ends what was entered may be untold: all of it is told again when the set is listed.
Status RedisTier::hear(News& news) {
  try {
    return catch_up(news);
  } catch (const std::bad_alloc&) {
    entries_.clear();
    to_look_for_.clear();
    bytes_ = 0;
    news.stored.clear();
    return error(Code::kExhausted, "no memory is left for what it holds");
  }
}

Status RedisTier::catch_up(News& news) {
  if (clear_first_) {
    std::vector<uint64_t> before;  // this process may have put some since clear()
    for (const auto& [id, entry] : entries_) before.push_back(id);
    const Status cleared = go_on_clearing(Clock::now() + options_.list_for);
    for (const uint64_t id : before) {
      if (!entries_.contains(id)) news.removed.push_back(id);
    }
    if (listing_ && !cleared.ok() && cleared.error().code == Code::kUnavailable) return {};  // it goes on
    KVILT_TRY(cleared);
  }
  if (!listing_ && Clock::now() < next_list_) {
    KVILT_TRY(read_log(news));
    return look_for_dropped(news);
  }
  KVILT_TRY(list(news, Clock::now() + options_.list_for));
  if (listing_) return {};
  next_list_ = Clock::now() + kListEvery;
  if (!ready_.exchange(true)) {
    spdlog::info("Redis at {}: {} pieces for this model", options_.address.shown(), entries_.size());
  }
  return {};
}

// As far as that goes until then; where it is not at its end, listing_ says so.
Status RedisTier::list(News& news, Clock::time_point until) {
  if (!listing_) KVILT_TRY(begin_listing());
  while (!listing_->walked) {
    KVILT_TRY(walk_on());
    if (listing_->walked) compare(news);
    if (Clock::now() >= until) return {};
  }
  std::vector<uint64_t>& lacking = listing_->lacking;
  while (!lacking.empty()) {
    const size_t left = lacking.size() - std::min(lacking.size(), kRecordsAtOnce);
    std::vector<uint64_t> some(lacking.begin() + static_cast<ptrdiff_t>(left), lacking.end());
    lacking.resize(left);
    KVILT_TRY(fetch(std::move(some), true, news));
    if (!lacking.empty() && Clock::now() >= until) return {};
  }
  listing_.reset();
  return {};
}

// The stream's end first: what comes while the set is listed is in one of the two.
Status RedisTier::begin_listing() {
  const auto begun = Clock::now();
  KVILT_ASSIGN(const RedisReply last, ask({"XREVRANGE", log_, "+", "-", "COUNT", "1"}));
  read_to_ = "0-0";
  if (!last.array.empty() && !last.array[0].array.empty()) read_to_ = last.array[0].array[0].text;
  listing_ = Listing{.begun = begun, .there = {}, .lacking = {}};
  return {};
}

Status RedisTier::walk_on() {
  Listing& now = *listing_;
  const std::string at_once = std::to_string(kIdsAtOnce);
  KVILT_ASSIGN(const RedisReply page, ask({"SSCAN", all_, now.cursor, "COUNT", at_once}));
  if (page.array.size() != 2 || page.array[0].text.empty() || ++now.pages > kMostPages) return unexpected();
  for (const RedisReply& item : page.array[1].array) {
    if (const auto id = id_of(item)) now.there.insert(*id);
  }
  if (now.there.size() > kMostIds) return unexpected();
  now.cursor = page.array[0].text;
  now.walked = now.cursor == "0";
  return {};
}

// What was put meanwhile need not be in it.
void RedisTier::compare(News& news) {
  Listing& now = *listing_;
  std::vector<uint64_t> gone;
  for (const auto& [id, entry] : entries_) {
    if (entry.touched < now.begun && !now.there.contains(id)) gone.push_back(id);
  }
  for (const uint64_t id : gone) {
    forget(id);
    news.removed.push_back(id);
  }
  for (const uint64_t id : now.there) {
    if (!entries_.contains(id)) now.lacking.push_back(id);
  }
  now.there.clear();
  std::ranges::sort(now.lacking, std::greater<>());  // what a piece continues comes before it
}

Status RedisTier::read_log(News& news) {
  KVILT_ASSIGN(const RedisReply read, ask({"XREAD", "COUNT", kLinesAtOnce, "STREAMS", log_, read_to_}));
  if (read.kind == RedisReply::Kind::kNil) return {};
  if (read.array.size() != 1 || read.array[0].array.size() != 2) return unexpected();
  std::unordered_set<uint64_t> stored;
  for (const RedisReply& line : read.array[0].array[1].array) {
    if (!read_line(line, stored, news)) return unexpected();
  }
  return fetch({stored.begin(), stored.end()}, false, news);
}

// [place in the stream, [word, id]]
bool RedisTier::read_line(const RedisReply& line, std::unordered_set<uint64_t>& stored, News& news) {
  if (line.array.size() != 2 || line.array[0].text.empty()) return false;
  read_to_ = line.array[0].text;
  const std::vector<RedisReply>& said = line.array[1].array;
  if (said.size() != 2) return true;  // a later version's
  const auto remove = [&](uint64_t id) {
    stored.erase(id);
    if (forget(id)) news.remove(id);
  };
  const auto id = id_of(said[1]);
  if (said[0].text == "put" && id) {
    const auto it = entries_.find(*id);
    const bool another =
        it == entries_.end() ? !stored.insert(*id).second : !std::exchange(it->second.line_comes, false);
    if (another) collided(*id, stored, news);
  }
  if (said[0].text == "del" && id) remove(*id);
  return true;
}

// Two processes drew one id: the values of one are written over, and nobody knows whose. Both pieces go, for all.
void RedisTier::collided(uint64_t id, std::unordered_set<uint64_t>& stored, News& news) {
  stored.erase(id);
  const auto it = entries_.find(id);
  const int32_t chunks = it == entries_.end() ? 0 : chunks_of(it->second.tokens);
  if (forget(id)) news.remove(id);
  erase(id, chunks);
}

// Their records; those that are gone leave the set.
Status RedisTier::fetch(std::vector<uint64_t> ids, bool lines_come, News& news) {
  std::ranges::sort(ids);  // what a piece continues has a smaller one
  for (size_t i = 0; i < ids.size(); i += kRecordsAtOnce) {
    const std::span<const uint64_t> some = std::span(ids).subspan(i, std::min(kRecordsAtOnce, ids.size() - i));
    std::vector<std::string> keys;
    for (const uint64_t id : some) keys.push_back(record_key(id));
    std::vector<RedisCommand> commands;
    const std::string last = fmt::format("{}", kMostRecordBytes);
    for (const std::string& key : keys) commands.push_back({"GETRANGE", key, "0", last});
    KVILT_ASSIGN(const auto records, ask_all(commands, static_cast<int64_t>(some.size()) * kMostRecordBytes));
    for (size_t j = 0; j < some.size(); ++j) {
      const RedisReply& record = records[j];  // what Redis refuses may well be there
      if (record.failed() && !record.text.starts_with("WRONGTYPE")) return refusal(record);
      if (std::optional<StoredPiece> piece = decode(some[j], record.text)) {
        enter(*piece, lines_come);
        news.stored.push_back(*std::move(piece));
      } else {
        news.errors += record.text.empty() ? 0 : 1;  // it was dropped, or it is damaged
        erase(some[j], 0);
      }
    }
    // erase() may have lost the connection, and with it the listing that these are of.
    if (!connection_) return error(Code::kUnavailable, "Redis at {} went away", options_.address.shown());
  }
  return {};
}

// Whether all values of some pieces are there, all pieces in turn. More at the next call where many are gone, so that
// what is known does not grow without end behind a full Redis. TTL is no use of a key, as EXISTS is in old versions.
Status RedisTier::look_for_dropped(News& news) {
  if (to_look_for_.empty()) {
    for (const auto& [id, entry] : entries_) to_look_for_.push_back(id);
  }
  std::vector<uint64_t> ids;
  std::vector<std::string> keys;
  std::vector<size_t> ends;  // of each piece's keys
  while (!to_look_for_.empty() && ids.size() < looks_ && keys.size() < kKeysAtOnce) {
    const auto it = entries_.find(to_look_for_.back());
    to_look_for_.pop_back();
    if (it == entries_.end()) continue;
    ids.push_back(it->first);
    keys.push_back(record_key(it->first));
    for (int32_t i = 0; i < chunks_of(it->second.tokens); ++i) keys.push_back(chunk_key(it->first, i));
    ends.push_back(keys.size());
  }
  if (ids.empty()) return {};
  std::vector<RedisCommand> commands;
  for (const std::string& key : keys) commands.push_back({"TTL", key});
  KVILT_ASSIGN(const auto replies, ask_all(commands));
  size_t at = 0, gone = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    bool there = true;
    for (; at < ends[i]; ++at) there = there && (replies[at].failed() || replies[at].number != kNoSuchKey);
    if (there) continue;
    ++gone;
    news.remove(ids[i]);
    remove(ids[i]);
  }
  looks_ = std::clamp(4 * gone > ids.size() ? 2 * looks_ : looks_ / 2, kFewestLooks, kMostLooks);
  return {};
}

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
  clear_first_ = !connection_;
  return connection_ ? Status() : Status(error(Code::kUnavailable, "Redis went away while it was cleared"));
}

}  // namespace kvilt
