// server/list_page.h: pages of lists, in OpenAI's words: `limit`, and then `first_id`, `last_id` and `has_more`.
// Not here: `after`, by which a list finds where its page begins.
#pragma once

#include <charconv>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "server/json_fields.h"

namespace kvilt::server {

// A limit as the query has it; null: it is no number from 1 to `most`.
inline std::optional<size_t> page_limit(std::string_view text, size_t most) {
  size_t out = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), out);
  const bool whole = failed == std::errc() && end == text.data() + text.size();
  return whole && out >= 1 && out <= most ? std::optional(out) : std::nullopt;
}

// data: objects with an `id`. more: others follow.
inline Json page_json(Json data, bool more) {
  const Json first = data.empty() ? Json(nullptr) : data.front()["id"];
  const Json last = data.empty() ? Json(nullptr) : data.back()["id"];
  return {{"object", "list"}, {"data", std::move(data)}, {"first_id", first}, {"last_id", last}, {"has_more", more}};
}

}  // namespace kvilt::server
