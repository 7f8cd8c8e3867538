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
