#include "model/reordered_experts.h"

#include <cstring>

namespace kvilt {
namespace {

// A matrix of one expert and where its elements go.
class Transposer {
 public:
  explicit Transposer(std::vector<std::byte>& to) : to_(to.data()) {}

  // cols inputs, of which element (r, c) is the stored (c, first + r * step) of `from`, whose rows begin at `row`.
  Tensor take(const Tensor& from, int64_t row, int64_t first, int64_t step, int64_t rows, int64_t cols) {
    const size_t size = dtype_bytes(from.dtype, 1);
    const Tensor out{to_, from.dtype, rows, cols};
    for (int64_t c = 0; c < cols; ++c) {
      const std::byte* in = from.data + static_cast<size_t>(row + c) * from.row_bytes();
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(to_ + static_cast<size_t>(r * cols + c) * size, in + static_cast<size_t>(first + r * step) * size,
                    size);
      }
    }
    to_ += static_cast<size_t>(rows * cols) * size;
    return out;
  }

  // Rows row, row + step, ... of `from` as DType::kMXFP4.
  Tensor take(const Mxfp4Matrix& from, int64_t row, int64_t step, int64_t rows) {
    const Tensor out{to_, DType::kMXFP4, rows, from.cols};
    const int64_t blocks = from.cols / 32;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t first = (row + r * step) * blocks;
      for (int64_t b = first; b < first + blocks; ++b) {
        const std::byte* in = from.blocks + b * 16;
        const auto nibble = [in](int i) { return (in[i / 2] >> (i % 2 * 4)) & std::byte{15}; };
        *to_++ = from.scales[b];
        for (int i = 0; i < 16; ++i) *to_++ = nibble(i) | nibble(i + 16) << 4;
      }
    }
    return out;
  }

 private:
  std::byte* to_;
};

size_t bytes_of(const Tensor& tensor) { return static_cast<size_t>(tensor.rows) * tensor.row_bytes(); }
size_t bytes_of(const Mxfp4Matrix& m) { return static_cast<size_t>(m.rows * m.cols / 32) * 17; }

}  // namespace

Reordered reorder_experts(const GptOssExperts& from, int count, std::vector<ExpertWeights>& out) {
  const int64_t D = from.down_bias.cols, F = from.gate_up_bias.cols / 2;
  const bool mxfp4 = from.down_blocks.blocks != nullptr;
  const size_t matrices =
      mxfp4 ? bytes_of(from.gate_up_blocks) + bytes_of(from.down_blocks) : bytes_of(from.gate_up) + bytes_of(from.down);
  auto memory =
      std::make_shared<std::vector<std::byte>>(matrices + bytes_of(from.gate_up_bias) + bytes_of(from.down_bias));
  Transposer to(*memory);
  for (int64_t e = 0; e < count; ++e) {
    ExpertWeights& expert = out.emplace_back();
    if (mxfp4) {
      expert.gate.w = to.take(from.gate_up_blocks, e * 2 * F, 2, F);
      expert.up.w = to.take(from.gate_up_blocks, e * 2 * F + 1, 2, F);
      expert.down.w = to.take(from.down_blocks, e * D, 1, D);
    } else {
      expert.gate.w = to.take(from.gate_up, e * D, 0, 2, F, D);
      expert.up.w = to.take(from.gate_up, e * D, 1, 2, F, D);
      expert.down.w = to.take(from.down, e * F, 0, 1, D, F);
    }
    // A bias is one row: a column of F outputs, laid down one after the other.
    const auto bias = [&](const Tensor& all, int64_t first, int64_t step, int64_t n) {
      Tensor row = to.take(all, e, first, step, n, 1);
      row.rows = 1;
      row.cols = n;
      return row;
    };
    expert.gate.bias = bias(from.gate_up_bias, 0, 2, F);
    expert.up.bias = bias(from.gate_up_bias, 1, 2, F);
    expert.down.bias = bias(from.down_bias, 0, 1, D);
  }
  return memory;
}

}  // namespace kvilt
