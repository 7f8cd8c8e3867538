// events/kv_event.cc: see kv_event.h.
#include "events/kv_event.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMedium = "GPU";  // vLLM's word for the memory that attention reads, also on a CPU
constexpr const char* kTags[] = {"BlockStored", "BlockRemoved", "AllBlocksCleared"};

// The event's fields after the tag, in the order of the wire. What follows the last that is set is left out.
Json fields_of(const KvEvent& event) {
  Json fields = Json::object();
  if (event.kind == KvEvent::Kind::kCleared) return fields;
  fields["block_hashes"] = event.hashes;
  if (event.kind == KvEvent::Kind::kStored) {
    fields["parent_block_hash"] = event.parent ? Json(*event.parent) : Json();
    fields["token_ids"] = event.tokens;
    fields["block_size"] = event.block_size;
    fields["lora_id"] = Json();
  }
  fields["medium"] = kMedium;
  if (event.kind == KvEvent::Kind::kStored) {
    fields["lora_name"] = Json();
    if (event.domain != 0) {
      const Json one = Json::array({fmt::format("{:016x}", event.domain)});
      fields["extra_keys"] = std::vector<Json>(event.hashes.size(), one);
    }
  }
  return fields;
}

Json array_of(const char* tag, const Json& fields) {
  Json out = Json::array({tag});
  for (const Json& value : fields) out.push_back(value);
  return out;
}

Json map_of(const char* tag, Json fields) {
  fields["type"] = tag;
  return fields;
}

}  // namespace

std::vector<uint8_t> encode_kv_events(KvEventWire format, double ts, std::span<const KvEvent> events) {
  Json list = Json::array();
  for (const KvEvent& event : events) {
    const char* tag = kTags[static_cast<int>(event.kind)];
    list.push_back(format == KvEventWire::kMap ? map_of(tag, fields_of(event)) : array_of(tag, fields_of(event)));
  }
  constexpr int kRank = 0;  // of data parallelism: there is one engine
  return Json::to_msgpack(Json::array({ts, std::move(list), kRank}));
}

}  // namespace kvilt
