// What a Redis, or whoever answers in its place, says to a tier: whatever it is, what is told of it keeps its own rules,
// and what it is said to hold is what was told. The input is all that it ever sends. Nothing waits: a connection is made
// of the rest of the input, and ends with it.
// A record that begins with 16 zeros gets the digest that it needs, so that the fuzzer reaches what is behind it.
#include <spdlog/spdlog.h>

#include <cstring>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "tier/piece_record.h"
#include "tier/redis_connection.h"
#include "tier/redis_tier.h"

namespace kvilt {
namespace {

const HashSecret& secret() {
  static const HashSecret fixed = HashSecret::fixed(1);
  return fixed;
}

std::string_view g_input;  // that no connection has read yet

void sign(std::string& record) {
  Digest digest{};
  if (record.size() < digest.size() || std::memcmp(record.data(), digest.data(), digest.size()) != 0) return;
  const std::string_view piece = std::string_view(record).substr(digest.size());
  digest = KeyedHash(secret(), "kvilt.redis.record").add(piece).finish();
  std::memcpy(record.data(), digest.data(), digest.size());
}

}  // namespace

// Of a connection everything but its socket.
void RedisConnection::Free::operator()(redisContext*) const {}
RedisConnection::RedisConnection(redisContext* context) : context_(context) {}
RedisConnection::~RedisConnection() = default;

Result<std::unique_ptr<RedisConnection>> RedisConnection::open(const RedisAddress&, std::chrono::milliseconds) {
  if (g_input.empty()) return error(Code::kUnavailable, "nobody listens");
  std::unique_ptr<RedisConnection> out(new RedisConnection(nullptr));
  KVILT_TRY(out->parser_.feed(std::exchange(g_input, {})));
  return out;
}

Result<std::vector<RedisReply>> RedisConnection::ask(std::span<const RedisCommand> commands, std::chrono::milliseconds,
                                                     int64_t) {
  std::vector<RedisReply> out;
  while (out.size() < commands.size()) {
    KVILT_ASSIGN(std::optional<RedisReply> reply, parser_.next());
    if (!reply) return error(Code::kUnavailable, "it closed the connection");
    sign(reply->text);
    out.push_back(*std::move(reply));
  }
  return out;
}

namespace {

void check_piece(const StoredPiece& piece) {
  CHECK(piece.id != 0 && piece.parent < piece.id && piece.count() > 0 && piece.token_bytes > 0);
  CHECK(piece.blocks == 1 && std::ssize(piece.checksums) == chunks_of(piece.count()) &&
        piece.parent_tokens <= piece.pos);
  std::vector<std::byte> bytes;
  encode_piece(piece, bytes);
  const auto again = decode_piece(bytes);
  CHECK(again.ok() && *again == piece);
}

// What is told is what is there.
void take(const Tier::News& news, std::unordered_set<uint64_t>& there) {
  for (const uint64_t id : news.removed) there.erase(id);
  for (const StoredPiece& piece : news.stored) {
    check_piece(piece);
    there.insert(piece.id);
  }
}

void run(std::string_view input) {
  g_input = input;
  RedisOptions options;
  options.secret = secret();
  const std::unique_ptr<RedisTier> tier = RedisTier::open(std::move(options)).value();
  std::unordered_set<uint64_t> there;
  const auto known = tier->known(Digest{}, 24);
  CHECK(known.ok());
  take({.stored = *known, .removed = {}}, there);
  for (int i = 0; i < 4; ++i) {
    take(tier->news(), there);
    CHECK(tier->pieces() == std::ssize(there) && tier->bytes() >= 0);
  }
  std::vector<std::byte> out;
  for (const uint64_t id : std::vector<uint64_t>(there.begin(), there.end())) {
    (void)tier->get(id, 0, out);
    tier->touch(id);
  }
  (void)tier->clear();
  CHECK(tier->bytes() >= 0);
}

}  // namespace
}  // namespace kvilt

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  spdlog::set_level(spdlog::level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvilt::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
