#include "engine/explain.h"

#include <algorithm>

namespace kvilt {
namespace {

// The patch's tokens [run).
PromptPatch part_of(const PromptPatch& patch, Run run, PatchKind kind) {
  PromptPatch out = patch;
  out.kind = kind;
  out.offset += run.begin - patch.begin;
  out.begin = run.begin;
  out.count = run.size();
  return out;
}

// Adds those tokens of `left` that `with` holds, for this reason, and takes them out.
void take(Runs& left, const Runs& with, FreshWhy why, std::vector<PromptPatch>& out) {
  for (const Run& run : intersect(left, with))
    out.push_back({.kind = PatchKind::kFresh, .begin = run.begin, .count = run.size(), .why = why});
  left = subtract(left, with);
}

}  // namespace

std::vector<PromptPatch> quilt_of(const FoundNotes& notes, const PromptLayout& layout, const Runs& recomputed,
                                  int min_segment, int32_t exact_end) {
  std::vector<PromptPatch> out;
  for (const PromptPatch& patch : notes.patches) {
    const Runs whole{{patch.begin, patch.begin + patch.count}};
    if (patch.kind == PatchKind::kPrefix) {
      out.push_back(patch);
      continue;
    }
    for (const Run& run : intersect(whole, recomputed)) out.push_back(part_of(patch, run, PatchKind::kRecomputed));
    for (const Run& run : subtract(whole, recomputed)) out.push_back(part_of(patch, run, PatchKind::kReused));
  }
  Runs fresh = layout.fresh();
  Runs small;
  for (const Run& run : fresh) {
    if (run.size() < min_segment) small.push_back(run);
  }
  const Runs all = fresh;
  if (notes.refused) take(fresh, all, FreshWhy::kRefused, out);
  take(fresh, notes.declined, FreshWhy::kDeclined, out);
  take(fresh, notes.begun, FreshWhy::kShort, out);
  take(fresh, notes.unmarked, FreshWhy::kUnmarked, out);
  take(fresh, notes.running, FreshWhy::kRunning, out);
  if (!notes.pieces_refused) take(fresh, small, FreshWhy::kShort, out);
  take(fresh, all, FreshWhy::kNew, out);
  for (PromptPatch& patch : out)
    patch.exact |= patch.kind == PatchKind::kFresh && patch.begin + patch.count <= exact_end;
  std::ranges::sort(out, {}, &PromptPatch::begin);
  return out;
}

}  // namespace kvilt
