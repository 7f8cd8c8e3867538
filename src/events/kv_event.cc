// events/kv_event.cc: see kv_event.h.
#include "events/kv_event.h"

#include <fmt/format.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <utility>

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMedium = "GPU";  // vLLM's word for the memory that attention reads, also on a CPU
constexpr uint8_t kArrayOfThree = 0x93, kFloat64 = 0xcb;  // of msgpack
constexpr uint8_t kRank = 0;                              // of data parallelism: there is one engine
constexpr const char* kTags[] = {"BlockStored", "BlockRemoved", "AllBlocksCleared"};

// The event's name and fields, in the order of the wire. What follows the last that is set is left out.
Json fields_of(const KvEvent& event) {
  Json fields = Json::object({{"type", kTags[static_cast<int>(event.kind)]}});
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

Json values_of(const Json& fields) {
  Json out = Json::array();
  for (const Json& value : fields) out.push_back(value);
  return out;
}

}  // namespace

std::vector<uint8_t> encode_kv_events(KvEventWire format, double ts, std::span<const KvEvent> events) {
  Json list = Json::array();
  for (const KvEvent& event : events) {
    Json fields = fields_of(event);
    list.push_back(format == KvEventWire::kMap ? std::move(fields) : values_of(fields));
  }
  // By hand: the library writes 32 bits where they hold the same, which msgspec never does and some readers refuse.
  std::vector<uint8_t> out = {kArrayOfThree, kFloat64};
  const auto bits = std::bit_cast<uint64_t>(ts);
  for (int shift = 56; shift >= 0; shift -= 8) out.push_back(static_cast<uint8_t>(bits >> shift));
  Json::to_msgpack(list, out);
  out.push_back(kRank);
  return out;
}

}  // namespace kvilt
