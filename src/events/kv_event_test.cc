#include "events/kv_event.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace kvilt {
namespace {

using Json = nlohmann::json;

std::vector<KvEvent> one_of_each() {
  return {{.kind = KvEvent::Kind::kStored,
           .hashes = {0x8000000000000001, 2},
           .parent = 7,
           .tokens = {1, 2, 70000, 4},
           .block_size = 2},
          {.kind = KvEvent::Kind::kRemoved, .hashes = {2}},
          {}};
}

TEST(KvEvents, ArraysAreToTheByteWhatMsgspecWritesForOlderStructs) {
  const std::vector<uint8_t> expected = {
      0x93,                                                              // envelope: ts, events, rank
      0xcb, 0x3f, 0xf8, 0,    0,   0,   0,    0,    0,                   // 1.5 in 64 bits: some refuse 32
      0x93,                                                              // three events
      0x98,                                                              // BlockStored has eight fields with its tag
      0xab, 'B',  'l',  'o',  'c', 'k', 'S',  't',  'o', 'r', 'e', 'd',  //
      0x92, 0xcf, 0x80, 0,    0,   0,   0,    0,    0,   1,   2,         // hashes
      7,                                                                 // parent
      0x94, 1,    2,    0xce, 0,   1,   0x11, 0x70, 4,                   // token ids
      2,                                                                 // block size
      0xc0,                                                              // lora_id
      0xa3, 'G',  'P',  'U',                                             // medium
      0xc0,                                                              // lora_name
      0x93,                                                              // BlockRemoved
      0xac, 'B',  'l',  'o',  'c', 'k', 'R',  'e',  'm', 'o', 'v', 'e', 'd',  //
      0x91, 2,    0xa3, 'G',  'P', 'U',                                       //
      0x91,                                                                   // AllBlocksCleared
      0xb0, 'A',  'l',  'l',  'B', 'l', 'o',  'c',  'k', 's', 'C', 'l', 'e', 'a', 'r', 'e', 'd', 0x00};
  EXPECT_EQ(encode_kv_events(KvEventWire::kArray, 1.5, one_of_each()), expected);
}

TEST(KvEvents, AMapIsToTheByteWhatMsgspecWritesItsTypeFirst) {
  const std::vector<KvEvent> events = one_of_each();
  const std::string expected = std::string("\x93\xcb\x3f\xf8\0\0\0\0\0\0\x91\x83", 12) +
                               "\xa4type\xac"
                               "BlockRemoved\xac"
                               "block_hashes\x91\x02\xa6"
                               "medium\xa3GPU" +
                               '\0';
  const std::vector<uint8_t> written = encode_kv_events(KvEventWire::kMap, 1.5, std::span(events).subspan(1, 1));
  EXPECT_EQ(std::string(written.begin(), written.end()), expected);
}

TEST(KvEvents, MapsHaveTheSameFieldsByNameInTheSameBatch) {
  const Json batch = Json::from_msgpack(encode_kv_events(KvEventWire::kMap, 1.5, one_of_each()));
  const Json events = {{{"type", "BlockStored"},
                        {"block_hashes", {0x8000000000000001, 2}},
                        {"parent_block_hash", 7},
                        {"token_ids", {1, 2, 70000, 4}},
                        {"block_size", 2},
                        {"lora_id", nullptr},
                        {"medium", "GPU"},
                        {"lora_name", nullptr}},
                       {{"type", "BlockRemoved"}, {"block_hashes", Json::array({2})}, {"medium", "GPU"}},
                       {{"type", "AllBlocksCleared"}}};
  EXPECT_EQ(batch, Json::array({1.5, events, 0}));
}

TEST(KvEvents, ADomainIsAnExtraKeyOfEachBlock) {
  std::vector<KvEvent> events = one_of_each();
  events[0].domain = 0xabc;
  events[0].parent.reset();
  const Json map = Json::from_msgpack(encode_kv_events(KvEventWire::kMap, 0, events))[1][0];
  const Json keys = {Json::array({"0000000000000abc"}), Json::array({"0000000000000abc"})};
  EXPECT_EQ(map["extra_keys"], keys);
  EXPECT_TRUE(map["parent_block_hash"].is_null());
  const Json array = Json::from_msgpack(encode_kv_events(KvEventWire::kArray, 0, events))[1][0];
  EXPECT_EQ(array.size(), 9u);
  EXPECT_EQ(array[8], keys);
}

}  // namespace
}  // namespace kvilt
