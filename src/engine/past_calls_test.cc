// Calls of the history in the chat templates that are here, each in the form that it takes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "engine/chat_for_test.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

class PastCallsTest : public ChatPromptsTest {
 protected:
  PastCallsTest() : ChatPromptsTest(byte_tokenizer({})) {}

  static std::vector<std::filesystem::path> templates() {
    std::vector<std::filesystem::path> out;
    for (const char* root : {"tests/data/templates", "../shared/data/templates"}) {
      for (const char* folder : {"llama.cpp", "from-tokenizer-configs"}) {
        const auto where = std::filesystem::path(root) / folder;
        if (!std::filesystem::exists(where)) continue;
        for (const auto& entry : std::filesystem::directory_iterator(where))
          if (entry.path().extension() == ".jinja") out.push_back(entry.path());
      }
    }
    return out;
  }
  static std::string source_of(const std::filesystem::path& path) {
    std::stringstream source;
    source << std::ifstream(path).rdbuf();
    return source.str();
  }
  static Json called(Json arguments) {
    Json out = Json::parse(R"({"messages": [{"role": "user", "content": "weather?"}, {"role": "assistant", "content":
        null, "tool_calls": [{"id": "callprobe", "type": "function", "function": {"name": "forecast"}}]}, {"role": "tool",
        "tool_call_id": "callprobe", "name": "forecast", "content": "rain"}], "tools": [{"type": "function", "function":
        {"name": "forecast", "description": "d", "parameters": {"type": "object", "properties": {"city": {"type":
        "string"}}}}}]})");
    out["messages"][1]["tool_calls"][0]["function"]["arguments"] = std::move(arguments);
    return out;
  }
};

// And a template that shows none says so, rather than to leave out what a message is made of.
TEST_F(PastCallsTest, AnObjectIsTheSameAsItsText) {
  const std::set<std::string> show_none = {"HuggingFaceTB-SmolLM3-3B",
                                           "ibm-granite-granite-3.3-2B-Instruct",
                                           "llama-cpp-rwkv-world",
                                           "microsoft-Phi-3.5-mini-instruct",
                                           "phi-3-mini",
                                           "phi-4-mini",
                                           "smollm3"};
  int shown = 0, silent = 0;
  for (const auto& path : templates()) {
    use({source_of(path), ""});
    const auto object = chat->prompt(called({{"city", "Paris"}})), string = chat->prompt(called(R"({"city":"Paris"})"));
    ASSERT_EQ(object.ok(), string.ok()) << path << (object.ok() ? "" : object.error().message);
    const bool refused = !object.ok() && object.error().message.starts_with("messages[1].tool_calls: ");
    EXPECT_EQ(refused, show_none.contains(path.stem())) << path;
    silent += refused;
    if (!object.ok()) continue;
    EXPECT_EQ(object.value().ids, string.value().ids) << path;
    EXPECT_NE(text(object.value()).find("Paris"), std::string::npos) << path << text(object.value());
    ++shown;
  }
  EXPECT_GT(shown, 5);
  EXPECT_GT(silent, 1);
}

// DeepSeek R1's, of which Llama was made one: it appends arguments to a text, beside a content that is null alone.
TEST_F(PastCallsTest, CallsBesideAnEmptyTextAreShown) {
  use({source_of("tests/data/templates/llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja"), ""});
  Json request = called({{"city", "Paris"}});
  const std::string null = text(prompt(request));
  EXPECT_NE(null.find("forecast"), std::string::npos) << null;
  request["messages"][1]["content"] = "";
  EXPECT_EQ(text(prompt(request)), null);
  request["messages"][1]["content"] = "I look.";
  EXPECT_NE(text(prompt(request)), null) << "power";
}

}  // namespace
}  // namespace kvilt
