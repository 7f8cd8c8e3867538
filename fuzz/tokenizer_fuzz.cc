// A tokenizer.json, and after a zero byte a tokenizer_config.json, and after another one a text to encode.
#include "text/tokenizer.h"
#include "use_model.h"

using namespace kvilt;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto part = [&] {
    const size_t end = std::min(input.find('\0'), input.size());
    const std::string_view out = input.substr(0, end);
    input.remove_prefix(std::min(end + 1, input.size()));
    return out;
  };
  const std::string_view json = part(), config = part();
  const auto tokenizer = Tokenizer::from_hf(json, config);
  if (!tokenizer.ok()) {
    CHECK(tokenizer.error().code != Code::kInternal);
    return 0;
  }
  use_tokenizer(**tokenizer, "Hello  world, don't <s>123 \xC3\xA9 \xE4\xBD\xA0\xE5\xA5\xBD\n\n \xFFoo");
  use_tokenizer(**tokenizer, input);
  return 0;
}
