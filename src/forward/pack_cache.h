// forward/pack_cache.h: weights are re-ordered once per file and machine; later starts map the result.
// Role:       where the packed weights of a model are, and whether they are still those of its files. PreparedModel
//             asks for every weight; what was missing is packed, and then all is written again.
// Invariants: a start never fails for the cache's sake: whatever is wrong with it is logged, and the weights are
// packed.
//             One file per (weight file, layout) stays: writing one deletes its predecessors and what a killed
//             writer left.
// Threads:    one, which the pool helps.
// Not here:   the bytes (pack_file.h); what the layouts are (kernels/).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "forward/pack_file.h"
#include "kernels/backend.h"
#include "model/model_file.h"

namespace kvilt {

class PackCache {
 public:
  // folder: made when it is needed; empty: nothing is read or kept. The references must outlive the cache.
  PackCache(std::string folder, const ModelFile& model, const Backend& backend, ThreadPool& pool);

  // The weight of these bytes: from the cache, or packed.
  std::unique_ptr<PackedWeight> get(const WeightView& w);
  // After the last get(): writes the cache's file if a weight had to be packed.
  void keep();

  // Weights that came from the cache, and weights that were packed.
  int adopted() const { return adopted_; }
  int packed() const { return packed_; }

 private:
  std::optional<PackSource> source_of(const WeightView& w) const;
  void sweep() const;

  const ModelFile& model_;
  const Backend& backend_;
  ThreadPool& pool_;
  std::string folder_, prefix_, name_;  // the file is folder_/name_, and name_ starts with prefix_
  Digest key_{};
  std::optional<PackFile> file_;
  std::vector<PackEntry> entries_;  // of all weights so far that the cache can hold
  int adopted_ = 0, packed_ = 0;
};

}  // namespace kvilt
