// The order of documents and tools where any will do: alone, and through the routes.
#include "server/part_orders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "server/first_difference.h"
#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

using Order = std::vector<size_t>;

Json chat_about(const std::string& documents, const std::string& system = "Answer.",
                const std::string& question = "?") {
  Json body = {{"messages", {{{"role", "system"}, {"content", system}}, {{"role", "user"}, {"content", question}}}},
               {"documents", Json::array()},
               {"documents_order", "any"}};
  for (const char name : documents) body["documents"].push_back({{"text", std::string(20, name)}});
  return body;
}

class PartOrdersTest : public testing::Test {
 protected:
  Order arrange(const std::string& documents, const std::string& system = "Answer.", const std::string& salt = "",
                const std::string& tenant = "") {
    Json body = chat_about(documents, system);
    const auto places = orders.arrange(tenant, salt, body);
    EXPECT_TRUE(places.ok());
    if (!places.ok()) return {};
    std::string arranged;
    for (const Json& document : body["documents"]) arranged += document["text"].get<std::string>()[0];
    last = arranged;
    return places.value().documents;
  }
  PartOrders orders;
  std::string last;
};

TEST_F(PartOrdersTest, AKnownSetComesInItsOldOrder) {
  EXPECT_EQ(arrange("cab"), (Order{0, 1, 2})) << "the first order is the client's";
  EXPECT_EQ(arrange("abc"), (Order{2, 0, 1}));
  EXPECT_EQ(last, "cab");
  EXPECT_EQ(arrange("bxac"), (Order{3, 2, 0, 1}));
  EXPECT_EQ(last, "cabx") << "what is new stands behind";
  EXPECT_EQ(arrange("xcba"), (Order{1, 3, 2, 0}));
  EXPECT_EQ(arrange("bx"), (Order{0, 1})) << "nothing began with these";
  EXPECT_EQ(arrange("ac"), (Order{1, 0}));
}

TEST_F(PartOrdersTest, TheMostBytesWinAndThenTheOldest) {
  arrange("ab");
  arrange("cde");
  arrange("abcde");
  EXPECT_EQ(last, "cdeab") << "three are more than two";
  arrange("bcdea");
  EXPECT_EQ(last, "cdeab");
  arrange("edc");
  EXPECT_EQ(last, "cde");
  PartOrders other;
  Json longer = chat_about("a"), both = chat_about("ab");
  longer["documents"].push_back({{"text", std::string(500, 'z')}});
  std::swap(longer["documents"][0], longer["documents"][1]);
  both["documents"].push_back({{"text", std::string(500, 'z')}});
  Json first = chat_about("ab");
  ASSERT_TRUE(other.arrange("", "", first).ok());
  ASSERT_TRUE(other.arrange("", "", longer).ok());
  EXPECT_EQ(other.arrange("", "", both).value().documents, (Order{0, 2, 1})) << "behind a, the longer one";
}

TEST_F(PartOrdersTest, NobodysOrdersDependOnOthers) {
  arrange("cab");
  for (const auto& [system, salt, tenant] :
       std::vector<std::array<std::string, 3>>{{"Other.", "", ""}, {"Answer.", "salt", ""}, {"Answer.", "", "tenant"}})
    EXPECT_EQ(arrange("abc", system, salt, tenant), (Order{0, 1, 2}));
  EXPECT_EQ(arrange("abc"), (Order{2, 0, 1})) << "power";
}

TEST_F(PartOrdersTest, DocumentsMayComeTwice) {
  EXPECT_EQ(arrange("aba"), (Order{0, 1, 2}));
  EXPECT_EQ(arrange("aab"), (Order{0, 2, 1}));
  EXPECT_EQ(arrange("bca"), (Order{2, 0, 1}));
}

TEST_F(PartOrdersTest, OnlyWhoAsksGetsAnOrder) {
  Json body = chat_about("cab");
  body["documents_order"] = "given";
  EXPECT_TRUE(orders.arrange("", "", body).value().documents.empty());
  body.erase("documents_order");
  EXPECT_TRUE(orders.arrange("", "", body).value().documents.empty());
  EXPECT_EQ(arrange("abc"), (Order{0, 1, 2})) << "they were not kept";
  for (const Json& wrong : {Json("best"), Json(1), Json(true), Json::array()}) {
    body["documents_order"] = wrong;
    EXPECT_EQ(orders.arrange("", "", body).error().code, Code::kInvalidArgument);
  }
  Json none = chat_about("");
  EXPECT_TRUE(orders.arrange("", "", none).value().documents.empty());
  none["documents"] = "x";  // the template's reader says so
  EXPECT_TRUE(orders.arrange("", "", none).value().documents.empty());
}

Json with_tools(const std::string& names) {
  Json body = chat_about("");
  for (const char name : names) body["tools"].push_back({{"name", std::string(1, name)}});
  return body;
}

