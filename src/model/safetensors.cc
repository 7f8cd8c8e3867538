#include "model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/error.h"
#include "model/json_text.h"

namespace kvilt {
namespace {

constexpr uint64_t kMaxHeaderBytes = 16 << 20;  // 100,000 tensors; parsed, some 20 times the bytes
constexpr size_t kMaxShape = 8;                 // dimensions

constexpr struct {
  std::string_view name;
  DType dtype;
} kReadable[] = {{"F32", DType::kF32}, {"F16", DType::kF16}, {"BF16", DType::kBF16}};

struct Extent {
  uint64_t begin, end;
  std::string name;
};

class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> bytes, const std::string& file, TensorTable& table)
      : bytes_(bytes), file_(file), table_(table) {}

  Status parse() {
    uint64_t header_bytes = 0;
    if (bytes_.size() < sizeof header_bytes) return corrupt("truncated: shorter than a safetensors header");
    std::memcpy(&header_bytes, bytes_.data(), sizeof header_bytes);
    if (header_bytes > bytes_.size() - sizeof header_bytes || header_bytes > kMaxHeaderBytes) {
      return corrupt("header length {} is more than the file holds, or than {}", header_bytes, kMaxHeaderBytes);
    }
    const auto* text = reinterpret_cast<const char*>(bytes_.data()) + sizeof header_bytes;
    KVILT_ASSIGN(const nlohmann::json header,
                 parse_json({text, static_cast<size_t>(header_bytes)}, file_ + " (header)"));
    if (!header.is_object()) return corrupt("its header is not a JSON object");
    if (header.size() > kMaxTensors) return corrupt("{} tensors; {} are allowed", header.size(), kMaxTensors);
    data_ = bytes_.subspan(sizeof header_bytes + header_bytes);
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__") KVILT_TRY(tensor(name, entry));
    }
    return check_overlaps();
  }

 private:
  template <class... Args>
  Error corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return error(Code::kCorrupt, "{}: {}", file_, fmt::format(format, std::forward<Args>(args)...));
  }

  Status tensor(const std::string& name, const nlohmann::json& entry) {
    const std::string shown = printable(name);
    const auto field = [&](const char* key) -> const nlohmann::json* {
      const auto it = entry.is_object() ? entry.find(key) : entry.end();
      return it == entry.end() ? nullptr : &*it;
    };
    const nlohmann::json *dtype = field("dtype"), *shape = field("shape"), *offsets = field("data_offsets");
    if (!dtype || !dtype->is_string() || !shape || !shape->is_array() || !offsets || !offsets->is_array()) {
      return corrupt("tensor '{}' lacks dtype, shape or data_offsets", shown);
    }
    StoredTensor tensor;
    tensor.name = name;
    tensor.type_name = printable(dtype->get_ref<const std::string&>());
    KVILT_TRY(set_shape(tensor, *shape));
    if (offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
      return corrupt("tensor '{}': data_offsets must be two numbers that are not negative", shown);
    }
    const auto begin = (*offsets)[0].get<uint64_t>(), end = (*offsets)[1].get<uint64_t>();
    if (begin > end || end > data_.size()) {
      return corrupt("tensor '{}': data_offsets {} to {} lie outside the file's {} bytes of tensor data (truncated?)",
                     shown, begin, end, data_.size());
    }
    for (const auto& known : kReadable) {
      if (tensor.type_name != known.name) continue;
      tensor.dtype = known.dtype;
      // At most 2^48 elements of 4 bytes: no overflow.
      tensor.bytes = dtype_bytes(known.dtype, static_cast<size_t>(tensor.rows) * static_cast<size_t>(tensor.cols));
      if (tensor.bytes != end - begin) {
        return corrupt("tensor '{}': {} bytes of data for a shape that takes {}", shown, end - begin, tensor.bytes);
      }
      tensor.readable = tensor.bytes > 0;
    }
    if (tensor.type_name == "U8") {  // no weight by itself: blocks of MXFP4 and their scales (reordered_experts.h)
      tensor.bytes = static_cast<size_t>(tensor.rows) * static_cast<size_t>(tensor.cols);
      if (tensor.bytes != end - begin) {
        return corrupt("tensor '{}': {} bytes of data for a shape that takes {}", shown, end - begin, tensor.bytes);
      }
    }
    tensor.data = data_.data() + begin;
    if (begin < end) extents_.push_back({begin, end, name});
    if (!table_.add(std::move(tensor))) return corrupt("tensor '{}' is in another shard too", shown);
    return {};
  }

  Status set_shape(StoredTensor& tensor, const nlohmann::json& shape) const {
    const std::string shown = printable(tensor.name);
    if (shape.size() > kMaxShape) return corrupt("tensor '{}' has {} dimensions", shown, shape.size());
    uint64_t rows = 1, cols = 1;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (!shape[d].is_number_unsigned()) return corrupt("tensor '{}': dimension {} is no natural number", shown, d);
      const auto size = shape[d].get<uint64_t>();
      uint64_t& product = d + 1 == shape.size() ? cols : rows;
      if (size > kMaxTensorElements || (product != 0 && size > kMaxTensorElements / product)) {
        return corrupt("tensor '{}': too many elements", shown);
      }
      product *= size;
    }
    if (cols != 0 && rows > kMaxTensorElements / cols) return corrupt("tensor '{}': too many elements", shown);
    tensor.rows = static_cast<int64_t>(rows);
    tensor.cols = static_cast<int64_t>(cols);
    return {};
  }

  Status check_overlaps() {
    std::ranges::sort(extents_, [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < extents_.size(); ++i) {
      if (extents_[i].begin < extents_[i - 1].end) {
        return corrupt("tensor '{}' overlaps tensor '{}'", printable(extents_[i].name),
                       printable(extents_[i - 1].name));
      }
    }
    return {};
  }

  const std::span<const std::byte> bytes_;
  const std::string& file_;
  TensorTable& table_;
  std::span<const std::byte> data_;
  std::vector<Extent> extents_;
};

}  // namespace

std::string readable_safetensors_types() {
  std::string out;
  for (const auto& type : kReadable) out += fmt::format("{}{}", out.empty() ? "" : ", ", type.name);
  return out;
}

Status parse_safetensors(std::span<const std::byte> bytes, const std::string& file, TensorTable& table) {
  return HeaderParser(bytes, file, table).parse();
}

}  // namespace kvilt
