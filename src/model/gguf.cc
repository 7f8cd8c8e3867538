#include "model/gguf.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace kvilt {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kOldestVersion = 2, kNewestVersion = 3;
constexpr uint64_t kMaxMetadata = 1 << 14;
constexpr uint64_t kMaxKeyBytes = 1 << 16;       // the specification's limit
constexpr uint64_t kMaxStringBytes = 16 << 20;   // chat templates are the longest
constexpr uint64_t kMaxArrayElements = 1 << 24;  // vocabularies and merges are the longest
constexpr int kMaxArrayDepth = 3;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32, kMaxAlignment = 1 << 20;
constexpr uint64_t kMinKeyValueBytes = 8 + 4 + 1, kMinTensorInfoBytes = 8 + 4 + 4 + 8;

// Size of a scalar; 0 for strings, arrays and unknown types.
size_t scalar_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

std::optional<int64_t> load_int(GgufType type, const std::byte* p) {
  switch (type) {
    case GgufType::kU8:
      return load<uint8_t>(p);
    case GgufType::kI8:
      return load<int8_t>(p);
    case GgufType::kU16:
      return load<uint16_t>(p);
    case GgufType::kI16:
      return load<int16_t>(p);
    case GgufType::kU32:
      return load<uint32_t>(p);
    case GgufType::kI32:
      return load<int32_t>(p);
    case GgufType::kI64:
      return load<int64_t>(p);
    case GgufType::kU64: {
      const auto value = load<uint64_t>(p);
      if (value > static_cast<uint64_t>(INT64_MAX)) return {};
      return static_cast<int64_t>(value);
    }
    default:
      return {};
  }
}

