// text/tokenizer_hf.h: Hugging Face's tokenizer.json as a TokenizerSpec.
// Role:       Tokenizer::from_hf() uses it; model/ may change the spec (EOS ids of a generation config) before
//             create().
// Invariants: what is not supported is an error that names it, never a different tokenization; hostile JSON costs
//             at most memory in proportion to its size.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvilt/result.h"
#include "text/tokenizer_spec.h"

namespace kvilt {

// `config_json` is the text of tokenizer_config.json, or empty.
Result<TokenizerSpec> spec_from_hf(std::string_view tokenizer_json, std::string_view config_json);

// Takes out the added tokens whose ids begin at `rows`, those of the embedding: gemma 3's text models have the image's
// token without a row for it, fine-tunes a padding token. Returns their texts. Nothing is taken out if an entry of the
// vocabulary is among these ids.
std::vector<std::string> leave_out_added(TokenizerSpec& spec, size_t rows);

}  // namespace kvilt
