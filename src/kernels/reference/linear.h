// kernels/reference/linear.h: the plain matmul and row operations, as free functions. Contracts: see Backend.
// Cost: weights are decoded on the fly, row by row; activations stay fp32; every sum is in double.
#pragma once

#include <memory>
#include <span>

#include "kernels/backend.h"

namespace kvilt::reference {

// Points at the source; nothing is copied.
std::unique_ptr<PackedWeight> pack(const WeightView& w);

// REQUIRES: every job's weight comes from pack() above.
void matmul(Mat<const float> x, std::span<const MatmulJob> jobs, ThreadPool& pool);
void rms_norm(Mat<const float> x, const float* weight, float eps, Mat<float> y, ThreadPool& pool);
void head_norm(Mat<float> x, int E, const float* weight, float eps, ThreadPool& pool);
void mix(Mat<const float> w, Mat<const float> x, Mat<float> y);
void ffn(Mat<const float> x, const FfnJob& job, ThreadPool& pool);
void act_mul(Activation act, Mat<float> gate, Mat<const float> up, ThreadPool& pool);

}  // namespace kvilt::reference