// GGML's tensor types by number; gaps are types that were removed.
struct GgmlType {
  uint32_t id;
  std::string_view name;
  std::optional<DType> dtype;
};
constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", DType::kF32},
    {1, "F16", DType::kF16},
    {2, "Q4_0", DType::kQ4_0},
    {3, "Q4_1", DType::kQ4_1},
    {6, "Q5_0", DType::kQ5_0},
    {7, "Q5_1", DType::kQ5_1},
    {8, "Q8_0", DType::kQ8_0},
    {9, "Q8_1", {}},
    {10, "Q2_K", DType::kQ2_K},
    {11, "Q3_K", DType::kQ3_K},
    {12, "Q4_K", DType::kQ4_K},
    {13, "Q5_K", DType::kQ5_K},
    {14, "Q6_K", DType::kQ6_K},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", DType::kIQ4NL},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", DType::kIQ4XS},
    {24, "I8", {}},
    {25, "I16", {}},
    {26, "I32", {}},
    {27, "I64", {}},
    {28, "F64", {}},
    {29, "IQ1_M", {}},
    {30, "BF16", DType::kBF16},
    {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},
    {39, "MXFP4", DType::kMXFP4},
};

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  Result<GgufFile> parse() {
    KVILT_TRY(header());
    for (uint64_t i = 0; i < metadata_count_; ++i) KVILT_TRY(key_value(i));
    KVILT_TRY(find_alignment());
    for (uint64_t i = 0; i < tensor_count_; ++i) KVILT_TRY(tensor_info(i));
    KVILT_TRY(place_tensors());
    return std::move(out_);
  }

 private:
  struct Pending {
    StoredTensor tensor;
    uint64_t offset;
  };

  template <class... Args>
  Error corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return error(Code::kCorrupt, "{}: {}", file_, fmt::format(format, std::forward<Args>(args)...));
  }
  size_t left() const { return bytes_.size() - at_; }

  template <class T>
  bool read(T& value) {
    if (left() < sizeof value) return false;
    value = load<T>(bytes_.data() + at_);
    at_ += sizeof value;
    return true;
  }
  bool read_string(std::string_view& text, uint64_t max) {
    uint64_t size;
    if (!read(size) || size > max || size > left()) return false;
    text = {reinterpret_cast<const char*>(bytes_.data() + at_), static_cast<size_t>(size)};
    at_ += size;
    return true;
  }

  Status header() {
    uint32_t magic, version;
    if (!read(magic) || magic != kMagic) return corrupt("not a GGUF file (it does not begin with 'GGUF')");
    if (!read(version)) return corrupt("truncated in the header");
    if (version < kOldestVersion || version > kNewestVersion) {
      const bool big_endian = (version & 0xffff) == 0 && version != 0;
      return error(Code::kUnsupported, "{}: GGUF version {}{}; this build reads version 3, little-endian", file_,
                   version, big_endian ? " (a big-endian file)" : "");
    }
    if (!read(tensor_count_) || !read(metadata_count_)) return corrupt("truncated in the header");
    if (tensor_count_ > kMaxTensors || tensor_count_ > left() / kMinTensorInfoBytes) {
      return corrupt("tensor count {} is more than the file can hold (or than {})", tensor_count_, kMaxTensors);
    }
    if (metadata_count_ > kMaxMetadata || metadata_count_ > left() / kMinKeyValueBytes) {
      return corrupt("metadata count {} is more than the file can hold (or than {})", metadata_count_, kMaxMetadata);
    }
    return {};
  }

  Status key_value(uint64_t index) {
    std::string_view key;
    uint32_t type;
    if (!read_string(key, kMaxKeyBytes) || !read(type)) {
      return corrupt("metadata entry {} of {}: its key runs past the end of the file or is too long", index,
                     metadata_count_);
    }
    GgufValue value;
    if (const char* why = read_value(type, value)) return corrupt("metadata '{}': {}", printable(key), why);
    if (!out_.metadata.emplace(std::string(key), value).second) {
      return corrupt("metadata '{}' is there twice", printable(key));
    }
    return {};
  }

  // Null when good, else the reason.
  const char* read_value(uint32_t type, GgufValue& value) {
    if (type > static_cast<uint32_t>(GgufType::kF64)) return "unknown value type";
    value.type = static_cast<GgufType>(type);
    size_t start = at_;
    if (value.type == GgufType::kArray) {
      uint32_t element;
      if (!read(element) || !read(value.count)) return "truncated array";
      if (element > static_cast<uint32_t>(GgufType::kF64)) return "unknown array element type";
      value.element = static_cast<GgufType>(element);
      start = at_;
      if (const char* why = skip_elements(value.element, value.count, 1)) return why;
    } else if (const char* why = skip_elements(value.type, 1, 1)) {
      return why;
    }
    value.bytes = bytes_.subspan(start, at_ - start);
    if (value.type == GgufType::kBool && value.bytes[0] > std::byte{1}) return "a boolean that is neither 0 nor 1";
    return nullptr;
  }

  const char* skip_elements(GgufType type, uint64_t count, int depth) {
    if (count > kMaxArrayElements) return "an array with too many elements";
    if (const size_t size = scalar_bytes(type)) {
      if (count > left() / size) return "runs past the end of the file";
      at_ += count * size;
      return nullptr;
    }
    for (uint64_t i = 0; i < count; ++i) {
      std::string_view text;
      if (type == GgufType::kString) {
        if (!read_string(text, kMaxStringBytes)) return "a string that runs past the end of the file or is too long";
        continue;
      }
      uint32_t element;
      uint64_t inner;
      if (depth >= kMaxArrayDepth) return "arrays nested too deep";
      if (!read(element) || !read(inner) || element > static_cast<uint32_t>(GgufType::kF64))
        return "a bad nested array";
      if (const char* why = skip_elements(static_cast<GgufType>(element), inner, depth + 1)) return why;
    }
    return nullptr;
  }

  Status find_alignment() {
    const GgufValue* value = out_.find("general.alignment");
    if (!value) return {};
    const auto alignment = value->as_int();
    if (!alignment || *alignment <= 0 || static_cast<uint64_t>(*alignment) > kMaxAlignment ||
        !std::has_single_bit(static_cast<uint64_t>(*alignment))) {
      return corrupt("general.alignment must be a power of two up to {}", kMaxAlignment);
    }
    alignment_ = static_cast<uint64_t>(*alignment);
    return {};
  }

  Status tensor_info(uint64_t index) {
    std::string_view name;
    uint32_t dims, type;
    if (!read_string(name, kMaxKeyBytes) || !read(dims)) {
      return corrupt("tensor entry {} of {}: its name runs past the end of the file or is too long", index,
                     tensor_count_);
    }
    const std::string shown = printable(name);
    if (dims < 1 || dims > kMaxDims)
      return corrupt("tensor '{}' has {} dimensions; 1 to {} are allowed", shown, dims, kMaxDims);
    uint64_t cols = 1, rows = 1, offset;
    for (uint32_t d = 0; d < dims; ++d) {
      uint64_t size;
      if (!read(size)) return corrupt("tensor '{}': truncated", shown);
      if (size == 0 || size > kMaxTensorElements) return corrupt("tensor '{}': dimension {} is {}", shown, d, size);
      uint64_t& product = d == 0 ? cols : rows;
      if (size > kMaxTensorElements / product) return corrupt("tensor '{}': too many elements", shown);
      product *= size;
    }
    if (rows > kMaxTensorElements / cols) return corrupt("tensor '{}': too many elements", shown);
    if (!read(type) || !read(offset)) return corrupt("tensor '{}': truncated", shown);
    if (offset % alignment_ != 0) {
      return corrupt("tensor '{}': offset {} is not a multiple of the alignment {}", shown, offset, alignment_);
    }
    StoredTensor tensor;
    tensor.name = std::string(name);
    tensor.rows = static_cast<int64_t>(rows);
    tensor.cols = static_cast<int64_t>(cols);
    KVILT_TRY(set_type(tensor, type));
    pending_.push_back({std::move(tensor), offset});
    return {};
  }

  Status set_type(StoredTensor& tensor, uint32_t id) const {
    const auto* known = std::find_if(std::begin(kGgmlTypes), std::end(kGgmlTypes), [&](auto& t) { return t.id == id; });
    tensor.type_name = known == std::end(kGgmlTypes) ? fmt::format("number {}", id) : std::string(known->name);
    if (known == std::end(kGgmlTypes) || !known->dtype) return {};
    tensor.dtype = *known->dtype;
    const int block = dtype_info(tensor.dtype).block;
    if (tensor.cols % block != 0) {
      return corrupt("tensor '{}': {} columns are no whole number of {}'s blocks of {}", printable(tensor.name),
                     tensor.cols, tensor.type_name, block);
    }
    // At most 2^48 elements of 4 bytes: no overflow.
    tensor.bytes = dtype_bytes(tensor.dtype, static_cast<size_t>(tensor.rows) * static_cast<size_t>(tensor.cols));
    tensor.readable = true;
    return {};
  }

  Status place_tensors() {
    const uint64_t padding = (alignment_ - at_ % alignment_) % alignment_;
    // A file without tensors (a vocabulary) may end here.
    const std::span<const std::byte> data =
        padding <= left() ? bytes_.subspan(at_ + padding) : bytes_.subspan(bytes_.size());
    std::ranges::sort(pending_, [](auto& a, auto& b) { return a.offset < b.offset; });
    uint64_t end = 0;
    std::string_view previous;
    for (Pending& item : pending_) {
      StoredTensor& tensor = item.tensor;
      const std::string shown = printable(tensor.name);
      if (item.offset > data.size() || tensor.bytes > data.size() - item.offset) {
        return corrupt(
            "tensor '{}': its {} bytes at offset {} end beyond the file's {} bytes of tensor data (truncated?)", shown,
            tensor.bytes, item.offset, data.size());
      }
      if (item.offset < end) return corrupt("tensor '{}' overlaps tensor '{}'", shown, printable(previous));
      tensor.data = data.data() + item.offset;
      end = item.offset + tensor.bytes;
      previous = tensor.name;
      if (!out_.tensors.add(tensor)) return corrupt("tensor '{}' is there twice", shown);
    }
    return {};
  }

  const std::span<const std::byte> bytes_;
  const std::string& file_;
  size_t at_ = 0;  // always <= bytes_.size()
  uint64_t tensor_count_ = 0, metadata_count_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  std::vector<Pending> pending_;
  GgufFile out_;
};

}  // namespace

