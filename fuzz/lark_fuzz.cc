// A grammar in Lark's language: the EBNF that comes of it grows with the text alone, and an error has words.
#include <string>

#include "base/check.h"
#include "grammar/lark.h"
#include "text/unicode.h"

using namespace kvilt;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kMostGrowth = 64;         // a class of the rarest kind, for two bytes
  constexpr size_t kMostGrowthInJson = 256;  // of which escapes are written beside it
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)is_lark(text);
  for (const Spelling spelling : {Spelling::kPlain, Spelling::kInJson}) {
    const auto ebnf = lark_to_ebnf(text, spelling);
    const size_t growth = spelling == Spelling::kPlain ? kMostGrowth : kMostGrowthInJson;
    if (ebnf.ok()) {
      CHECK(ebnf->size() <= 1000 + growth * size && is_utf8(*ebnf) && ebnf->find('\0') == std::string::npos);
    } else {
      CHECK(ebnf.error().code == Code::kInvalidArgument && ebnf.error().message.size() < 2000);
    }
  }
  return 0;
}
