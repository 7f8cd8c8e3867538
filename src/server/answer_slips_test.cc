// What models get nearly right, and what only looks like it, read by hand-written syntaxes; see answer_parser_test.cc.
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "server/answers_for_test.h"

namespace kvilt::server {
namespace {

using namespace answers_for_test;

const std::string kTaggedCall = "<function=f>\n<parameter=text>\nX\n</parameter>\n</function>";
const std::string kTaggedShown = "|f({\"text\": \"X\"})|";
const std::string kObject = "{\"name\": \"f\", \"arguments\": {}}";

void expect_read(const AnswerReading& reading, const std::string& text, const std::string& wanted) {
  EXPECT_EQ(shown(reading, text), wanted);
  for (const size_t piece : {1, 2, 3, 7}) EXPECT_EQ(read(reading, text, piece), read(reading, text)) << text;
}

TEST(AnswerSlips, WordsAroundAFunctionAreNoArguments) {
  auto reading = hermes();
  reading.tools = {{"now", {}}, {"get", {{"id", TextForm::kPlain}}}};
  const auto expect = [&](const std::string& members, const std::string& wanted) {
    expect_read(reading, "<tool_call>{" + members + "}</tool_call>", wanted);
  };
  const auto expect_text = [&](const std::string& members) {
    expect(members, "<tool_call>{" + members + "}</tool_call>");
  };
  expect(R"("name": "now", "type": "function")", "|now({})|");
  expect(R"("name": "now", "id": "1")", "|now({})|");
  expect(R"("type": "function", "id": "1", "name": "other")", "|other({})|");
  expect(R"("name": "get", "id": "1", "args": {"id": "2"})", R"(|get({"id": "2"})|)");
  expect(R"("name": "get", "type": "function")", "|get({})|");
  // Power: what may be arguments is not left out.
  expect_text(R"("name": "get", "id": "1")");
  expect_text(R"("name": "now", "type": "clock")");
  expect_text(R"("name": "now", "id": 1)");
  expect_text(R"("name": "now", "id": "1", "place": "Bonn")");
}

}  // namespace
}  // namespace kvilt::server
