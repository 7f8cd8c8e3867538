// template/chat_template_golden_test.cc: the golden rows that Python's Jinja rendered, texts and errors. Every clone
// has a part of them in tests/data/templates; ../shared/data/templates, if present, has all.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "template/chat_template.h"
#include "template/slurp_for_test.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kGoldenTime = 1721997296;  // 2024-07-26 12:34:56 UTC, as the goldens fix it

ChatInputs inputs_of(Json context, bool add_generation_prompt) {
  ChatInputs inputs;
  const auto take = [&](const char* name) {
    if (!context.contains(name)) return Json(Json::value_t::discarded);
    Json value = context[name];
    context.erase(name);
    return value;
  };
  inputs.messages = take("messages");
  inputs.tools = take("tools");
  inputs.documents = take("documents");
  inputs.bos_token = take("bos_token").get<std::string>();
  inputs.eos_token = take("eos_token").get<std::string>();
  context.erase("add_generation_prompt");
  inputs.extra = std::move(context);
  inputs.add_generation_prompt = add_generation_prompt;
  inputs.now = kGoldenTime;
  return inputs;
}

struct Tally {
  int rows = 0, errors = 0, failed = 0;
};

Tally check_goldens(const std::filesystem::path& root) {
  Tally tally;
  std::map<std::string, Json> contexts;
  for (const char* folder : {"minja-contexts", "own-contexts", "contexts"}) {
    if (!std::filesystem::exists(root / folder)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(root / folder))
      contexts[entry.path().stem()] = Json::parse(slurp(entry.path()));
  }
  std::ifstream goldens(root / "goldens.permissive.jsonl");
  for (std::string line; std::getline(goldens, line);) {
    const Json row = Json::parse(line);
    const std::string name = row["template"], context = row["context"];
    const std::string where = name + " with " + context;
    ++tally.rows;
    const Result<ChatTemplate> tmpl = ChatTemplate::parse(slurp(root / name));
    EXPECT_TRUE(tmpl.ok()) << where << ": " << (tmpl.ok() ? "" : tmpl.error().message);
    if (!tmpl.ok()) {
      ++tally.failed;
      continue;
    }
    const Result<RenderedPrompt> prompt = tmpl->render(inputs_of(contexts.at(context), row["add_generation_prompt"]));
    if (row.contains("error")) {
      ++tally.errors;
      const std::string full = row["error"];
      const std::string wanted = full.substr(full.find(": ") + 2);  // after the name of Python's class
      const bool same = !prompt.ok() && prompt.error().message.ends_with(wanted);
      tally.failed += !same;
      EXPECT_TRUE(same) << where << ": expected the error " << wanted << ", got "
                        << (prompt.ok() ? "a prompt" : prompt.error().message);
      continue;
    }
    const std::string wanted = row["output"];
    const bool same = prompt.ok() && prompt->text == wanted;
    tally.failed += !same;
    EXPECT_EQ(prompt.ok() ? prompt->text : prompt.error().message, wanted) << where;
  }
  return tally;
}

TEST(ChatTemplateGolden, CommittedSubset) {
  const Tally tally = check_goldens("tests/data/templates");
  EXPECT_EQ(tally.rows, 132);
  EXPECT_EQ(tally.errors, 4);
  EXPECT_EQ(tally.failed, 0);
}

TEST(ChatTemplateGolden, AllOfShared) {
  const std::filesystem::path root = "../shared/data/templates";
  if (!std::filesystem::exists(root)) GTEST_SKIP() << root << " is not here: the committed subset ran instead";
  const Tally tally = check_goldens(root);
  EXPECT_EQ(tally.rows, 420);
  EXPECT_EQ(tally.errors, 20);
  EXPECT_EQ(tally.failed, 0);
  RecordProperty("rows", tally.rows);
}

// Small templates, one per feature, as Python rendered them (make_snippets.py). For errors only: that there is one.
TEST(ChatTemplateGolden, Snippets) {
  std::ifstream file("tests/data/templates/snippets.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  const Json context = Json::parse(line)["context"];
  int rows = 0, errors = 0, same_words = 0;
  while (std::getline(file, line)) {
    const Json row = Json::parse(line);
    const std::string source = row["source"];
    ++rows;
    const Result<ChatTemplate> tmpl = ChatTemplate::parse(source);
    const Result<RenderedPrompt> prompt = tmpl.ok() ? tmpl->render(inputs_of(context, true)) : tmpl.error();
    if (row.contains("error")) {
      EXPECT_FALSE(prompt.ok()) << source << "\nPython: " << row["error"] << "\nhere: " << prompt->text;
      const std::string full = row["error"];
      ++errors;
      same_words += !prompt.ok() && prompt.error().message.ends_with(full.substr(full.find(": ") + 2));
      continue;
    }
    const std::string wanted = row["output"];
    EXPECT_EQ(prompt.ok() ? prompt->text : prompt.error().message, wanted) << source;
  }
  EXPECT_GE(rows, 500);
  EXPECT_GE(same_words * 10, errors * 8);  // where the words differ, ours say the same
}

}  // namespace
}  // namespace kvilt
