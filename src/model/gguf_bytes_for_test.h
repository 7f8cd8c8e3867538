// model/gguf_bytes_for_test.h: writes GGUF bytes, right or wrong on purpose. For tests only.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "model/gguf.h"

namespace kvilt {

class GgufBytes {
 public:
  template <class T>
  static std::string raw(T value) {
    std::string out(sizeof value, '\0');
    std::memcpy(out.data(), &value, sizeof value);
    return out;
  }
  static std::string text(std::string_view s) { return raw<uint64_t>(s.size()) + std::string(s); }

  // payload: the value's bytes as the format has them.
  GgufBytes& value(std::string_view key, GgufType type, const std::string& payload) {
    metadata_ += text(key) + raw(static_cast<uint32_t>(type)) + payload;
    ++metadata_count_;
    return *this;
  }
  GgufBytes& u32(std::string_view key, uint32_t x) { return value(key, GgufType::kU32, raw(x)); }
  GgufBytes& f32(std::string_view key, float x) { return value(key, GgufType::kF32, raw(x)); }
  GgufBytes& string(std::string_view key, std::string_view x) { return value(key, GgufType::kString, text(x)); }
  GgufBytes& strings(std::string_view key, const std::vector<std::string>& list) {
    std::string payload = raw(static_cast<uint32_t>(GgufType::kString)) + raw<uint64_t>(list.size());
    for (const auto& s : list) payload += text(s);
    return value(key, GgufType::kArray, payload);
  }
  template <class T>
  GgufBytes& numbers(std::string_view key, GgufType type, const std::vector<T>& list) {
    std::string payload = raw(static_cast<uint32_t>(type)) + raw<uint64_t>(list.size());
    for (const T x : list) payload += raw(x);
    return value(key, GgufType::kArray, payload);
  }

  // Puts the table entry; contents are placed with tensor().
  GgufBytes& entry(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    table_ += text(name) + raw(static_cast<uint32_t>(dims.size()));
    for (const uint64_t d : dims) table_ += raw(d);
    table_ += raw(type) + raw(offset);
    ++tensor_count_;
    return *this;
  }
  GgufBytes& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                    const std::string& contents) {
    data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_);
    entry(name, dims, type, data_.size());
    data_ += contents;
    return *this;
  }

  GgufBytes& version(uint32_t x) { return version_ = x, *this; }
  GgufBytes& align(uint32_t x) { return alignment_ = x, u32("general.alignment", x); }
  GgufBytes& claim_tensors(uint64_t x) { return tensor_count_ = x, *this; }
  GgufBytes& claim_metadata(uint64_t x) { return metadata_count_ = x, *this; }

  std::string build() const {
    std::string out = "GGUF" + raw(version_) + raw(tensor_count_) + raw(metadata_count_) + metadata_ + table_;
    out.resize((out.size() + alignment_ - 1) / alignment_ * alignment_);
    return out + data_;
  }

 private:
  uint32_t version_ = 3;
  uint64_t alignment_ = 32, tensor_count_ = 0, metadata_count_ = 0;
  std::string metadata_, table_, data_;
};

inline std::span<const std::byte> bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}

}  // namespace kvilt
