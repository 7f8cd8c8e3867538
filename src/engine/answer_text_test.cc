#include "engine/answer_text.h"

#include <gtest/gtest.h>

#include "engine/byte_tokenizer_for_test.h"

namespace kvilt {
namespace {

struct Said {
  std::vector<std::string> parts;
  std::string all, stop;
};

Said say(const std::string& text, std::vector<std::string> stop, int min_tokens = 0) {
  const auto tokenizer = byte_tokenizer();
  AnswerText answer(tokenizer.get(), std::move(stop), {}, min_tokens);
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

TEST(AnswerText, HoldsBackWhatMayBecomeAStop) {
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

// A stop string that was complete before the answer had its least tokens is text; one that ends later stops.
TEST(AnswerText, StopsBehindTheLeastTokensAlone) {
  const auto all_and_stop = [](const Said& said) { return said.all + "|" + said.stop; };
  EXPECT_EQ(all_and_stop(say("aENDbENDc", {"END"}, 0)), "a|END");
  EXPECT_EQ(all_and_stop(say("aENDbENDc", {"END"}, 3)), "a|END") << "begun before";
  EXPECT_EQ(all_and_stop(say("aENDbENDc", {"END"}, 4)), "aENDb|END");
  EXPECT_EQ(all_and_stop(say("aENDbENDc", {"END"}, 20)), "aENDbENDc|");
  EXPECT_EQ(all_and_stop(say("xaby", {"xabz", "ab"}, 3)), "xaby|") << "held for the other";
  EXPECT_EQ(all_and_stop(say("aaaa", {"aa"}, 2)), "a|aa");
}

// Control tokens are no text but those that were asked for.
TEST(AnswerText, ShowsTheControlTokensThatAreNamed) {
  const auto tokenizer = byte_tokenizer({"[CALL]", "[OTHER]"});
  for (const auto& [shown, wanted] : {std::pair{std::vector<int32_t>{257}, "a[CALL]b"}, {{}, "ab"}}) {
    AnswerText answer(tokenizer.get(), {}, shown);
    std::string text;
    for (const int32_t id : {1 + 'a', 257, 258, 0, 1 + 'b'}) answer.push(id, text);
    EXPECT_EQ(text + answer.finish(), wanted);
  }
  AnswerText stops(tokenizer.get(), {"L]b"}, {257});
  std::string text;
  for (const int32_t id : {257, 1 + 'b'}) stops.push(id, text);
  EXPECT_EQ(text, "[CAL");
  EXPECT_TRUE(stops.stopped());
}

TEST(AnswerText, NeverHalfACharacter) {
  const Said said = say("a€b", {});
  for (const std::string& part : said.parts) EXPECT_TRUE(part.empty() || part == "a" || part == "€" || part == "b");
  EXPECT_EQ(said.all, "a€b");
}

// Every split of a text into tokens of one to four bytes says the same.
TEST(AnswerText, StopsStraddleTokens) {
  TokenizerSpec spec;
  spec.model = "wordlevel";
  spec.unknown = 0;
  spec.tokens = {"x", "xE", "E", "EN", "END", "N", "ND", "D", "Dy", "y", "Ny", "xEN"};
  const auto tokenizer = Tokenizer::create(spec);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  int splits = 0, stopped = 0;
  const auto walk = [&](auto&& self, const std::string& left, std::vector<int32_t> ids, const char* stop) -> void {
    if (left.empty()) {
      AnswerText answer(tokenizer->get(), {stop});
      std::string said;
      for (const int32_t id : ids) {
        answer.push(id, said);
        EXPECT_EQ(said.find("E"), std::string::npos) << "a part of the stop was sent";
        if (answer.stopped()) break;
      }
      if (!answer.stopped()) said += answer.finish();
      ++splits;
      stopped += answer.stopped();
      EXPECT_EQ(said, answer.stopped() ? "x" : "xENDy");
    }
    for (size_t id = 0; id < spec.tokens.size(); ++id) {
      if (!left.starts_with(spec.tokens[id])) continue;
      auto longer = ids;
      longer.push_back(static_cast<int32_t>(id));
      self(self, left.substr(spec.tokens[id].size()), longer, stop);
    }
  };
  walk(walk, "xENDy", {}, "END");
  EXPECT_GE(splits, 10);
  EXPECT_EQ(stopped, splits);
  stopped = splits = 0;
  walk(walk, "xENDy", {}, "ENDyz");  // held to the end, and then said
  EXPECT_EQ(stopped, 0);
  EXPECT_GE(splits, 10) << "power check";
}

TEST(AnswerText, AStopMayHoldHalfOfWhatFollowsAnother) {
  EXPECT_EQ(say("a<b><c>", {"<c>", "<b>!"}).all, "a<b>");
  EXPECT_EQ(say("a<b>!<c>", {"<c>", "<b>!"}).all, "a");
  EXPECT_EQ(say("1\u20ac2", {"\u20ac"}).all, "1");
}

// What is left of the text, and why it ended.
std::string said_in_lines(const std::string& text, std::vector<std::string> stop, LineLimits lines) {
  const auto tokenizer = byte_tokenizer();
  AnswerText answer(tokenizer.get(), std::move(stop), {}, 0, lines);
  std::string said;
  for (const char c : text) {
    answer.push(1 + static_cast<unsigned char>(c), said);
    if (answer.stopped() || answer.ended_by_lines()) break;
  }
  const bool by_lines = answer.ended_by_lines();
  said += answer.finish();
  return said + (answer.stopped() ? "|" + answer.stop_text() : by_lines ? "|lines" : "|end");
}

TEST(AnswerText, EndsByItsLines) {
  const LineLimits indented(2, -1), late(0, 0);
  EXPECT_EQ(said_in_lines("a\n  b\nc", {}, indented), "a\n  b\n|lines");
  EXPECT_EQ(said_in_lines("a\n  b\n  c", {}, indented), "a\n  b\n  c|end") << "power";
  EXPECT_EQ(said_in_lines("a\nb\nc", {}, late), "a\n|lines");
  EXPECT_EQ(said_in_lines("a\nb\nc", {}, {}), "a\nb\nc|end");
}

// What comes first in the text ends it, and what was held back for a stop string counts where it stands.
TEST(AnswerText, StopsAndLinesInTheOrderOfTheText) {
  const LineLimits indented(2, -1);
  EXPECT_EQ(said_in_lines("a\n  bEND\nc", {"END"}, indented), "a\n  b|END");
  EXPECT_EQ(said_in_lines("a\nb\n", {"b\n"}, indented), "a\n|b\n") << "held back until it was a stop";
  EXPECT_EQ(said_in_lines("a\nbc\nd", {"c\nd"}, indented), "a\n|lines") << "the stop would be behind it";
  EXPECT_EQ(said_in_lines("a\nb", {"b\n"}, indented), "a\n|end") << "held back to the end";
  EXPECT_EQ(said_in_lines("x\ny", {"\ny"}, LineLimits(0, 0)), "x|\ny") << "a line break may begin a stop";
}

}  // namespace
}  // namespace kvilt
