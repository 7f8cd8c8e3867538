// kernels/x86/backend.h: the backends for x86 with AVX2 (FMA, F16C), with AVX2 and 256-bit VNNI (as AVX-VNNI or as
// AVX-512 VL), with AVX-512 (F, BW, DQ, VL, VNNI), and with AMX (TILE, INT8) beside it, for many rows.
#pragma once

#include "kernels/backend.h"

namespace kvilt::x86 {

// REQUIRES: the machine has the instructions; dispatch.cc asks.
const Backend& avx2_backend();
const Backend& avxvnni_backend();
const Backend& vnni256_backend();
const Backend& avx512_backend();
const Backend& amx_backend();

}  // namespace kvilt::x86
