// engine/kv_maker.h: a digest of all that bits of K and V depend on besides the tokens: KV that outlives the process is
// used only where it is the same.
// Covers:  every byte of the model's files, unlike model/fingerprint.h, which samples them; KV type, activations, kernels
//          and the layout of packed weights; this version of Kvilt, and kKvBits, which whoever changes what is computed counts up.
// Cost:    reads the files once at memory's speed: 0.1 s for half a gigabyte that is in the page cache.
#pragma once

#include <string>
#include <string_view>

#include "base/keyed_hash.h"
#include "base/thread_pool.h"
#include "engine/options.h"
#include "kvilt/version.h"
#include "model/model_file.h"

namespace kvilt {

inline constexpr int kKvBits = 3;  // other bits for the same tokens: another number

// version: tests give others.
Digest kv_maker(const HashSecret& secret, const ModelFile& model, const ResolvedOptions& options,
                const Backend& backend, ThreadPool& pool, std::string_view version = kVersion);

// The fingerprint in every key of the cache (ContentCache): of the model, and of the type that its KV has.
inline std::string cache_fingerprint(std::string_view model, std::string_view kv_type) {
  return std::string(model) + '/' + std::string(kv_type);
}

}  // namespace kvilt
