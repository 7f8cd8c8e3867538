// kernels/x86/isa.h: the instruction sets that per-ISA files are built for, each a namespace kvilt::NAME with what such
// a file exports; CMakeLists.txt has their flags. For declarations and tables only: nothing here emits code.
#pragma once

#define KVILT_EACH_LINEAR_ISA(X) X(avx2) X(avxvnni) X(vnni256) X(avx512)
#define KVILT_EACH_ATTEND_ISA(X) X(avx2) X(avx512)  // avxvnni and vnni256 attend with avx2's: there are no integer dots
