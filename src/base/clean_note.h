// base/clean_note.h: that some tokens of a cached segment were computed behind a known text and nothing else
// (index/clean_pieces.h), in a form that outlives the process: digests are keyed with the secret that is kept with it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/keyed_hash.h"
#include "base/runs.h"

namespace kvilt {

struct CleanNote {
  Run tokens;          // of the segment
  int32_t before = 0;  // tokens that stood before them, from position 0 on ...
  Digest digest{};     // ... and these tokens' digest
  bool operator==(const CleanNote&) const = default;
};

// As whole_within() of runs.
inline std::vector<CleanNote> whole_within(std::span<const CleanNote> notes, Run in) {
  std::vector<CleanNote> out;
  for (CleanNote note : notes) {
    if (note.tokens.begin < in.begin || note.tokens.end > in.end) continue;
    note.tokens = {note.tokens.begin - in.begin, note.tokens.end - in.begin};
    out.push_back(note);
  }
  return out;
}

}  // namespace kvilt
