// kernels/dispatch.cc: the table of backends, best first, and what this machine can run of it.
// Invariants: KVILT_BACKEND is read on every "auto", so that a test may set it.
#include "kernels/dispatch.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "kernels/reference/backend.h"
#ifdef KVILT_X86
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/x86/backend.h"
#endif

namespace kvilt {
namespace {

#ifdef KVILT_X86
// Two bits that clang 14's __builtin_cpu_supports does not know. Both are asked after AVX2, which says that the system
// keeps the registers.
bool has_f16c_bit() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
}
bool has_avxvnni_bit() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
}

bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c_bit();
}
bool has_avxvnni() { return has_avx2() && has_avxvnni_bit(); }
// The same kernels in AVX-512's encoding: on a machine without AVX-VNNI they show that its source is right.
bool has_vnni256() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

// Tiles are 8 KB of state, which Linux keeps for a process that asks for them; all its threads may use them then.
bool tiles_allowed() {
#ifdef __linux__
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!has_avx512() || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
  static const bool allowed = (d & kTile) != 0 && (d & kInt8) != 0 && tiles_allowed();
  return allowed;
}
#endif
bool always() { return true; }

struct Instructions {  // in words for people
  std::string_view integer, floating, attention;
  std::string_view bf16 = "", bf16_attention = "";  // where these pay: of BF16 weights, of keys that are exact in bf16
};

struct Entry {
  std::string_view name;
  bool (*supported)();
  const Backend& (*get)();
  Instructions instructions;
};

constexpr Entry kBackends[] = {  // best first
#ifdef KVILT_X86
    {"amx",
     has_amx,
     x86::amx_backend,
     {"tdpbssd in tiles (few rows: vpdpbusd), int8 rows", "fp32 FMA, 512 bits", "fp32 FMA, 512 bits",
      "tdpbf16ps in tiles, bf16 rows", "tdpbf16ps in tiles, bf16 queries and weights of values"}},
    {"avx512",
     has_avx512,
     x86::avx512_backend,
     {"vpdpbusd, 512 bits, int8 rows", "fp32 FMA, 512 bits", "fp32 FMA, 512 bits", "vdpbf16ps, 512 bits, bf16 rows",
      "vdpbf16ps, 512 bits, bf16 queries and weights of values"}},
    {"avxvnni",
     has_avxvnni,
     x86::avxvnni_backend,
     {"vpdpbusd, 256 bits (VEX), int8 rows", "fp32 FMA, 256 bits", "fp32 FMA, 256 bits"}},
    {"vnni256",
     has_vnni256,
     x86::vnni256_backend,
     {"vpdpbusd, 256 bits (EVEX), int8 rows", "fp32 FMA, 256 bits", "fp32 FMA, 256 bits"}},
    {"avx2",
     has_avx2,
     x86::avx2_backend,
     {"vpmaddubsw, 256 bits, int8 rows", "fp32 FMA, 256 bits", "fp32 FMA, 256 bits"}},
#endif
    {"reference", always, reference::backend, {"plain C++, int8 rows", "plain C++, fp32", "plain C++, fp32"}}};

const Instructions& instructions(const Backend& backend) {
  const auto* entry = std::ranges::find(kBackends, backend.name(), &Entry::name);
  return entry != std::end(kBackends) ? entry->instructions : std::rbegin(kBackends)->instructions;
}

}  // namespace

std::vector<std::string_view> backend_names() {
  std::vector<std::string_view> names;
  for (const Entry& entry : kBackends) {
    if (entry.supported()) names.push_back(entry.name);
  }
  return names;
}

std::string_view kernel_of(const Backend& backend, DType weight) {
  const Instructions& known = instructions(backend);
  if (weight == DType::kBF16 && backend.bf16_matmul_pays()) return known.bf16;
  return dtype_info(weight).block > 1 ? known.integer : known.floating;
}

std::string_view attention_of(const Backend& backend, DType kv, int E) {
  const Instructions& known = instructions(backend);
  return attends_in_bf16(backend, kv, E) ? known.bf16_attention : known.attention;
}

Result<const Backend*> find_backend(std::string_view name) {
  if (name == "auto") {
    const char* forced = std::getenv("KVILT_BACKEND");
    if (forced == nullptr || *forced == 0 || std::string_view(forced) == "auto") {
      return &std::ranges::find_if(kBackends, [](const Entry& entry) { return entry.supported(); })->get();
    }
    name = forced;
  }
  const auto* entry = std::ranges::find(kBackends, name, &Entry::name);
  if (entry == std::end(kBackends)) {
    return error(Code::kInvalidArgument, "no backend '{}'; choose auto or one of: {}", name,
                 fmt::join(backend_names(), ", "));
  }
  if (!entry->supported()) {
    return error(Code::kUnsupported, "backend '{}' needs instructions that this machine lacks; it can run: {}", name,
                 fmt::join(backend_names(), ", "));
  }
  return &entry->get();
}

}  // namespace kvilt
