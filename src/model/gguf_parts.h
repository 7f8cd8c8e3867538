// model/gguf_parts.h: a GGUF model of one file, or of several: NAME-00001-of-00003.gguf and its neighbours.
// Source: llama.cpp's gguf-split. The first part has the metadata, each part the contents of the tensors that it lists;
//         split.count, split.no (from 0) and split.tensors.count say what belongs together.
// Errors: kNotFound names the part that is missing, kCorrupt what does not fit.
// Not here: what is in a file (gguf.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "model/gguf.h"

namespace kvilt {

struct GgufParts {
  std::shared_ptr<std::vector<MappedFile>> files;  // what gguf points into
  GgufFile gguf;                                   // the first part's metadata, the tensors of all

  size_t bytes() const;
};

// path: the file, or any of the parts.
Result<GgufParts> open_gguf_parts(const std::string& path);

// "a/b-00001-of-00003.gguf" of "a/b-00002-of-00003.gguf"; the path itself where its name is no part's.
std::string first_part(const std::string& path);
// 3 of "a/b-00002-of-00003.gguf"; 1 where its name is no part's.
int part_count(const std::string& path);

}  // namespace kvilt
