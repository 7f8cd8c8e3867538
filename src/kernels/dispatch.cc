// kernels/dispatch.cc: what this machine can run, best first.
// Invariants: KVILT_BACKEND is read on every "auto", so that a test may set it.
#include "kernels/dispatch.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "kernels/reference/backend.h"
#ifdef KVILT_X86
#include "kernels/x86/backend.h"
#endif

namespace kvilt {
namespace {

struct Entry {
  std::string_view name;
  const Backend& (*get)();
};

#ifdef KVILT_X86
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avxvnni() { return has_avx2() && __builtin_cpu_supports("avxvnni"); }
// The same kernels in AVX-512's encoding: where AVX-VNNI is not, they show that its source is right.
bool has_vnni256() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
#endif

const std::vector<Entry>& entries() {
  static const std::vector<Entry> list = [] {
    std::vector<Entry> found;
#ifdef KVILT_X86
    __builtin_cpu_init();
    if (has_avx512()) found.push_back({"avx512", x86::avx512_backend});
    if (has_avxvnni()) found.push_back({"avxvnni", x86::avxvnni_backend});
    if (has_vnni256()) found.push_back({"vnni256", x86::vnni256_backend});
    if (has_avx2()) found.push_back({"avx2", x86::avx2_backend});
#endif
    found.push_back({"reference", reference::backend});
    return found;
  }();
  return list;
}

struct Instructions {
  std::string_view backend, integer, floating, attention;
};
constexpr Instructions kInstructions[] = {
    {"avx512", "vpdpbusd, 512 bits, int8 rows", "fp32 FMA, 512 bits", "fp32 FMA, 512 bits"},
    {"avxvnni", "vpdpbusd, 256 bits (VEX), int8 rows", "fp32 FMA, 256 bits", "fp32 FMA, 256 bits"},
    {"vnni256", "vpdpbusd, 256 bits (EVEX), int8 rows", "fp32 FMA, 256 bits", "fp32 FMA, 256 bits"},
    {"avx2", "vpmaddubsw, 256 bits, int8 rows", "fp32 FMA, 256 bits", "fp32 FMA, 256 bits"},
    {"reference", "plain C++, int8 rows", "plain C++, fp32", "plain C++, fp32"}};

const Instructions& instructions(const Backend& backend) {
  for (const Instructions& entry : kInstructions) {
    if (entry.backend == backend.name()) return entry;
  }
  return kInstructions[std::size(kInstructions) - 1];
}

constexpr std::string_view kKnown[] = {"avx512", "avxvnni", "vnni256", "avx2", "reference"};

}  // namespace

std::span<const std::string_view> backend_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> list;
    for (const Entry& entry : entries()) list.push_back(entry.name);
    return list;
  }();
  return names;
}

std::optional<Activations> activations_of(std::string_view name) {
  if (name == "auto") return Activations::kAuto;
  if (name == "bf16") return Activations::kBF16;
  if (name == "f32") return Activations::kF32;
  return {};
}

std::string_view kernel_of(const Backend& backend, DType weight) {
  const Instructions& known = instructions(backend);
  if (weight == DType::kBF16 && backend.bf16_matmul_pays()) return "vdpbf16ps, 512 bits, bf16 rows";
  return dtype_info(weight).block > 1 ? known.integer : known.floating;
}

std::string_view attention_of(const Backend& backend, DType kv, int E) {
  const bool pairs = kv == DType::kBF16 || kv == DType::kI8;  // exact as bf16
  return pairs && backend.bf16_attention_pays(E) ? "vdpbf16ps, 512 bits, bf16 queries and weights of values"
                                                 : instructions(backend).attention;
}

Result<const Backend*> find_backend(std::string_view name) {
  if (name == "auto") {
    const char* forced = std::getenv("KVILT_BACKEND");
    if (forced == nullptr || *forced == 0 || std::string_view(forced) == "auto") return &entries().front().get();
    name = forced;
  }
  for (const Entry& entry : entries()) {
    if (entry.name == name) return &entry.get();
  }
  if (std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown)) {
    return error(Code::kUnsupported, "backend '{}' needs instructions that this machine lacks; it can run: {}", name,
                 fmt::join(backend_names(), ", "));
  }
  return error(Code::kInvalidArgument, "no backend '{}'; choose auto or one of: {}", name,
               fmt::join(backend_names(), ", "));
}

}  // namespace kvilt
