// kernels/x86/rotate_tile.cc: RoPE, compiled once per ISA. Plain loops that the compiler vectorises, and a sine and
// cosine of our own: libm's would take longer than the rotation itself (32 angles a row and layer at E = 64).
#include "kernels/x86/rotate_tile.h"

#include "kernels/x86/attend_simd.h"

namespace kvilt::KVILT_ISA {
namespace {

using x86::TileShape;

// Rotates one head in place: halves, or interleaved pairs.
KVILT_INLINE void rotate(const TileShape& shape, const float* rotation, float* x) {
  const int half = shape.rotary / 2;
  const float *cosines = rotation, *sines = rotation + half;
  if (shape.interleaved) {
    for (int i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cosines[i] - b * sines[i];
      x[2 * i + 1] = a * sines[i] + b * cosines[i];
    }
    return;
  }
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cosines[i] - b * sines[i];
    x[half + i] = a * sines[i] + b * cosines[i];
  }
}

// sin and cos of x for |x| < 1e8, to 1e-11: multiples of pi / 2 are taken off in two parts (Cody, Waite), then Taylor.
KVILT_INLINE void sin_cos(double x, double* sine, double* cosine) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer held in the low bits
  const double shifted = x * 0.63661977236758134308 + kMagic;
  int64_t quarter;
  __builtin_memcpy(&quarter, &shifted, sizeof quarter);
  const double n = shifted - kMagic;
  double r = __builtin_fma(n, -1.57079632679489655800, x);
  r = __builtin_fma(n, -6.12323399573676603587e-17, r);
  const double z = r * r;
  double s = -1.0 / 39916800;
  s = __builtin_fma(s, z, 1.0 / 362880);
  s = __builtin_fma(s, z, -1.0 / 5040);
  s = __builtin_fma(s, z, 1.0 / 120);
  s = __builtin_fma(s, z, -1.0 / 6);
  s = __builtin_fma(s * z, r, r);
  double c = 1.0 / 479001600;
  c = __builtin_fma(c, z, -1.0 / 3628800);
  c = __builtin_fma(c, z, 1.0 / 40320);
  c = __builtin_fma(c, z, -1.0 / 720);
  c = __builtin_fma(c, z, 1.0 / 24);
  c = __builtin_fma(c, z, -0.5);
  c = __builtin_fma(c, z, 1.0);
  const double a = (quarter & 1) != 0 ? c : s, b = (quarter & 1) != 0 ? s : c;
  *sine = (quarter & 2) != 0 ? -a : a;
  *cosine = ((quarter + 1) & 2) != 0 ? -b : b;
}

}  // namespace

void rope_row(const TileShape& shape, float* x, int64_t heads, const float* rotation) {
  for (int64_t h = 0; h < heads; ++h) rotate(shape, rotation, x + h * shape.E);
}

void angles(double pos, const double* inv_freq, int n, double magnitude, float* rotation) {
  for (int i = 0; i < n; ++i) {
    double sine, cosine;
    sin_cos(pos * inv_freq[i], &sine, &cosine);
    rotation[i] = static_cast<float>(cosine * magnitude);
    rotation[n + i] = static_cast<float>(sine * magnitude);
  }
}

}  // namespace kvilt::KVILT_ISA
