// kernels/x86/rotate_tile.h: rotations as compiled for one ISA; contracts in attend_tile.h. For per-ISA files only.
#pragma once

#include "kernels/x86/attend_tile.h"

namespace kvilt::KVILT_ISA {

void rope_row(const x86::TileShape& shape, float* x, int64_t heads, const float* rotation);
void angles(double pos, const double* inv_freq, int n, double magnitude, float* rotation);

}  // namespace kvilt::KVILT_ISA
