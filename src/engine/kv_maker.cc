#include "engine/kv_maker.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/checksum.h"

namespace kvilt {
namespace {

constexpr size_t kBlockBytes = size_t{4} << 20;

}  // namespace

Digest kv_maker(const HashSecret& secret, const ModelFile& model, const ResolvedOptions& options,
                const Backend& backend, ThreadPool& pool, std::string_view version) {
  const PackLayout layout = backend.layout();
  KeyedHash hash(secret, "kvilt.kv");
  hash.add(version)
      .add(int64_t{kKvBits})
      .add(model.fingerprint)
      .add(backend.bits())
      .add(layout.name)
      .add(int64_t{layout.version});
  hash.add(kv_type_name(options.kv_type)).add(activations_name(options.activations));
  for (const SourceFile& file : model.sources) {
    const std::span<const std::byte> bytes = file.bytes;
    std::vector<uint64_t> sums((bytes.size() + kBlockBytes - 1) / kBlockBytes);
    pool.parallel_for(std::ssize(sums), [&](int64_t i, int) {
      const size_t at = static_cast<size_t>(i) * kBlockBytes;
      sums[i] = checksum(bytes.subspan(at, std::min(kBlockBytes, bytes.size() - at)));
    });
    hash.add(static_cast<int64_t>(bytes.size()));
    for (const uint64_t sum : sums) hash.add(static_cast<int64_t>(sum));
  }
  return hash.finish();
}

}  // namespace kvilt