TEST_F(PartOrdersTest, ToolsWhereTheRequestOrTheOperatorSaysSo) {
  PartOrders any_tools(true);
  const auto tools = [](PartOrders& with, const std::string& names, const Json& order) {
    Json body = with_tools(names);
    body["tools_order"] = order;
    return with.arrange("", "", body).value().tools;
  };
  for (const auto& [with, order] : {std::pair{&any_tools, Json()}, {&any_tools, Json("any")}, {&orders, Json("any")}}) {
    tools(*with, "cab", order);
    EXPECT_EQ(tools(*with, "abc", order), (Order{2, 0, 1}));
    EXPECT_EQ(tools(*with, "abc", "given"), Order());
  }
  EXPECT_EQ(tools(orders, "abc", Json()), Order());
  // Documents stand behind the tools: where these are others, so is the beginning.
  const auto documents = [&](const std::string& names, const std::string& tools) {
    Json body = chat_about(names);
    body["tools"] = with_tools(tools)["tools"];
    return any_tools.arrange("", "", body).value().documents;
  };
  documents("cab", "xy");
  EXPECT_EQ(documents("abc", "yx"), (Order{2, 0, 1})) << "the tools are put in order first";
  EXPECT_EQ(documents("abc", "zx"), (Order{0, 1, 2}));
}

// Clients mark the last of those that they send, whichever that is: cache_control is no part of a tool.
TEST_F(PartOrdersTest, AMarkThatMovesMakesNoOtherTool) {
  const auto marked = [&](const std::string& names, const std::string& documents = "") {
    Json body = chat_about(documents);
    body["tools"] = with_tools(names)["tools"];
    body["tools"].back()["cache_control"] = {{"type", "ephemeral"}};
    body["tools_order"] = body["documents_order"] = "any";
    return orders.arrange("", "", body).value();
  };
  marked("cab", "xyz");
  EXPECT_EQ(marked("abc").tools, (Order{2, 0, 1}));
  EXPECT_EQ(marked("abc", "zxy").documents, (Order{1, 2, 0})) << "nor another beginning";
  EXPECT_EQ(marked("abd", "zxy").documents, (Order{0, 1, 2})) << "power: another tool";
  EXPECT_EQ(hashes_of(Json::parse(R"([{"name": "a", "cache_control": {"type": "ephemeral"}}, {"name": "b"}])")),
            hashes_of(Json::parse(R"([{"name": "a"}, {"name": "b", "cache_control": {"type": "ephemeral"}}])")));
  EXPECT_NE(hashes_of(with_tools("ab")["tools"]), hashes_of(with_tools("ac")["tools"])) << "power";
}

// Sets that would take forever to search, and more orders than there is room for.
TEST_F(PartOrdersTest, WorkAndMemoryAreBounded) {
  PartOrders few(false, 500);
  std::string many;
  for (char c = '0'; c < 'p'; ++c) many += c;
  std::mt19937 rng(1);
  const auto ask = [&](const std::string& documents, const std::string& system) {
    Json body = chat_about(documents, system);
    return few.arrange("", "", body).value().documents;
  };
  for (int i = 0; i < 100; ++i) {
    std::string shuffled = many;
    std::ranges::shuffle(shuffled, rng);
    shuffled.resize(40);
    EXPECT_EQ(ask(shuffled, "Answer.").size(), 40u);
  }
  ask("zxy", "Answer.");
  EXPECT_EQ(ask("xyz", "Answer."), (Order{2, 0, 1}));
  for (int i = 0; i < 9; ++i) ask(many, "system " + std::to_string(i));
  EXPECT_EQ(ask("xyz", "Answer."), (Order{0, 1, 2})) << "its trie made room";
}

TEST(PartOrderRoutes, TheAnswerSaysWhichOrderItWas) {
  LiveServer running;
  const auto ask = [&](const std::string& documents, const std::string& order) {
    Json body = chat_about(documents);
    body["documents_order"] = order;
    body["max_tokens"] = 1;
    const auto reply = running.post("/v1/chat/completions", dump(body));
    EXPECT_TRUE(reply);
    return Json::parse(reply->body);
  };
  ask("cab", "any");
  EXPECT_EQ(ask("abc", "any")["usage"]["kvilt"]["documents_order"], (Json{2, 0, 1}));
  EXPECT_FALSE(ask("abc", "given")["usage"]["kvilt"].contains("documents_order"));
  EXPECT_EQ(ask("abc", "given")["usage"]["kvilt"]["documents_place"], "first_user_message");
  EXPECT_FALSE(ask("", "given")["usage"]["kvilt"].contains("documents_place")) << "power: no documents";
  const Json refused = ask("abc", "best");
  EXPECT_EQ(refused["error"]["param"], "documents_order");
  EXPECT_NE(refused["error"]["message"].get<std::string>().find("\"any\""), std::string::npos);
}

}  // namespace
}  // namespace kvilt::server