std::optional<int64_t> GgufValue::as_int() const { return load_int(type, bytes.data()); }

std::optional<double> GgufValue::as_number() const {
  if (type == GgufType::kF32) return load<float>(bytes.data());
  if (type == GgufType::kF64) return load<double>(bytes.data());
  const auto value = as_int();
  if (!value) return {};
  return static_cast<double>(*value);
}

std::optional<bool> GgufValue::as_bool() const {
  if (type != GgufType::kBool) return {};
  return bytes[0] != std::byte{0};
}

std::optional<std::string_view> GgufValue::as_string() const {
  if (type != GgufType::kString) return {};
  return std::string_view(reinterpret_cast<const char*>(bytes.data()) + 8, bytes.size() - 8);
}

std::optional<std::vector<int64_t>> GgufValue::as_ints() const {
  if (type != GgufType::kArray) return {};
  std::vector<int64_t> out;
  const size_t size = scalar_bytes(element);
  for (uint64_t i = 0; i < count; ++i) {
    const auto value = size ? load_int(element, bytes.data() + i * size) : std::nullopt;
    if (!value) return {};
    out.push_back(*value);
  }
  return out;
}

std::optional<std::vector<uint8_t>> GgufValue::as_bools() const {
  if (type != GgufType::kArray || element != GgufType::kBool) return {};
  std::vector<uint8_t> out;
  for (uint64_t i = 0; i < count; ++i) out.push_back(bytes[i] != std::byte{0} ? 1 : 0);
  return out;
}

std::optional<std::vector<float>> GgufValue::as_floats() const {
  if (type != GgufType::kArray || (element != GgufType::kF32 && element != GgufType::kF64)) return {};
  std::vector<float> out;
  for (uint64_t i = 0; i < count; ++i) {
    out.push_back(element == GgufType::kF32 ? load<float>(bytes.data() + i * 4)
                                            : static_cast<float>(load<double>(bytes.data() + i * 8)));
  }
  return out;
}

std::optional<std::vector<std::string_view>> GgufValue::as_strings() const {
  if (type != GgufType::kArray || element != GgufType::kString) return {};
  std::vector<std::string_view> out;
  size_t at = 0;
  for (uint64_t i = 0; i < count; ++i) {  // lengths were checked when the file was parsed
    const auto size = static_cast<size_t>(load<uint64_t>(bytes.data() + at));
    out.emplace_back(reinterpret_cast<const char*>(bytes.data()) + at + 8, size);
    at += 8 + size;
  }
  return out;
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto it = metadata.find(key);
  return it == metadata.end() ? nullptr : &it->second;
}

std::string readable_gguf_types() {
  std::string out;
  for (const GgmlType& type : kGgmlTypes) {
    if (type.dtype) out += fmt::format("{}{}", out.empty() ? "" : ", ", type.name);
  }
  return out;
}

Result<GgufFile> parse_gguf(std::span<const std::byte> bytes, const std::string& file) {
  return Parser(bytes, file).parse();
}

}  // namespace kvilt
