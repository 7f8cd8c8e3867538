// grammar/vocabulary_for_test.h: a small vocabulary: every byte, words that JSON is made of, and control tokens; and
// random texts of a grammar, as a model without any sense would write them. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "grammar/compiler.h"

namespace kvilt {

// Byte b is token 1 + b; the words follow, then <|end|>, <call> and <think>.
inline std::unique_ptr<Tokenizer> json_tokenizer() {
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
  for (const char* word :
       {"{\"", "\":", "\",\"", "\"}", "}}", "]}",       "},{",      "true", "false",  "null", "na", "name",
        "12",  "34",  "0.",    "ab",  "cd", "\xC3\xA9", "\xE2\x82", "[{\"", "\": \"", "yes",  "no", "</"}) {
    spec.tokens.push_back(word);
    spec.kinds.push_back(TokenKind::kNormal);
  }
  for (const char* token : {"<|end|>", "<call>", "<think>"}) {
    spec.tokens.push_back(token);
    spec.kinds.push_back(TokenKind::kControl);
  }
  spec.scores.assign(spec.tokens.size(), 0.f);
  spec.byte_fallback = true;
  auto made = Tokenizer::create(std::move(spec));
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return std::move(made).value();
}

struct JsonVocabulary {
  std::unique_ptr<Tokenizer> tokenizer = json_tokenizer();
  int vocab = tokenizer->vocab_size() + 13;  // logits are often wider than the vocabulary
  int32_t end = *tokenizer->id_of("<|end|>"), call = *tokenizer->id_of("<call>"), think = *tokenizer->id_of("<think>");

  std::unique_ptr<GrammarCompiler> compiler(GrammarLimits limits = {}) const {
    const std::vector<int32_t> ends{end}, known{call};
    auto made = GrammarCompiler::create(*tokenizer, ends, known, vocab, limits);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return std::move(made).value();
  }
};

// The tokens that may come next, ascending.
inline std::vector<int32_t> allowed(GrammarMatcher& matcher, int vocab) {
  std::vector<int32_t> mask(GrammarMatcher::mask_words(vocab)), out;
  const Status filled = matcher.fill(mask);
  EXPECT_TRUE(filled.ok()) << (filled.ok() ? "" : filled.error().message);
  for (int32_t id = 0; filled.ok() && id < vocab; ++id) {
    if (static_cast<uint32_t>(mask[static_cast<size_t>(id) / 32]) >> (id % 32) & 1u) out.push_back(id);
  }
  return out;
}

// Takes the text byte by byte; false, and nothing has changed, if it may not come here.
inline bool take_text(GrammarMatcher& matcher, std::string_view text) {
  int taken = 0;
  for (const unsigned char byte : text) {
    const auto one = matcher.accept(1 + byte);
    if (!one.ok() || !*one) {
      if (taken > 0) matcher.rollback(taken);
      return false;
    }
    ++taken;
  }
  return true;
}

// A text by random allowed tokens, until the end token comes; none where it does not come within 1,000 draws. Three of
// ten draws prefer the end, and what closes brackets and strings, so that texts do end; another one tries one of `words`.
inline std::optional<std::string> random_text(const JsonVocabulary& v, std::shared_ptr<const Grammar> grammar,
                                              std::mt19937& random, const std::vector<std::string>& words = {}) {
  GrammarMatcher matcher(std::move(grammar));
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    if (!words.empty() && random() % 10 < 1) {
      const std::string& word = words[random() % words.size()];
      if (take_text(matcher, word)) text += word;
    }
    std::vector<int32_t> ids = allowed(matcher, v.vocab);
    if (ids.empty()) {
      ADD_FAILURE() << "nothing may follow: " << text;
      return std::nullopt;
    }
    if (random() % 10 < 3) {
      std::vector<int32_t> closing;
      for (const int32_t id : ids) {
        const std::string_view bytes = v.tokenizer->token_bytes(id);
        if (id == v.end || bytes == "}" || bytes == "]" || bytes == "\"") closing.push_back(id);
      }
      if (!closing.empty()) ids = closing;
    }
    const int32_t id = ids[random() % ids.size()];
    const auto taken = matcher.accept(id);
    EXPECT_TRUE(taken.ok() && *taken);
    if (id == v.end) return text;
    text += v.tokenizer->token_bytes(id);
  }
  return std::nullopt;
}

}  // namespace kvilt
