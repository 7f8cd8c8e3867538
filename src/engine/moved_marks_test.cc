// Clients move their cache_control from turn to turn. Ids must not move with it, over a vocabulary whose merges cross the
// borders of parts, so that it matters where a text is cut.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "engine/chat_for_test.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

// tests/data/tokenizers/byte-level.base.json without its steps: whatever stands side by side may merge.
std::unique_ptr<Tokenizer> merging_tokenizer() {
  std::stringstream text;
  text << std::ifstream("tests/data/tokenizers/byte-level.base.json").rdbuf();
  Json json = Json::parse(text.str());
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  auto made = Tokenizer::from_hf(json.dump(), "");
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return std::move(made).value();
}

class MovedMarksTest : public ChatPromptsTest {
 protected:
  // Contents stand in the midst of words.
  MovedMarksTest() : ChatPromptsTest(merging_tokenizer()) {
    use({"{%- for m in messages %}th{{ m.content }}ed {% endfor -%}", ""});
  }
  static Json conversation(int marked) {
    Json messages = Json::array();
    for (int m = 0; m < 4; ++m) {
      Json parts = Json::array();
      for (int p = 0; p < 2; ++p) parts.push_back(part(p == 0 ? "e an" : "d the w", marked == 2 * m + p));
      messages.push_back({{"role", m % 2 == 0 ? "user" : "assistant"}, {"content", std::move(parts)}});
    }
    return Json{{"messages", std::move(messages)}, {"part_separator", ""}};
  }
  std::vector<int32_t> ids_of(std::string_view text) {
    EncodeOptions options;
    options.continues = true;
    return tokenizer->encode(text, options).value();
  }
};

TEST_F(MovedMarksTest, AMarkThatMovesChangesNoIds) {
  const Prompt none = prompt(conversation(-1));
  EXPECT_TRUE(none.marks.empty());
  for (int marked = 0; marked < 8; ++marked) {
    const Prompt moved = prompt(conversation(marked));
    EXPECT_EQ(moved.ids, none.ids) << marked;
    ASSERT_EQ(moved.marks.size(), 1u);
    ASSERT_EQ(moved.parts.size(), 8u);
    const PromptPart& of = moved.parts[static_cast<size_t>(marked)];
    EXPECT_EQ(of.index, marked / 2);
    EXPECT_EQ(of.part, marked % 2);
    EXPECT_EQ(of.begin, moved.marks[0].begin);
    EXPECT_EQ(of.end, moved.marks[0].end);
  }
}

// Power: cut at the mark alone, the same text has other ids for every place of the mark.
TEST_F(MovedMarksTest, CutAtTheMarkAloneTheyWouldChange) {
  const Prompt none = prompt(conversation(-1));
  const std::string all = text(none);
  std::vector<std::vector<int32_t>> seen{ids_of(all)};
  EXPECT_NE(seen[0], none.ids) << "nor is it the text in one";
  for (const PromptPart& part : none.parts) {
    const auto bytes = [&](int32_t end) {
      return tokenizer->decode(std::span(none.ids).first(static_cast<size_t>(end))).size();
    };
    const size_t begin = bytes(part.begin), end = bytes(part.end);
    std::vector<int32_t> ids;
    for (const std::string& piece : {all.substr(0, begin), all.substr(begin, end - begin), all.substr(end)})
      for (const int32_t id : ids_of(piece)) ids.push_back(id);
    ASSERT_EQ(tokenizer->decode(ids), all);
    EXPECT_EQ(std::ranges::count(seen, ids), 0) << part.index << "/" << part.part;
    seen.push_back(std::move(ids));
  }
}

}  // namespace
}  // namespace kvilt
