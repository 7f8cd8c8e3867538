// model/gguf.h: GGUF v3 container: typed metadata and the tensor table, as views into the mapped bytes.
// Source:     the GGUF specification (docs/formats/gguf.md); version 2 has the same layout and is read too.
// Invariants: every view lies inside the bytes given to parse; keys and tensor names are unique; tensors do not
//             overlap.
// Errors:     kCorrupt names file, key or tensor and reason; kUnsupported for other versions.
// Cost:       one walk over metadata and table, O(bytes) of both; tensor contents are not touched.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvilt/result.h"
#include "model/tensor_table.h"

namespace kvilt {

enum class GgufType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

// One metadata value, as its bytes. The accessors return nothing if the type does not fit.
struct GgufValue {
  GgufType type = GgufType::kU8;
  GgufType element = GgufType::kU8;  // of an array
  uint64_t count = 1;                // elements of an array
  std::span<const std::byte> bytes;  // contents without the headers of value or array

  std::optional<int64_t> as_int() const;    // any integer type whose value fits
  std::optional<double> as_number() const;  // any integer or floating type
  std::optional<bool> as_bool() const;
  std::optional<std::string_view> as_string() const;
  std::optional<std::vector<int64_t>> as_ints() const;
  std::optional<std::vector<uint8_t>> as_bools() const;
  std::optional<std::vector<float>> as_floats() const;
  std::optional<std::vector<std::string_view>> as_strings() const;
};

struct GgufFile {
  std::map<std::string, GgufValue, std::less<>> metadata;
  TensorTable tensors;

  const GgufValue* find(std::string_view key) const;
};

// "F32, F16, ...", for messages.
std::string readable_gguf_types();

// bytes must outlive the result. file: for messages.
Result<GgufFile> parse_gguf(std::span<const std::byte> bytes, const std::string& file);

}  // namespace kvilt
