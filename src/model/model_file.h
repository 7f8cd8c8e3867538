// model/model_file.h: opens a model. Start here to see how a path becomes config, weights, tokenizer and template.
// Role:    a GGUF v3 file or a Hugging Face folder in; config, tensor views, tokenizer spec and chat template out.
// Errors:  kNotFound, kIo, kCorrupt (names file, tensor and reason), kUnsupported (architecture, dtype, RoPE kind).
// Threads: open on any one thread; the result is immutable and shared.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "kvilt/result.h"
#include "kvilt/sampling_defaults.h"
#include "model/config.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace kvilt {

// A file that weights were mapped from.
struct SourceFile {
  std::string path;  // absolute
  std::span<const std::byte> bytes;
  int64_t modified_ns = 0;
};

struct ModelFile {
  ModelConfig config;
  ModelWeights weights;
  std::unique_ptr<Tokenizer> tokenizer;  // null: a folder without tokenizer.json; token ids in and out still work
  std::string chat_template;             // Jinja source; empty if the files have none
  std::string tools_template;            // the one for requests with tools, where that is another; empty: it is not
  std::string description;               // e.g. "GGUF Q4_K_M, 291 tensors, 468 MiB"
  SamplingDefaults sampling;             // what the files advise
  std::vector<std::string> warnings;     // of what was wrong in the files and is left out
  std::string fingerprint;  // hex; names config, tensor table and sampled contents: part of every cache key
  std::shared_ptr<const void> keep_alive;  // the mapped files
  std::vector<SourceFile> sources;         // the same, by name
};

// name: a .gguf file (of a split model any part), a folder with config.json, *.safetensors and tokenizer.json, or a
// model of the hub's cache (hub_cache.h). Cost: 0.05 s for 0.5 GB with warm
// pages, plus the tokenizer. The files must not be truncated while they are mapped: reading beyond the new end would be
// fatal.
// weights_ready, if given, is called when config (but for what the tokenizer adds), weights, sources and fingerprint
// are there. For a GGUF file another thread then still builds the tokenizer, so that neither waits for the other. It
// gets the ModelFile that is returned later; an error of the tokenizer destroys it.
Result<std::unique_ptr<ModelFile>> open_model(const std::string& name,
                                              const std::function<void(const ModelFile&)>& weights_ready = nullptr);

}  // namespace kvilt
