// Compares dequantisation with the numpy code of the `gguf` package, bit for bit (tests/fixtures/make_gguf_quants.py).
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/mapped_file.h"
#include "model/gguf.h"
#include "tensor/dequantize.h"

namespace kvilt {
namespace {

constexpr const char* kFixture = "tests/data/gguf/quants.gguf";

std::vector<float> values(const StoredTensor& tensor) {
  std::vector<float> out(static_cast<size_t>(tensor.rows * tensor.cols));
  dequantize(tensor.dtype, tensor.data, out.size(), out.data());
  return out;
}

TEST(Dequantize, EveryTypeEqualsThePythonPackageBitForBit) {
  const auto file = MappedFile::open(kFixture);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto gguf = parse_gguf(file->bytes(), kFixture);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  int types = 0;
  for (const auto& [name, tensor] : gguf->tensors.all()) {
    if (name.ends_with(".expected")) continue;
    const StoredTensor* expected = gguf->tensors.find(name + ".expected");
    ASSERT_TRUE(expected && tensor.readable) << name;
    EXPECT_EQ(tensor.type_name, name);
    EXPECT_EQ(tensor.bytes, dtype_bytes(tensor.dtype, 4 * 512));
    const std::vector<float> got = values(tensor), want = values(*expected);
    ASSERT_EQ(got.size(), want.size());
    size_t different = 0, nonzero = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      different += std::memcmp(&got[i], &want[i], sizeof(float)) != 0;
      nonzero += want[i] != 0;
    }
    EXPECT_EQ(different, 0u) << name;
    EXPECT_GT(nonzero, got.size() / 2) << name << ": power check";
    ++types;
  }
  EXPECT_EQ(types, 16);
}

TEST(Dequantize, RowsAreIndependent) {  // a row dequantised by itself equals the row in its matrix
  const auto file = MappedFile::open(kFixture);
  ASSERT_TRUE(file.ok());
  const auto gguf = parse_gguf(file->bytes(), kFixture);
  ASSERT_TRUE(gguf.ok());
  for (const auto& [name, tensor] : gguf->tensors.all()) {
    const std::vector<float> all = values(tensor);
    std::vector<float> row(static_cast<size_t>(tensor.cols));
    dequantize(tensor.dtype, tensor.data + 2 * tensor.view().row_bytes(), row.size(), row.data());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), all.begin() + 2 * tensor.cols)) << name;
  }
}

}  // namespace
}  // namespace kvilt
