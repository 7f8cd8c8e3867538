// text/tokenizer_hf_steps.h: the step lists of a tokenizer.json (normalizer, pre_tokenizer, decoder, post_processor)
// into a spec.
// Not here: vocabulary and added tokens (tokenizer_hf.cc).
#pragma once

#include "text/json_reader.h"
#include "text/tokenizer_spec.h"

namespace kvilt {

Status read_hf_normalizer(const Json& step, TokenizerSpec& spec);
// `byte_level` becomes true if the steps end in bytes.
Status read_hf_pre_tokenizer(const Json& step, TokenizerSpec& spec, bool& byte_level);
Status read_hf_decoder(const Json& step, TokenizerSpec& spec);
Status read_hf_post_processor(const Json& step, TokenizerSpec& spec);

}  // namespace kvilt
