// model/gguf_tokenizer.h: tokenizer.ggml.* to a TokenizerSpec (text/tokenizer_spec.h says what it means).
// Errors: kCorrupt (missing or wrong types, lists of different length, ids outside the vocabulary), kUnsupported (a
//         kind of tokenizer).
#pragma once

#include <string>

#include "kvilt/result.h"
#include "model/gguf.h"
#include "text/tokenizer_spec.h"

namespace kvilt {

Result<TokenizerSpec> read_gguf_tokenizer(const GgufFile& gguf, const std::string& where);

}  // namespace kvilt
