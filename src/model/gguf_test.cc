// The GGUF container: values of every type, and one defect at a time.
#include "model/gguf.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/gguf_bytes_for_test.h"

namespace kvilt {
namespace {

constexpr uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2, kIq2Xxs = 16;
using Bytes = GgufBytes;

Result<GgufFile> parse(const std::string& bytes) { return parse_gguf(bytes_of(bytes), "the-file.gguf"); }

TEST(Gguf, ReadsValuesOfEveryType) {
  const std::string bytes = Bytes()
                                .value("u8", GgufType::kU8, Bytes::raw<uint8_t>(200))
                                .value("i8", GgufType::kI8, Bytes::raw<int8_t>(-100))
                                .value("u16", GgufType::kU16, Bytes::raw<uint16_t>(60000))
                                .value("i16", GgufType::kI16, Bytes::raw<int16_t>(-30000))
                                .u32("u32", 4000000000u)
                                .value("i32", GgufType::kI32, Bytes::raw<int32_t>(-7))
                                .f32("f32", 1.5f)
                                .value("true", GgufType::kBool, Bytes::raw<uint8_t>(1))
                                .string("text", "hello")
                                .value("u64", GgufType::kU64, Bytes::raw<uint64_t>(1ull << 40))
                                .value("huge", GgufType::kU64, Bytes::raw<uint64_t>(1ull << 63))
                                .value("i64", GgufType::kI64, Bytes::raw<int64_t>(-(1ll << 40)))
                                .value("f64", GgufType::kF64, Bytes::raw<double>(0.1))
                                .strings("list", {"a", "", "ccc"})
                                .numbers<int32_t>("ints", GgufType::kI32, {1, -2})
                                .numbers<float>("floats", GgufType::kF32, {0.5f})
                                .build();
  const auto gguf = parse(bytes);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  const auto integer = [&](const char* key) { return gguf->find(key)->as_int(); };
  EXPECT_EQ(integer("u8"), 200);
  EXPECT_EQ(integer("i8"), -100);
  EXPECT_EQ(integer("u16"), 60000);
  EXPECT_EQ(integer("i16"), -30000);
  EXPECT_EQ(integer("u32"), 4000000000);
  EXPECT_EQ(integer("i32"), -7);
  EXPECT_EQ(integer("u64"), 1ll << 40);
  EXPECT_EQ(integer("huge"), std::nullopt);
  EXPECT_EQ(integer("i64"), -(1ll << 40));
  EXPECT_EQ(integer("f32"), std::nullopt);
  EXPECT_EQ(integer("text"), std::nullopt);
  EXPECT_EQ(gguf->find("f32")->as_number(), 1.5);
  EXPECT_EQ(gguf->find("f64")->as_number(), 0.1);
  EXPECT_EQ(gguf->find("i8")->as_number(), -100);
  EXPECT_EQ(gguf->find("true")->as_bool(), true);
  EXPECT_EQ(gguf->find("u8")->as_bool(), std::nullopt);
  EXPECT_EQ(gguf->find("text")->as_string(), "hello");
  EXPECT_EQ(gguf->find("list")->as_string(), std::nullopt);
  EXPECT_EQ(gguf->find("list")->as_strings(), (std::vector<std::string_view>{"a", "", "ccc"}));
  EXPECT_EQ(gguf->find("ints")->as_strings(), std::nullopt);
  EXPECT_EQ(gguf->find("ints")->as_ints(), (std::vector<int64_t>{1, -2}));
  EXPECT_EQ(gguf->find("floats")->as_ints(), std::nullopt);
  EXPECT_EQ(gguf->find("floats")->as_floats(), std::vector<float>{0.5f});
  EXPECT_EQ(gguf->find("nothing"), nullptr);
}

TEST(Gguf, PlacesTensorsByOffsetAndAlignment) {
  const std::string four(16, 'x'), half(6, 'y');
  for (const uint32_t alignment : {1u, 8u, 64u}) {
    const std::string bytes = Bytes()
                                  .align(alignment)
                                  .tensor("a", {3}, kF16, half)
                                  .tensor("b", {2, 2}, kF32, four)
                                  .tensor("c", {2, 1, 2, 1}, kF32, four)
                                  .build();
    const auto gguf = parse(bytes);
    ASSERT_TRUE(gguf.ok()) << gguf.error().message;
    const StoredTensor *a = gguf->tensors.find("a"), *b = gguf->tensors.find("b"), *c = gguf->tensors.find("c");
    ASSERT_TRUE(a && b && c);
    EXPECT_EQ(*reinterpret_cast<const char*>(a->data), 'y');
    EXPECT_EQ(a->rows, 1);
    EXPECT_EQ(a->cols, 3);
    EXPECT_EQ(b->rows, 2);
    EXPECT_EQ(c->rows, 2);
    EXPECT_EQ(b->data - a->data, std::max<ptrdiff_t>(6, alignment));  // 6 rounded up to 1, 8 or 64: 6, 8, 64
    EXPECT_EQ(c->data + 16, reinterpret_cast<const std::byte*>(bytes.data()) + bytes.size());
  }
}

TEST(Gguf, KeepsTypesItCannotReadUntilTheyAreNeeded) {
  const std::string bytes =
      Bytes().tensor("odd", {256}, kIq2Xxs, std::string(66, 'x')).entry("new", {32}, 12345, 96).build() +
      std::string(64, 'z');
  const auto gguf = parse(bytes);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  EXPECT_FALSE(gguf->tensors.find("odd")->readable);
  EXPECT_EQ(gguf->tensors.find("odd")->type_name, "IQ2_XXS");
  EXPECT_EQ(gguf->tensors.find("new")->type_name, "number 12345");
}

struct Defect {
  std::string bytes;
  const char* part;  // of the message
  Code code = Code::kCorrupt;
};

std::vector<Defect> container_defects() {
  const std::string good = Bytes().u32("key", 1).build();
  std::vector<Defect> list = {
      {"", "does not begin"},
      {"GGU", "does not begin"},
      {"GGML....", "does not begin"},
      {"GGUF", "truncated"},
      {good.substr(0, 20), "truncated"},
      {Bytes().version(1).build(), "version 1", Code::kUnsupported},
      {Bytes().version(4).build(), "version 4", Code::kUnsupported},
      {Bytes().version(0x03000000).build(), "big-endian", Code::kUnsupported},
      {Bytes().u32("key", 1).claim_tensors(~0ull).build(), "tensor count"},
      {Bytes().align(1).entry("t", {1}, kF32, 0).claim_tensors(2).build(), "tensor entry 1"},
      {Bytes().u32("key", 1).claim_metadata(~0ull).build(), "metadata count"},
      {Bytes().align(1).u32("key", 1).claim_metadata(3).build(), "metadata entry 2"},
      {Bytes().u32("twice", 1).u32("twice", 2).build(), "'twice' is there twice"},
      {Bytes().value("key", static_cast<GgufType>(13), "abcd").build(), "'key': unknown value type"},
      {Bytes().value("flag", GgufType::kBool, "\x02").build(), "'flag': a boolean"},
      {Bytes().value("s", GgufType::kString, Bytes::raw(~0ull)).build(), "'s': a string that runs past"},
      {Bytes().value("s", GgufType::kString, Bytes::raw<uint64_t>(1 << 20)).build(), "'s': a string that runs past"},
      {Bytes().value("a", GgufType::kArray, Bytes::raw(99u) + Bytes::raw<uint64_t>(1)).build(),
       "unknown array element"},
      {Bytes().value("a", GgufType::kArray, Bytes::raw(4u) + Bytes::raw(~0ull)).build(), "too many elements"},
      {Bytes().value("a", GgufType::kArray, Bytes::raw(4u) + Bytes::raw<uint64_t>(1 << 20)).build(), "past the end"},
      {Bytes().value("a", GgufType::kArray, Bytes::raw(8u) + Bytes::raw<uint64_t>(1 << 20)).build(), "past the end"},
  };
  std::string nested;  // arrays of one array, far deeper than any stack
  for (int i = 0; i < 100000; ++i) nested += Bytes::raw(9u) + Bytes::raw<uint64_t>(1);
  list.push_back({Bytes().value("a", GgufType::kArray, nested).build(), "nested too deep"});
  return list;
}

std::vector<Defect> tensor_defects() {
  const std::string data(64, 'x');
  const auto with = [&](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    return Bytes().entry("the.tensor", dims, type, offset).build() + data;
  };
  std::vector<Defect> list = {
      {with({}, kF32, 0), "0 dimensions"},
      {with({1, 1, 1, 1, 1}, kF32, 0), "5 dimensions"},
      {with({0}, kF32, 0), "dimension 0 is 0"},
      {with({~0ull}, kF32, 0), "dimension 0"},
      {with({1ull << 32, 1ull << 32}, kF32, 0), "too many elements"},
      {with({1ull << 20, 1ull << 24, 1ull << 24, 1ull << 24}, kF32, 0), "too many elements"},
      {with({1ull << 40}, kF32, 0), "end beyond"},
      {with({17}, kF32, 0), "end beyond"},
      {with({33}, kQ4_0, 0), "whole number of Q4_0's blocks"},
      {with({4}, kF32, 32 + 4), "not a multiple of the alignment"},
      {with({4}, kF32, 96), "end beyond"},
      {with({4}, kF32, ~0ull - 31), "end beyond"},
      {with({4}, kIq2Xxs, 96), "end beyond"},  // even where the type is unknown
  };
  const std::string shared = Bytes().entry("one", {16}, kF32, 0).entry("two", {8}, kF32, 32).build() + data;
  list.push_back({shared, "tensor 'two' overlaps tensor 'one'"});
  const std::string twice =
      Bytes().tensor("one", {4}, kF32, data.substr(0, 16)).tensor("one", {4}, kF32, data.substr(0, 16)).build();
  list.push_back({twice, "tensor 'one' is there twice"});
  for (const uint32_t alignment : {0u, 3u, 1u << 31}) {
    list.push_back({Bytes().u32("general.alignment", alignment).build(), "general.alignment"});
  }
  list.push_back({Bytes().string("general.alignment", "32").build(), "general.alignment"});
  return list;
}

TEST(Gguf, NamesFileAndDefect) {
  for (const auto& defects : {container_defects(), tensor_defects()}) {
    for (const Defect& defect : defects) {
      const auto gguf = parse(defect.bytes);
      ASSERT_FALSE(gguf.ok()) << defect.part;
      EXPECT_EQ(gguf.error().code, defect.code) << gguf.error().message;
      EXPECT_NE(gguf.error().message.find(defect.part), std::string::npos)
          << gguf.error().message << " wanted " << defect.part;
      EXPECT_EQ(gguf.error().message.rfind("the-file.gguf: ", 0), 0u) << gguf.error().message;
    }
  }
  for (const Defect& defect : tensor_defects()) {
    const std::string message = parse(defect.bytes).error().message;
    const bool names_it =
        message.find("tensor '") != std::string::npos || message.find("general.") != std::string::npos;
    EXPECT_TRUE(names_it) << message;
  }
}

TEST(Gguf, EveryTruncationOfTheTableIsAnError) {
  const std::string good =
      Bytes().u32("k", 1).strings("list", {"a", "bb"}).tensor("t", {4}, kF32, std::string(16, 'x')).build();
  ASSERT_TRUE(parse(good).ok());
  for (size_t size = 0; size < good.size(); ++size) EXPECT_FALSE(parse(good.substr(0, size)).ok()) << size;
}

TEST(Gguf, NamesInMessagesArePrintable) {
  EXPECT_EQ(printable("blk.0"), "blk.0");
  EXPECT_EQ(printable(std::string_view("a\0\n\xff'", 5)), "a\\x00\\x0a\\xff'");
  EXPECT_LT(printable(std::string(100000, 'x')).size(), 200u);
}

}  // namespace
}  // namespace kvilt
