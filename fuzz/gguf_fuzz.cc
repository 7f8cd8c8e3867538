// A GGUF file: header, metadata, tensor table, configuration, weights' shapes, vocabulary. Where the model opens it is
// used (use_model.h); a file whose configuration is refused still has its vocabulary read.
#include "model/gguf.h"
#include "model/gguf_tokenizer.h"
#include "model/read_config.h"
#include "model/tensor_table.h"
#include "use_model.h"

using namespace kvilt;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string where = "fuzzed.gguf";
  const auto gguf = parse_gguf(std::as_bytes(std::span(data, size)), where);
  if (!gguf.ok()) {
    CHECK(gguf.error().message.find(where) != std::string::npos && gguf.error().message.size() < 2000);
    return 0;
  }
  if (auto read = read_gguf_config(*gguf, where); read.ok()) {
    const auto weights = bind_weights({read->config, gguf->tensors, NameStyle::kGguf, read->biases, where});
    if (weights.ok()) use_weights(read->config, *weights);
  }
  auto spec = read_gguf_tokenizer(*gguf, where);
  if (!spec.ok()) return 0;
  const auto tokenizer = Tokenizer::create(std::move(*spec));
  if (tokenizer.ok()) use_tokenizer(**tokenizer, "Once upon a time, needle 17\n \xE4\xBD\xA0 <s>aaaa\xFF");
  return 0;
}
