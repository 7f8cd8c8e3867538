#include "engine/answer.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

// Every byte a token, spelled as GGUF's byte tokens.
std::unique_ptr<Tokenizer> byte_tokenizer() {
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
  spec.scores.assign(spec.tokens.size(), 0.f);
  spec.byte_fallback = true;
  auto made = Tokenizer::create(std::move(spec));
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return std::move(made).value();
}

struct Said {
  std::vector<std::string> parts;
  std::string all, stop;
};

Said say(const std::string& text, std::vector<std::string> stop) {
  const auto tokenizer = byte_tokenizer();
  Answer answer(tokenizer.get(), std::move(stop));
  Said said;
  for (const char c : text) {
    answer.push(1 + static_cast<unsigned char>(c), said.parts.emplace_back());
    said.all += said.parts.back();
    if (answer.stopped()) {
      said.stop = answer.stop_text();
      return said;
    }
  }
  said.all += answer.finish();
  return said;
}

TEST(Answer, HoldsBackWhatMayBecomeAStop) {
  const Said said = say("abcENDx", {"END"});
  EXPECT_EQ(said.all, "abc");
  EXPECT_EQ(said.stop, "END");
  EXPECT_EQ(say("abENab", {"END"}).all, "abENab");
  EXPECT_EQ(say("abEN", {"END"}).all, "abEN");  // held to the end, then said
  EXPECT_EQ(say("aaab", {"aab"}).all, "a");     // overlapping begins
  EXPECT_EQ(say("xyz", {"yz", "y"}).all, "x");
  EXPECT_EQ(say("plain", {}).all, "plain");
  EXPECT_EQ(say("plain", {""}).all, "plain");
}

TEST(Answer, NeverHalfACharacter) {
  const Said said = say("a€b", {});
  for (const std::string& part : said.parts) EXPECT_TRUE(part.empty() || part == "a" || part == "€" || part == "b");
  EXPECT_EQ(said.all, "a€b");
}

}  // namespace
}  // namespace kvilt
