// model/tensor_table.h: the tensors of a weight file by name, whichever kind of file it is, and their binding to roles.
// Role:       gguf.cc and safetensors.cc fill a table; bind_weights turns names into ModelWeights, checking every
//             shape.
// Invariants: a stored tensor's bytes lie inside its mapped file; names are unique; a dtype this build cannot read
//             stays in the table and is an error only when a role asks for it.
// Threads:    filled by one, then immutable.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/weights.h"

namespace kvilt {

// Of a file that is read: far above any model.
inline constexpr uint64_t kMaxTensors = 1 << 17;
inline constexpr uint64_t kMaxTensorElements = uint64_t{1} << 48;

struct StoredTensor {
  std::string name;
  std::string type_name;  // as the file's format calls it
  bool readable = false;  // dtype and bytes are valid
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0;  // cols: the dimension that is contiguous
  const std::byte* data = nullptr;
  size_t bytes = 0;
  Tensor view() const { return {data, dtype, rows, cols}; }
};

class TensorTable {
 public:
  // Returns false if the name is taken.
  bool add(StoredTensor tensor);
  const StoredTensor* find(const std::string& name) const;
  const std::map<std::string, StoredTensor>& all() const { return tensors_; }
  size_t bytes() const;  // of all readable tensors

 private:
  std::map<std::string, StoredTensor> tensors_;
};

enum class NameStyle : uint8_t { kGguf, kHuggingFace };

// Biases that must be there; any other bias is optional.
struct BiasRule {
  bool qkv = false, o = false, mlp = false;
};

struct BindRequest {
  const ModelConfig& config;
  const TensorTable& table;
  NameStyle style = NameStyle::kGguf;
  BiasRule required;
  std::string file;  // for messages
};

// Errors: kCorrupt (missing, or a shape that contradicts the config), kUnsupported (a dtype).
Result<ModelWeights> bind_weights(const BindRequest& request);

// Makes a text from a file fit for a message: escapes control characters and bytes beyond ASCII, and cuts long ones.
std::string printable(std::string_view text, size_t max_bytes = 120);

}  // namespace kvilt
