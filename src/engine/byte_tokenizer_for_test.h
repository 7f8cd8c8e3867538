// engine/byte_tokenizer_for_test.h: a vocabulary in which every byte is a token, so that ids can be told by eye. For tests
// only.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <initializer_list>
#include <memory>
#include <utility>

#include "text/tokenizer.h"

namespace kvilt {

// Byte b is token 1 + b, spelled as GGUF's byte tokens; 0 is unknown; the special ones are 257 and up.
// bos: one of these, which is put before every text; -1: none.
inline std::unique_ptr<Tokenizer> byte_tokenizer(std::initializer_list<const char*> special = {}, int32_t bos = -1) {
  TokenizerSpec spec;
  spec.model = "spm";
  spec.tokens = {"<unk>"};
  spec.kinds = {TokenKind::kUnknown};
  for (int b = 0; b < 256; ++b) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", b);
    spec.tokens.push_back(text);
    spec.kinds.push_back(TokenKind::kByte);
  }
  for (const char* token : special) {
    spec.tokens.push_back(token);
    spec.kinds.push_back(TokenKind::kControl);
  }
  spec.scores.assign(spec.tokens.size(), 0.f);
  spec.byte_fallback = true;
  if (bos >= 0) spec.bos = bos;
  spec.add_bos = bos >= 0;
  auto made = Tokenizer::create(std::move(spec));
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return std::move(made).value();
}

}  // namespace kvilt
