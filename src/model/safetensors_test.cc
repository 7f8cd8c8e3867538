// The safetensors container: one defect at a time, and shards.
#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/gguf_bytes_for_test.h"
#include "model/json_text.h"

namespace kvilt {
namespace {

std::string file_of(const std::string& header, size_t data_bytes) {
  return GgufBytes::raw<uint64_t>(header.size()) + header + std::string(data_bytes, 'd');
}

Status parse(const std::string& bytes, TensorTable& table) {
  return parse_safetensors(bytes_of(bytes), "the.safetensors", table);
}

TEST(Safetensors, ReadsTensorsOfEveryShape) {
  TensorTable table;
  const std::string bytes = file_of(
      R"({"__metadata__": {"format": "pt"}, "m": {"dtype": "F16", "shape": [2, 3], "data_offsets": [4, 16]},
          "s": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}, "v": {"dtype": "BF16", "shape": [5], "data_offsets": [16, 26]},
          "i": {"dtype": "I64", "shape": [1], "data_offsets": [26, 34]}, "e": {"dtype": "F32", "shape": [0], "data_offsets": [34, 34]}})",
      34);
  const Status status = parse(bytes, table);
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(table.all().size(), 5u);
  EXPECT_EQ(table.find("m")->rows, 2);
  EXPECT_EQ(table.find("m")->cols, 3);
  EXPECT_EQ(table.find("v")->rows, 1);
  EXPECT_EQ(table.find("v")->cols, 5);
  EXPECT_EQ(table.find("s")->cols, 1);
  EXPECT_EQ(table.find("m")->data - table.find("s")->data, 4);
  EXPECT_FALSE(table.find("i")->readable);
  EXPECT_FALSE(table.find("e")->readable);
}

TEST(Safetensors, NamesFileTensorAndDefect) {
  const auto one = [](const std::string& fields) { return file_of(R"({"the.tensor": )" + fields + "}", 16); };
  std::string deep(5000, '[');
  const struct {
    std::string bytes;
    const char* part;
  } cases[] = {
      {"", "truncated"},
      {"1234567", "truncated"},
      {GgufBytes::raw<uint64_t>(~0ull) + "{}", "header length"},
      {GgufBytes::raw<uint64_t>(3) + "{}", "header length"},
      {file_of("{", 0), "not valid JSON"},
      {file_of("[]", 0), "not a JSON object"},
      {file_of(deep, 0), "nested too deep"},
      {file_of("{\"\xff\": 1}", 0), "not valid JSON"},
      {file_of(R"({"a": 1, "a": 2})", 0), "'a' is there twice"},
      {one("7"), "lacks dtype"},
      {one(R"({"dtype": "F32", "shape": [4]})"), "lacks dtype"},
      {one(R"({"dtype": 1, "shape": [4], "data_offsets": [0, 16]})"), "lacks dtype"},
      {one(R"({"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]})"), "no natural number"},
      {one(R"({"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]})"), "no natural number"},
      {one(R"({"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 16]})"), "too many elements"},
      {one(R"({"dtype": "F32", "shape": [18446744073709551615], "data_offsets": [0, 16]})"), "too many elements"},
      {one(R"({"dtype": "F32", "shape": [0, 9000000000000000000], "data_offsets": [0, 0]})"), "too many elements"},
      {one(R"({"dtype": "F32", "shape": [1,1,1,1,1,1,1,1,4], "data_offsets": [0, 16]})"), "9 dimensions"},
      {one(R"({"dtype": "F32", "shape": [4], "data_offsets": [16, 0]})"), "lie outside"},
      {one(R"({"dtype": "F32", "shape": [4], "data_offsets": [4, 20]})"), "truncated"},
      {one(R"({"dtype": "F32", "shape": [4], "data_offsets": [0, 18446744073709551615]})"), "lie outside"},
      {one(R"({"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]})"), "not negative"},
      {one(R"({"dtype": "F32", "shape": [4], "data_offsets": [0]})"), "two numbers"},
      {one(R"({"dtype": "F32", "shape": [3], "data_offsets": [0, 16]})"), "16 bytes of data for a shape that takes 12"},
      {file_of(
           R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})",
           12),
       "tensor 'b' overlaps tensor 'a'"},
  };
  for (const auto& c : cases) {
    TensorTable table;
    const Status status = parse(c.bytes, table);
    ASSERT_FALSE(status.ok()) << c.part;
    EXPECT_EQ(status.error().code, Code::kCorrupt);
    EXPECT_NE(status.error().message.find(c.part), std::string::npos) << status.error().message << " wanted " << c.part;
    EXPECT_EQ(status.error().message.rfind("the.safetensors", 0), 0u) << status.error().message;
  }
}

TEST(Safetensors, ANameMayStandInOneShardOnly) {
  TensorTable table;
  const std::string a = file_of(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", 8);
  EXPECT_TRUE(parse(a, table).ok());
  const Status again = parse(a, table);
  ASSERT_FALSE(again.ok());
  EXPECT_NE(again.error().message.find("another shard"), std::string::npos);
}

// The time once grew as the square of the number of objects: 18 minutes for a config.json of 4 MiB.
TEST(Safetensors, ManySmallObjectsAreReadInOnePass) {
  std::string objects = "[{}";
  for (int i = 0; i < 500'000; ++i) objects += ",{}";
  const auto parsed = parse_json(objects + "]", "a.json");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->size(), 500'001u);
}

}  // namespace
}  // namespace kvilt
