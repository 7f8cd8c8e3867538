// base/annex_kind.h: names side data of a cached segment (kv/annex.h). Plans say what to keep (plan/plan.h), kv keeps
// it, policies read where it is.
#pragma once

#include <cstdint>

namespace kvilt {

// What the data says. Cache folders have these numbers (docs/formats/cache_folder.md): none is ever used for another.
enum class AnnexOf : uint8_t {
  kHiddenF32 = 0,   // a row of D fp32 a token: its hidden state as it entered the layer
  kHiddenInt8 = 1,  // the same as D signed bytes and their scale: a row of tensor/kv_row.h
  kBlockStats = 2,  // of a document: what a choice of its blocks needs to know (policy/samkv_stats.h)
  kBlockMeans = 3,  // the same of other blocks (policy/multi_infllm.cc)
  kHiddenBF16 = 4,  // a row of D bf16 a token: its hidden state as it entered the layer
};
// True: a row for each token. False: one block of bytes about a run of tokens, of use only where all of them are placed.
constexpr bool by_token(AnnexOf of) {
  return of == AnnexOf::kHiddenF32 || of == AnnexOf::kHiddenInt8 || of == AnnexOf::kHiddenBF16;
}
// Whether it goes with its tokens to a cache folder, and comes back (docs/design/disk.md#annexes): what is small beside the
// KV, and takes most of a prefill to find out. Numbers that are no kind's do not.
constexpr bool outlives_memory(AnnexOf of) { return of == AnnexOf::kBlockStats || of == AnnexOf::kBlockMeans; }

struct AnnexKind {
  AnnexOf of = AnnexOf::kHiddenF32;
  int layer = 0;  // 0 where the data is of no single layer
  friend bool operator==(const AnnexKind&, const AnnexKind&) = default;
};

}  // namespace kvilt
