// model/fingerprint.h: a name for "these weights, computed this way"; part of every cache key (docs/design/finding.md).
// Idea:  covers config, names, dtypes and shapes in full, and contents by samples, since a start must not read half a
//        gigabyte. Two models that differ only between samples would collide; fine-tunes change every tensor, so their
//        samples differ.
// Cost:  about 32 KiB a tensor; 10 MB and 12 ms for 291 tensors.
#pragma once

#include <string>

#include "model/config.h"
#include "model/tensor_table.h"

namespace kvilt {

std::string fingerprint(const ModelConfig& config, const TensorTable& tensors);

}  // namespace kvilt
