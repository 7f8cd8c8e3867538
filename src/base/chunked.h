// base/chunked.h: an array that grows without moving what is in it, so that no push pays for the size.
// Cost: a push makes a chunk of 2^kBits elements now and then; a read goes through one more pointer.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace kvilt {

template <class T, int kBits = 12>
class Chunked {
 public:
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) { return chunks_[i >> kBits][i & kMask]; }
  const T& operator[](size_t i) const { return chunks_[i >> kBits][i & kMask]; }
  T& emplace_back() {
    if (size_ == chunks_.size() << kBits) chunks_.push_back(std::make_unique<T[]>(size_t{1} << kBits));
    return (*this)[size_++];
  }
  void clear() {
    std::vector<std::unique_ptr<T[]>>().swap(chunks_);
    size_ = 0;
  }
  size_t bytes() const { return (chunks_.size() << kBits) * sizeof(T) + chunks_.capacity() * sizeof(void*); }

 private:
  static constexpr size_t kMask = (size_t{1} << kBits) - 1;
  std::vector<std::unique_ptr<T[]>> chunks_;
  size_t size_ = 0;
};

}  // namespace kvilt
