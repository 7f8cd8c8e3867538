// tier/redis_replies.h: what replies of Redis say: ids of pieces, and errors.
#pragma once

#include <charconv>
#include <optional>
#include <vector>

#include "base/error.h"
#include "tier/piece_id.h"
#include "tier/redis_parser.h"

namespace kvilt {

// Nothing: no id of ours.
inline std::optional<uint64_t> id_of(const RedisReply& reply) {
  const std::string& text = reply.text;
  uint64_t id = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), id, 16);
  if (text.size() != 16 || parsed.ptr != text.data() + text.size() || id == 0 || id >= kMostPieceId) return {};
  return id;
}

// What Redis says no to, in its words, as far as they can be shown.
inline Error refusal(const RedisReply& reply) {
  std::string words = reply.text.substr(0, 160);
  for (char& c : words) {
    if (c < ' ' || c > '~') c = '?';
  }
  const Code code = words.starts_with("OOM") ? Code::kExhausted : Code::kIo;
  return Error{code, "Redis says: " + words};
}

inline Status check_all(const std::vector<RedisReply>& replies) {
  for (const RedisReply& reply : replies) {
    if (reply.failed()) return refusal(reply);
  }
  return {};
}

inline Error unexpected() { return Error{Code::kCorrupt, "Redis answers something that was not asked"}; }

}  // namespace kvilt
