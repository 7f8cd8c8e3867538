// tier/redis_news.cc: RedisTier's part that hears: what others stored and removed, and what Redis dropped by itself.
// Idea:     a line of the stream for each change; the set of all ids at the start, after a lost connection and now and
//           then; and a look whether some of the pieces are still there.
// Cost:     a call of news() two or three round trips; a listing as long as RedisOptions::list_for at a time.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/hex.h"
#include "tier/redis_replies.h"
#include "tier/redis_tier.h"

namespace kvilt {
namespace {

constexpr const char* kLinesAtOnce = "1000";
constexpr size_t kRecordsAtOnce = 16;
constexpr size_t kKeysAtOnce = 1000;                    // that are asked for, and those of one piece more
constexpr int64_t kNoSuchKey = -2;                      // of TTL
constexpr int kMostPages = 1 << 14;                     // of the set, with kIdsAtOnce ids each
constexpr int64_t kMostRecordBytes = int64_t{1} << 24;  // 4 million tokens

}  // namespace

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
  if (!connection_ && options_.patience && Clock::now() - heard_ > *options_.patience) count_as_empty(out);
  if (!connection_ && Clock::now() < next_try_) return out;
  const bool reached = connection_ != nullptr || [&] {
    const Status done = connect();
    if (!done.ok()) drop(done.error());
    return done.ok();
  }();
  const Status done = reached ? hear(out) : Status(Error{Code::kUnavailable, {}});
  if (done.ok()) {
    heard_ = Clock::now();
    return out;
  }
  ++out.errors;
  if (connection_) drop(done.error());  // it answers, but not what it should
  return out;
}

// While others can be asked, what they hold must not be taken for what this one has.
void RedisTier::count_as_empty(News& news) {
  if (entries_.empty()) return;
  for (const auto& [id, entry] : entries_) news.removed.push_back(id);
  spdlog::warn("Redis at {} stays away: its {} pieces count as gone until it is back", options_.address.shown(),
               entries_.size());
  entries_.clear();
  to_look_for_.clear();
  bytes_ = 0;
  news.came_back = true;
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
    if (clear_first_) return {};  // so does this
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
    KVILT_TRY(walk_on(news));
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

// A set that is too large is listed as far as may be: what is listed is of use, and what of it is gone leaves the set.
Status RedisTier::walk_on(News& news) {
  Listing& now = *listing_;
  const std::string at_once = std::to_string(std::min<size_t>(kIdsAtOnce, options_.most_ids));
  KVILT_ASSIGN(const RedisReply page, ask({"SSCAN", all_, now.cursor, "COUNT", at_once}));
  if (page.array.size() != 2 || page.array[0].text.empty() || ++now.pages > kMostPages) return unexpected();
  for (const RedisReply& item : page.array[1].array) {
    if (const auto id = id_of(item)) now.there.insert(*id);
  }
  now.cursor = page.array[0].text;
  cut_ = now.there.size() > options_.most_ids;
  now.walked = cut_ || now.cursor == "0";
  if (!cut_ || std::exchange(too_many_, true)) return {};
  ++news.errors;
  spdlog::warn("Redis at {} names more than {} pieces: this server knows of no others; give it less memory, or several",
               options_.address.shown(), options_.most_ids);
  return {};
}

// What was put meanwhile need not be in it; nor need anything, where only a part is listed: look_for_dropped() finds what
// is gone.
void RedisTier::compare(News& news) {
  Listing& now = *listing_;
  std::vector<uint64_t> gone;
  for (const auto& [id, entry] : entries_) {
    if (!cut_ && entry.touched < now.begun && !now.there.contains(id)) gone.push_back(id);
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

}  // namespace kvilt
