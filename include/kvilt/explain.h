// kvilt/explain.h: what became of each token of a prompt, as runs: where its KV came from, or why it was computed.
// Role:  plain data. Request::explain asks for it, Completion::quilt is it.
// Units: tokens.
#pragma once

#include <cstdint>

namespace kvilt {

// kNo: nothing is noted. kBrief: costs nothing to speak of. kFull: also looks for text that the request may not use and
// for what others are computing: one more search, up to a few milliseconds for a long prompt.
enum class Explain : uint8_t { kNo, kBrief, kFull };

enum class PatchKind : uint8_t { kPrefix, kReused, kRecomputed, kFresh };

// Why a token was computed.
enum class FreshWhy : uint8_t {
  kNew,       // nothing known: new text, or text whose KV has left the cache
  kShort,     // in a run shorter than min_segment: such are not looked for
  kRunning,   // a running request was computing it, and waiting would have taken longer
  kDeclined,  // known, but the policy expected too little of it
  kUnmarked,  // known, but the request allows reuse of marked text only
  kRefused,   // the policy, the model or the server reuses nothing, or the policy no text at another place
};

// Tokens [begin, begin + count) of the prompt.
struct PromptPatch {
  PatchKind kind = PatchKind::kFresh;
  int32_t begin = 0, count = 0;
  FreshWhy why = FreshWhy::kNew;  // of fresh ones
  // Of all others: the cached segment and the first token in it, the request that left it, and by how many positions it
  // stands later here than there.
  uint64_t segment = 0, request = 0;
  int32_t offset = 0, shift = 0;
  bool exact = false;  // its KV was a full pass's over the text before it, maybe another; of fresh ones: and stays so
  bool chain = false;  // of the prefix: what a request of the same policy left of the same text
  int seasoned = 0;    // a mean over so many contexts; 0: none
  bool near = false;   // found in text that nearly repeats the segment's
};

}  // namespace kvilt
