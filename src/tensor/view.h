// tensor/view.h: Mat<T>, a row-major 2-D view, and Buffer, its move-only owner. Views are PODs and own nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace kvilt {

// rows x cols elements; row r starts at data + r * stride.
template <class T>
struct Mat {
  T* data = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;

  Mat() = default;
  Mat(T* data, int64_t rows, int64_t cols) : data(data), rows(rows), cols(cols), stride(cols) {}
  Mat(T* data, int64_t rows, int64_t cols, int64_t stride) : data(data), rows(rows), cols(cols), stride(stride) {}
  template <class U, class = std::enable_if_t<std::is_same_v<const U, T> && !std::is_same_v<U, T>>>
  Mat(const Mat<U>& other) : Mat(other.data, other.rows, other.cols, other.stride) {}

  T* row(int64_t r) const {
    DCHECK(r >= 0 && r < rows);
    return data + r * stride;
  }
  Mat slice_rows(int64_t begin, int64_t end) const {
    DCHECK(0 <= begin && begin <= end && end <= rows);
    return {data + begin * stride, end - begin, cols, stride};
  }
  Mat slice_cols(int64_t begin, int64_t end) const {
    DCHECK(0 <= begin && begin <= end && end <= cols);
    return {data + begin, rows, end - begin, stride};
  }
};

// 64-byte aligned bytes, uninitialised. Large ones are mapped, so that untouched pages cost nothing.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// A matrix of floats that owns its memory and only ever grows; reshape keeps the memory, not the contents.
class FloatMat {
 public:
  Mat<float> reshape(int64_t rows, int64_t cols) {
    const size_t bytes = static_cast<size_t>(rows * cols) * sizeof(float);
    if (bytes > buffer_.bytes()) buffer_ = Buffer(bytes + bytes / 4);
    return view_ = Mat<float>(buffer_.as<float>(), rows, cols);
  }
  const Mat<float>& view() const { return view_; }

 private:
  Buffer buffer_;
  Mat<float> view_;
};

}  // namespace kvilt
