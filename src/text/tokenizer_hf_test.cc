// tokenizer.json: the committed model folders, steps one by one, and files that are wrong.
#include "text/tokenizer_hf.h"

#include <gtest/gtest.h>

#include "text/json_reader.h"
#include "text/test_data.h"
#include "text/tokenizer.h"

namespace kvilt {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> from_folder(const std::string& folder) {
  const auto json = file_text(folder + "/tokenizer.json");
  const auto config = file_text(folder + "/tokenizer_config.json");
  if (!json) return nullptr;
  auto made = Tokenizer::from_hf(*json, config.value_or(""));
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return made.ok() ? std::move(made).value() : nullptr;
}

TEST(TokenizerHf, ProbeIsWholeWords) {
  const auto t = from_folder("tests/data/models/probe-1M");
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->vocab_size(), 1024);
  EXPECT_EQ(*t->encode("VAR  =\nnosuchword VAR"), Ids({3, 4, 0, 3}));
  EXPECT_EQ(t->decode(Ids({3, 4, 3})), "VAR = VAR");
  EXPECT_EQ(*t->encode("<bos> VAR"), Ids({0, 3})) << "a user's <bos> is an unknown word";
  EXPECT_EQ(*t->encode("<bos> VAR", {.parse_special = true}), Ids({1, 3}));
  EXPECT_EQ(t->eos(), 2);
}

TEST(TokenizerHf, AttoIsByteLevelWithoutPreSplit) {
  const auto t = from_folder("tests/data/models/llama3-atto-1M/derived-hf");
  ASSERT_NE(t, nullptr);
  const std::string text = "Once upon a time, there was a \xF0\x9F\x90\xB1.\n\nThe end";
  EXPECT_EQ(t->decode(*t->encode(text)), text);
  EXPECT_EQ(t->encode(text, {.add_special = true})->front(), 2045);
  EXPECT_EQ(t->bos(), 2045);
}

}  // namespace
}  // namespace kvilt
