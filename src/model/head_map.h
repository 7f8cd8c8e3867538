// model/head_map.h: a head map: what each KV head of a model needs to see. It is a file of its own, next to the model.
// Source: RedKnot (arXiv:2606.06256, docs/papers.md); docs/formats/head_map.md. Files of other programs are read too:
//         older names of classes, and files without windows and sinks.
// Errors: kCorrupt for text that is no head map (the message names file and field), kInvalidArgument for one of another
//         model's shape.
// Not here: what a class means for a plan (policy/redknot.cc), how maps are made (engine/head_profile.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvilt/result.h"
#include "model/config.h"

namespace kvilt {

enum class HeadClass : uint8_t {
  kLocal,      // sink and window
  kGlobal,     // everything
  kRetrieval,  // the keys that hold retrieval_top_p of its attention; no policy chooses them yet: it reads everything
  kDense,      // everything, and never to be made local
};

struct HeadMap {
  static constexpr int32_t kWindow = 512, kSink = 4;  // if the file has none

  int L = 0, G = 0;
  std::vector<HeadClass> heads;       // layer * G + KV head
  std::vector<int32_t> window, sink;  // of local heads: keys i - j <= window and j < sink; others: -1, 0
  double retrieval_top_p = 0.9;
  int dense_prefix_layers = 0;  // the first layers that are dense, whatever `heads` says

  bool local(int layer, int head) const {
    return layer >= dense_prefix_layers && heads[layer * G + head] == HeadClass::kLocal;
  }
  int count(HeadClass wanted) const;
  // The share of KV heads that see everything.
  double global_share() const;
};

// All heads of one class.
HeadMap uniform_head_map(int L, int G, HeadClass of_all, int32_t window = HeadMap::kWindow,
                         int32_t sink = HeadMap::kSink);

// where: what to call the text in messages.
Result<HeadMap> parse_head_map(std::string_view text, const std::string& where);
Result<HeadMap> read_head_map(const std::string& path);
std::string head_map_json(const HeadMap& map);

// An error if the map is not of this model. where: the file, for messages.
Status check_head_map(const HeadMap& map, const ModelConfig& config, const std::string& where);

}  // namespace kvilt
