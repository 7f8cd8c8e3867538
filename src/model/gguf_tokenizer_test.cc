// What a GGUF's vocabulary needs beyond its keys.
#include "model/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/gguf_bytes_for_test.h"
#include "text/tokenizer.h"

namespace kvilt {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> vocabulary_of(const char* architecture, const std::vector<std::string>& tokens,
                                         const std::vector<int32_t>& kinds) {
  const std::string bytes =
      GgufBytes()
          .string("general.architecture", architecture)
          .string("tokenizer.ggml.model", "llama")
          .strings("tokenizer.ggml.tokens", tokens)
          .numbers<int32_t>("tokenizer.ggml.token_type", GgufType::kI32, kinds)
          .numbers<float>("tokenizer.ggml.scores", GgufType::kF32, std::vector<float>(tokens.size(), 0))
          .build();
  const auto gguf = parse_gguf(bytes_of(bytes), "f");
  EXPECT_TRUE(gguf.ok());
  auto spec = read_gguf_tokenizer(*gguf, "f");
  EXPECT_TRUE(spec.ok());
  auto made = Tokenizer::create(std::move(spec).value());
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return std::move(made).value();
}

std::unique_ptr<Tokenizer> vocabulary(const char* architecture) {
  return vocabulary_of(architecture,
                       {"<unk>", "<s>", "</s>", "\u2581", "\n", "a", "\u2581a", "<|user|>", "<|endoftext|>"},
                       {2, 3, 4, 1, 1, 1, 1, 3, 3});
}

// Its tokenizer.json says so, and no GGUF does.
TEST(GgufTokenizer, SpecialTokensOfPhi3TakeTheSpaceBehindThem) {
  const auto phi = vocabulary("phi3"), llama = vocabulary("llama");
  const auto ids = [](const Tokenizer& t, const char* text) { return *t.encode(text, {.parse_special = true}); };
  EXPECT_EQ(ids(*phi, "<|user|>\na"), Ids({7, 6}));
  EXPECT_EQ(ids(*llama, "<|user|>\na"), Ids({7, 3, 4, 5})) << "power";
  EXPECT_EQ(ids(*phi, "</s> \na"), Ids({2, 6}));
  for (const auto& [text, id] : {std::pair{"<|endoftext|>\n", 8}, {"<s>\n", 1}, {"<unk>\n", 0}})
    EXPECT_EQ(ids(*phi, text), Ids({id, 3, 4})) << text;
  EXPECT_EQ(phi->encode("<|user|>\n")->size(), llama->encode("<|user|>\n")->size()) << "a client's words are text";
}

// A file of CodeLlama may say that they are pieces like others.
TEST(GgufTokenizer, CodeLlamasWordsForInfillingAreSpecial) {
  const char* const words[] = {"\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>", "\u2581<EOT>"};
  for (const int32_t kind : {1, 4}) {
    const auto t =
        vocabulary_of("llama", {"<unk>", "<s>", "</s>", words[0], words[1], words[2], words[3], "\u2581<BOX>"},
                      {2, 3, 3, kind, kind, kind, kind, kind});
    for (int32_t i = 0; i < 4; ++i) {
      EXPECT_EQ(*t->encode(words[i], {.parse_special = true}), Ids({3 + i})) << words[i];
      EXPECT_TRUE(t->is_special(3 + i));
      const Ids as_text = *t->encode(words[i]);
      EXPECT_EQ(std::ranges::count(as_text, 3 + i), 0) << "a client's words are text";
    }
    EXPECT_FALSE(t->is_special(7)) << "power";
  }
}

}  // namespace
}  // namespace kvilt
