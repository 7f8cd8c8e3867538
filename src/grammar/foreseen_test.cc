// What a grammar leaves next: the whole of it where it leaves no choice, up to the first choice else; white space as the
// text has had it; and the matcher is as it was.
#include "grammar/foreseen.h"

#include <gtest/gtest.h>

#include "grammar/vocabulary_for_test.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

class ForeseenTest : public testing::Test {
 protected:
  // What follows `text`.
  Foreseen after(const GrammarPart& part, const std::string& text) {
    auto grammar = compiler_->compile(part);
    EXPECT_TRUE(grammar.ok());
    GrammarMatcher matcher(grammar.value());
    EXPECT_TRUE(take_text(matcher, text)) << text;
    JsonSpace space;
    space.read(text);
    const auto before = allowed(matcher, v_.vocab);
    auto out = foresee(matcher, space);
    EXPECT_TRUE(out.ok());
    EXPECT_EQ(allowed(matcher, v_.vocab), before);
    EXPECT_TRUE(take_text(matcher, out->text)) << out->text << ": it may come";
    return *out;
  }
  GrammarPart schema(const char* text) { return GrammarPart::json(Json::parse(text)); }

  JsonVocabulary v_;
  std::unique_ptr<GrammarCompiler> compiler_ = v_.compiler();
};

constexpr const char* kObject =
    R"({"type":"object","properties":{"name":{"type":"string"},"happy":{"type":"boolean"},"age":{"type":"integer"}},)"
    R"("required":["name","happy","age"],"additionalProperties":false})";

TEST_F(ForeseenTest, WordsUpToTheFirstChoice) {
  const auto part = GrammarPart::one_of({GrammarPart::word("yesterday"), GrammarPart::word("yellow")});
  Foreseen out = after(part, "");
  EXPECT_EQ(out.text, "ye");
  EXPECT_TRUE(out.guesses.empty());
  EXPECT_TRUE(out.open);
  out = after(part, "yel");
  EXPECT_EQ(out.text, "low");
  EXPECT_FALSE(out.open) << "nothing may follow";
  EXPECT_EQ(after(part, "yellow").text, "");
}

TEST_F(ForeseenTest, KeysAndWhatSeparatesThem) {
  const auto part = schema(kObject);
  EXPECT_EQ(after(part, "").text, R"({"name": ")");
  EXPECT_EQ(after(part, R"({"n)").text, R"(ame": ")");
  const Foreseen key = after(part, R"({"n)");
  ASSERT_EQ(key.guesses.size(), 1u) << "of white space, behind the colon";
  EXPECT_EQ(key.guesses[0].at, 5u);
  EXPECT_FALSE(key.guesses[0].seen);
  EXPECT_TRUE(after(part, R"({"name": "a", "h)").guesses.front().seen);
  EXPECT_EQ(after(part, R"({"name": "ab")").text, R"(, "happy": )");
  EXPECT_EQ(after(part, R"({"name":"ab")").text, R"(,"happy":)") << "none was there";
  EXPECT_EQ(after(part, "{\n    \"name\": \"ab\"").text, ",\n    \"happy\": ");
  EXPECT_EQ(after(part, R"({"name": "ab", "happy": t)").text, R"(rue, "age": )");
}

TEST_F(ForeseenTest, AFreeTextForeseesNothing) {
  EXPECT_EQ(after(schema(kObject), R"({"name": ")").text, "");
  EXPECT_EQ(after(schema(kObject), R"({"name": "a: b, {)").text, "");
  EXPECT_EQ(after(GrammarPart::regex("[a-z ]{3,9}"), "").text, "");
  EXPECT_EQ(after(GrammarPart::regex("[a-z \\n]{3,9}"), "ab").text, "");
}

TEST_F(ForeseenTest, ALongTextIsCut) {
  const Foreseen out = after(GrammarPart::word(std::string(2'000, 'x')), "");
  EXPECT_EQ(out.text.size(), kMostForeseen);
  EXPECT_TRUE(out.open);
}

TEST_F(ForeseenTest, ControlTokensTooByTheirText) {
  const auto part = GrammarPart::sequence({GrammarPart::word("<call>"), schema(kObject)});
  EXPECT_EQ(after(part, "").text, R"(<call>{"name": ")");
}

}  // namespace
}  // namespace kvilt
