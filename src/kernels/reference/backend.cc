#include "kernels/reference/backend.h"

#include "kernels/reference/attend.h"
#include "kernels/reference/linear.h"

namespace kvilt::reference {
namespace {

class ReferenceBackend final : public Backend {
 public:
  std::string_view name() const override { return "reference"; }
  std::unique_ptr<PackedWeight> pack(const WeightView& w, ThreadPool&) const override { return reference::pack(w); }
  void matmul(Mat<const float> x, std::span<const MatmulJob> jobs, ThreadPool& pool) const override {
    reference::matmul(x, jobs, pool);
  }
  void ffn(Mat<const float> x, const FfnJob& job, ThreadPool& pool) const override { reference::ffn(x, job, pool); }
  void rms_norm(Mat<const float> x, const float* weight, float eps, Mat<float> y, ThreadPool& pool) const override {
    reference::rms_norm(x, weight, eps, y, pool);
  }
  void head_norm(Mat<float> x, int E, const float* weight, float eps, ThreadPool& pool) const override {
    reference::head_norm(x, E, weight, eps, pool);
  }
  void rope(Mat<float> x, int E, std::span<const int32_t> pos, const RopeConfig& rope,
            ThreadPool& pool) const override {
    reference::rope(x, E, pos, rope, pool);
  }
  void mix(Mat<const float> w, Mat<const float> x, Mat<float> y) const override { reference::mix(w, x, y); }
  void act_mul(Activation act, Mat<float> gate, Mat<const float> up, ThreadPool& pool) const override {
    reference::act_mul(act, gate, up, pool);
  }
  void attend(const AttendShape& shape, std::span<const AttendTask> tasks, ThreadPool& pool) const override {
    reference::attend(shape, tasks, pool);
  }
  void column_sums(const AttendShape& shape, std::span<const ColumnSumTask> tasks, ThreadPool& pool) const override {
    reference::column_sums(shape, tasks, pool);
  }
  void realign(const AttendShape& shape, const void* src, const float* rotation, int64_t count,
               void* dst) const override {
    reference::realign(shape, src, rotation, count, dst);
  }
};

}  // namespace

const Backend& backend() {
  static const ReferenceBackend instance;
  return instance;
}

}  // namespace kvilt::reference
