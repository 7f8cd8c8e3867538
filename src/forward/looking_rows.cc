#include "forward/looking_rows.h"

namespace kvilt {

void LookingRows::add(int32_t pos, const float* q) {
  const ModelConfig& c = model_.config();
  pos_.push_back(pos);
  q_.insert(q_.end(), q, q + int64_t{c.H} * c.E);
}

void LookingRows::find_keys(const PageTable& kv, int layer, std::span<const int> heads, int32_t end) {
  const ModelConfig& c = model_.config();
  std::vector<size_t> first{0};
  for (const int g : heads) {
    kv.resolve(layer, g, {end - 1, end}, {}, spans_);
    first.push_back(spans_.size());
  }
  lse_.resize(heads.size() * static_cast<size_t>(rows() * group()));
  tasks_.resize(heads.size());
  for (size_t i = 0; i < heads.size(); ++i) {
    AttendTask& task = tasks_[i];
    if (!pos_.empty()) task.q = q_.data() + heads[i] * group() * c.E;
    task.q_stride = task.out_stride = int64_t{c.H} * c.E;
    task.pos = pos_;
    task.spans = std::span(spans_).subspan(first[i], first[i + 1] - first[i]);
    task.lse = lse(i);
    task.sinks = model_.sinks(layer, heads[i]);
  }
}

void LookingRows::attend(DType kv_type, ThreadPool& pool) {
  out_.resize(q_.size());
  for (AttendTask& task : tasks_) task.out = out_.data() + (task.q - q_.data());
  model_.backend().attend(model_.attend_shape(kv_type), tasks_, pool);
}

}  // namespace kvilt
