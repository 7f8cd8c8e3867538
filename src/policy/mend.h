// policy/mend.h: mend for other policies (auto.cc), without a detour through strings.
#pragma once

#include <memory>

#include "policy/policy.h"

namespace kvilt {

inline constexpr int kMostAhead = 64;
inline constexpr double kMostSpread = 4;

// Which pieces are made of look-alikes, by PromptLayout: all, where more than kLookAlike of their tokens are; else those
// of which more than kLookAlikePiece are. Nine tenths of a table's pieces are above that, and a hundredth of the passages
// of questions: docs/results/look-alikes.md. Few tokens say nothing: two sentences that begin alike are a tenth of such a
// piece.
inline constexpr double kLookAlike = 0.22, kLookAlikePiece = 0.28;
inline constexpr int32_t kLookAlikeTokens = 64;  // of such a piece, at least
Runs look_alike_pieces(const PromptLayout& layout);

struct MendDial {
  double r;            // share of the reused tokens that is computed again, in [0, 1]
  double alike;        // of those in look-alikes, in [0, 1]; r: these are as all others
  double enter = 0;    // of what is computed by r, the share that enters with a mean's state, where there is one
  double spread = -1;  // power of a token's change in its score, where it is a mean (spread_scores.h); < 0: as r goes
  int ahead = 0;       // guessed tokens of the answer that the look takes in, in [0, kMostAhead]

  double share(const PromptLayout& layout) const;  // of all reused tokens
};

// mend with this dial, and defaults for the rest.
std::unique_ptr<ReusePolicy> mend_with(const MendDial& dial);

}  // namespace kvilt
