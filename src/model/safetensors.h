// model/safetensors.h: the tensor table of one safetensors file: 8 bytes of length, a JSON header, the contents.
// Source:     the safetensors format description (docs/formats/safetensors.md).
// Invariants: as TensorTable's; tensors of one file do not overlap; a name is in one shard only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "kvilt/result.h"
#include "model/tensor_table.h"

namespace kvilt {

// "F32, F16, ...", for messages.
std::string readable_safetensors_types();

// Adds the tensors of one file; bytes must outlive the table. Errors: kCorrupt names file, tensor and reason.
Status parse_safetensors(std::span<const std::byte> bytes, const std::string& file, TensorTable& table);

}  // namespace kvilt
