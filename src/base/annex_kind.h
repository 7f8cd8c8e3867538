// base/annex_kind.h: names side data of a cached segment (kv/annex.h). Plans say what to keep (plan/plan.h), kv keeps
// it, policies read where it is.
#pragma once

#include <cstdint>

namespace kvilt {

// What the data says.
enum class AnnexOf : uint8_t {
  kHiddenF32,   // a row of D fp32 a token: its hidden state as it entered the layer
  kHiddenInt8,  // the same as D signed bytes and their scale: a row of tensor/kv_row.h
  kBlockStats,  // of a document: what a choice of its blocks needs to know (policy/samkv_stats.h)
  kBlockMeans,  // the same of other blocks (policy/multi_infllm.cc)
};
// True: a row for each token. False: one block of bytes about a run of tokens, of use only where all of them are placed.
constexpr bool by_token(AnnexOf of) { return of == AnnexOf::kHiddenF32 || of == AnnexOf::kHiddenInt8; }

struct AnnexKind {
  AnnexOf of = AnnexOf::kHiddenF32;
  int layer = 0;  // 0 where the data is of no single layer
  friend bool operator==(const AnnexKind&, const AnnexKind&) = default;
};

}  // namespace kvilt
