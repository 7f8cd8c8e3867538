// engine/chat_for_test.h: chat requests to prompts over a vocabulary of bytes, for the tests of ChatPrompts.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "engine/byte_tokenizer_for_test.h"
#include "engine/chat.h"

namespace kvilt {

class ChatPromptsTest : public testing::Test {
 protected:
  using Json = nlohmann::ordered_json;

  explicit ChatPromptsTest(std::unique_ptr<Tokenizer> its) : tokenizer(std::move(its)) {}

  void use(const ChatPrompts::Sources& sources) {
    auto made = ChatPrompts::create(*tokenizer, sources, "", "");
    ASSERT_TRUE(made.ok()) << made.error().message;
    chat.emplace(std::move(made).value());
  }
  Prompt prompt(const Json& request) {
    auto made = chat->prompt(request);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return made.ok() ? *std::move(made) : Prompt{};
  }
  std::string text(const Prompt& prompt) { return tokenizer->decode(prompt.ids); }
  static Json user(const std::string& content) {
    return {{"messages", Json::array({{{"role", "user"}, {"content", content}}})}};
  }
  static Json part(const std::string& content, bool mark) {
    Json out{{"type", "text"}, {"text", content}};
    if (mark) out["cache_control"] = {{"type", "ephemeral"}};
    return out;
  }

  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatPrompts> chat;
};

}  // namespace kvilt
