// Knowledge bases over loopback, serving the fake engine.
#include <gtest/gtest.h>

#include <filesystem>

#include "server/knowledge_bases.h"
#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

constexpr const char* kBases = "/v1/knowledge_bases";

Json read(const httplib::Result& reply, int status = 200) {
  EXPECT_TRUE(reply);
  EXPECT_EQ(reply->status, status) << reply->body;
  return Json::parse(reply->body);
}

Json post(const LiveServer& server, const std::string& path, const Json& body, int status = 200) {
  return read(server.post(path, dump(body)), status);
}

TEST(KnowledgeRoutes, ABaseFromItsBeginToItsEnd) {
  LiveServer running;
  const std::string one = std::string(kBases) + "/rivers", documents = one + "/documents";
  EXPECT_EQ(post(running, kBases, {{"name", "rivers"}})["documents"], 0);
  post(running, kBases, {{"name", "rivers"}}, 409);
  const Json added =
      post(running, documents,
           {{"documents", {{{"id", "rhine"}, {"title", "Rhine"}, {"text", "1,233 km"}}, {{"text", "Elbe"}}}}});
  ASSERT_EQ(added["documents"].size(), 2u);
  EXPECT_EQ(added["documents"][0]["id"], "rhine");
  EXPECT_GT(added["documents"][0]["tokens"], 0);
  const std::string made = added["documents"][1]["id"];
  EXPECT_TRUE(made.starts_with("doc-")) << made;
  EXPECT_EQ(post(running, documents, {{"documents", {{{"text", "Elbe"}}}}})["documents"][0]["id"], made);
  const Json listed = read(running.client().Get(documents));
  ASSERT_EQ(listed["data"].size(), 2u);
  EXPECT_EQ(listed["data"][0]["id"], "rhine");
  EXPECT_EQ(listed["data"][0].contains("text"), false);
  EXPECT_EQ(read(running.client().Get(documents + "/rhine"))["text"], "1,233 km");
  EXPECT_EQ(read(running.client().Get(one))["documents"], 2);
  EXPECT_EQ(read(running.client().Delete(documents + "/rhine"))["deleted"], true);
  read(running.client().Get(documents + "/rhine"), 404);
  read(running.client().Delete(one));
  read(running.client().Get(one), 404);
  EXPECT_EQ(read(running.client().Get(kBases))["data"].size(), 0u);
}

TEST(KnowledgeRoutes, AChatNamesDocumentsInsteadOfSendingThem) {
  LiveServer running;
  post(running, kBases, {{"name", "rivers"}});
  post(running, std::string(kBases) + "/rivers/documents",
       {{"documents", {{{"id", "rhine"}, {"title", "Rhine"}, {"text", "1,233 km"}}}}});
  const auto tokens = [&](const Json& documents) {
    const Json body = {
        {"messages", {{{"role", "user"}, {"content", "how long?"}}}}, {"max_tokens", 1}, {"documents", documents}};
    return post(running, "/v1/chat/completions", body)["usage"]["prompt_tokens"];
  };
  const Json named = {{{"knowledge_base", "rivers"}, {"id", "rhine"}}},
             sent = {{{"title", "Rhine"}, {"text", "1,233 km"}}};
  EXPECT_EQ(tokens(named), tokens(sent));
  EXPECT_NE(tokens(named), tokens({{{"text", "other"}}})) << "power";
  EXPECT_EQ(read(running.client().Get(std::string(kBases) + "/rivers"))["hits"], 2);
  const Json wrong = {{"messages", {{{"role", "user"}, {"content", "?"}}}},
                      {"documents", {{{"knowledge_base", "lakes"}}}}};
  const Json error = post(running, "/v1/chat/completions", wrong, 404);
  EXPECT_NE(error["error"]["message"].get<std::string>().find("lakes"), std::string::npos);
}

// A chat freezes the documents that it names under their names, where they stand in its prompt: it may be that they had
// to give way. What the client sends itself has no name.
TEST(KnowledgeRoutes, AChatFreezesWhatItNames) {
  LiveServer running;
  post(running, kBases, {{"name", "rivers"}});
  const std::string documents = std::string(kBases) + "/rivers/documents";
  post(running, documents,
       {{"documents", {{{"id", "elbe"}, {"text", "1,094 km"}}, {{"id", "rhine"}, {"text", "1,233 km"}}}}});
  const auto frozen = [&](const std::string& path, const Json& named, const char* order = "given") {
    Json body = {{"max_tokens", 1}, {"documents", named}, {"documents_order", order}};
    if (path == "/v1/responses") {
      body["input"] = "how long?";
      body.erase("max_tokens");
    } else {
      body["messages"] = {{{"role", "user"}, {"content", "how long?"}}};
    }
    post(running, path, body);
    const Request request = running.engine->last_request();
    std::string out;
    for (const FrozenPart& part : request.prompt.frozen) {
      const auto first = request.prompt.ids.begin();
      out += part.name + " " + std::string(first + part.tokens.begin, first + part.tokens.end) + " ";
    }
    return out;
  };
  const Json elbe = {{"knowledge_base", "rivers"}, {"id", "elbe"}},
             rhine = {{"knowledge_base", "rivers"}, {"id", "rhine"}};
  const Json own = {{"text", "its own"}};
  for (const char* path : {"/v1/chat/completions", "/v1/messages", "/v1/responses"}) {
    EXPECT_EQ(frozen(path, {own, rhine}), "rivers/rhine/ 1,233 km ") << path;
    EXPECT_EQ(frozen(path, {{{"knowledge_base", "rivers"}}}), "rivers/elbe/ 1,094 km rivers/rhine/ 1,233 km ") << path;
    EXPECT_EQ(frozen(path, {own}), "") << path;
  }
  frozen("/v1/chat/completions", {elbe, rhine, own}, "any");
  EXPECT_EQ(frozen("/v1/chat/completions", {own, rhine, elbe}, "any"), "rivers/elbe/ 1,094 km rivers/rhine/ 1,233 km ")
      << "in the order in which they are asked about";
  frozen("/v1/chat/completions", {elbe, rhine});
  const std::vector<FrozenPart> parts = running.engine->last_request().prompt.frozen;
  ASSERT_EQ(parts.size(), 2u);
  read(running.client().Delete(documents + "/elbe"));
  EXPECT_TRUE(*parts[0].withdrawn) << "a chat that still runs does not freeze it";
  EXPECT_FALSE(*parts[1].withdrawn);
}

// Who only counts tokens has asked nothing, nor has who was refused.
TEST(KnowledgeRoutes, HitsAreRequestsThatRan) {
  LiveServer running;
  post(running, kBases, {{"name", "rivers"}});
  post(running, std::string(kBases) + "/rivers/documents", {{"documents", {{{"id", "elbe"}, {"text", "1,094 km"}}}}});
  const auto hits = [&] { return read(running.client().Get(std::string(kBases) + "/rivers"))["hits"].get<int>(); };
  const auto ask = [&](const std::string& path, const char* content, int status = 200) {
    Json body = {{"max_tokens", 1}, {"documents", {{{"knowledge_base", "rivers"}, {"id", "elbe"}}}}};
    if (path.starts_with("/v1/responses")) {
      body["input"] = content;
      body.erase("max_tokens");
    } else {
      body["messages"] = {{{"role", "user"}, {"content", content}}};
    }
    if (path == "/v1/embeddings") body.erase("max_tokens");
    post(running, path, body, status);
  };
  for (const char* path : {"/v1/chat/completions/input_tokens", "/v1/messages/count_tokens", "/tokenize",
                           "/apply-template", "/v1/responses/input_tokens"})
    ask(path, "how long?");
  EXPECT_EQ(hits(), 0);
  ask("/v1/chat/completions", std::string(5000, 'x').c_str(), 400);
  EXPECT_EQ(hits(), 0);
  int asked = 0;
  for (const char* path : {"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings"}) {
    ask(path, "how long?");
    EXPECT_EQ(hits(), ++asked) << path;
  }
}

TEST(KnowledgeRoutes, DocumentsAreListedInPages) {
  LiveServer running;
  post(running, kBases, {{"name", "rivers"}});
  const std::string documents = std::string(kBases) + "/rivers/documents";
  const auto list = [&](const std::string& query, int status = 200) {
    return read(running.client().Get(documents + query), status);
  };
  EXPECT_EQ(list("?limit=2"), Json::parse(R"({"object": "list", "data": [], "first_id": null, "last_id": null,
                                              "has_more": false})"));
  Json five = Json::array();
  for (const char* id : {"po", "elbe", "oder", "rhine", "aare"}) five.push_back({{"id", id}, {"text", id}});
  post(running, documents, {{"documents", five}});
  const auto ids = [](const Json& page) {
    std::string out;
    for (const Json& one : page["data"]) out += one["id"].get<std::string>() + " ";
    return out;
  };
  const Json all = list("");
  EXPECT_EQ(ids(all), "po elbe oder rhine aare ") << "all, as before there were pages";
  EXPECT_EQ(all["has_more"], false);
  std::string seen, after;
  for (int page = 0; page < 3; ++page) {
    const Json part = list("?limit=2" + after);
    EXPECT_EQ(part["first_id"], part["data"].front()["id"]);
    EXPECT_EQ(part["last_id"], part["data"].back()["id"]);
    EXPECT_EQ(part["has_more"], page < 2);
    seen += ids(part);
    after = "&after=" + part["last_id"].get<std::string>();
  }
  EXPECT_EQ(seen, ids(all));
  EXPECT_EQ(ids(list("?after=oder")), "rhine aare ");
  EXPECT_EQ(ids(list("?after=aare&limit=100000")), "");
  for (const char* wrong : {"0", "-1", "x", "2x", "", "100001", "99999999999999999999999"}) {
    const Json refused = list(std::string("?limit=") + wrong, 400);
    EXPECT_EQ(refused["error"]["param"], "limit") << wrong;
  }
  EXPECT_EQ(list("?after=nile", 400)["error"]["param"], "after");
  EXPECT_EQ(read(running.client().Get(std::string(kBases) + "/lakes/documents?limit=1"), 404)["error"]["param"],
            "name");
}

// What is in a base is frozen, and thawed when it leaves: by its own name alone.
TEST(KnowledgeRoutes, DocumentsAreFrozenWhileTheyAreThere) {
  LiveServer running;
  post(running, kBases, {{"name", "rivers"}});
  const std::string documents = std::string(kBases) + "/rivers/documents";
  const auto put = [&](const char* id, const char* text) {
    post(running, documents, {{"documents", {{{"id", id}, {"text", text}}}}});
    return running.engine->last_request().frozen_as;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(put("elbe", "1,094 km"), "rivers/elbe/");
  EXPECT_EQ(put("elbe", "1,094 km"), "rivers/elbe/");
  EXPECT_EQ(running.engine->thawed(), Names{}) << "the same text";
  put("elbe", "1,095 km");
  EXPECT_EQ(running.engine->thawed(), (Names{":rivers/elbe/"})) << "another text took its place";
  put("rhine", "1,233 km");
  read(running.client().Delete(documents + "/rhine"));
  read(running.client().Delete(documents + "/rhine"), 404);
  read(running.client().Delete(std::string(kBases) + "/rivers"));
  EXPECT_EQ(running.engine->thawed(), (Names{":rivers/elbe/", ":rivers/rhine/", ":rivers/"}));
  post(running, "/v1/documents", {{"documents", {{{"text", "1,233 km"}}}}});
  EXPECT_EQ(running.engine->last_request().frozen_as, "") << "power: what is in no base is warmed only";
}

// A text that is still computed while another one takes its place is frozen behind the thaw of that change.
TEST(KnowledgeRoutes, ATextThatIsReplacedWhileItIsComputedIsThawed) {
  LiveServer running;
  post(running, kBases, {{"name", "rivers"}});
  const std::string documents = std::string(kBases) + "/rivers/documents";
  const auto put = [&](const char* text) {
    post(running, documents, {{"documents", {{{"id", "elbe"}, {"text", text}}}}});
  };
  using Names = std::vector<std::string>;
  const auto requests = [&] { return running.engine->stats().running + running.engine->stats().waiting; };
  const auto beside = [&](const char* text, const std::function<void()>& then) {
    EXPECT_TRUE(eventually([&] { return requests() == 0; })) << "one that has answered may still be counted";
    running.engine->hold(true);
    std::thread first([&] { put(text); });
    EXPECT_TRUE(eventually([&] { return requests() > 0; }));
    std::thread second(then);
    EXPECT_TRUE(eventually([&] { return requests() > 1; }));
    running.engine->hold(false);
    first.join();
    second.join();
  };
  beside("1,094 km", [&] { put("1,094 km"); });
  EXPECT_EQ(running.engine->thawed(), Names{}) << "the same text";
  beside("1,094 km", [&] { put("1,095 km"); });
  EXPECT_EQ(running.engine->thawed(), (Names{":rivers/elbe/", ":rivers/elbe/"})) << "at the change, and at its end";
}

TEST(KnowledgeRoutes, WrongBodiesAreNamed) {
  LiveServer running;
  post(running, kBases, Json::array(), 400);
  post(running, kBases, {{"name", 3}}, 400);
  post(running, kBases, {{"name", "../etc"}}, 400);
  post(running, kBases, Json::object(), 400);
  const std::string documents = std::string(kBases) + "/x/documents";
  const Json one = {{{"id", "a"}, {"text", "t"}}};
  post(running, documents, {{"documents", one}}, 404);
  post(running, kBases, {{"name", "x"}});
  post(running, documents, {{"documents", {{{"id", "a/b"}, {"text", "t"}}}}}, 400);
  post(running, documents, {{"documents", {{{"id", 7}, {"text", "t"}}}}}, 400);
  post(running, documents, {{"documents", {{{"id", "a"}, {"text", "t"}}, {{"id", "a"}, {"text", "u"}}}}}, 400);
  post(running, documents, {{"documents", {{{"id", "a"}}}}}, 400);
  EXPECT_EQ(read(running.client().Get(documents))["data"].size(), 0u);
  post(running, documents, {{"documents", one}});
  EXPECT_EQ(read(running.client().Get(documents))["data"].size(), 1u) << "power";
  EXPECT_EQ(running.client().Delete(kBases)->status, 405);
}

// Renders nothing until it is let go.
class HeldPrompts : public FakeEngine {
 public:
  Result<Prompt> chat_prompt(const nlohmann::ordered_json& request) const override {
    ++begun;
    while (held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return FakeEngine::chat_prompt({{"messages", request.at("messages")}});
  }
  mutable std::atomic<int> begun{0};
  std::atomic<bool> held{true};
};

// A base on disk with one text, as an earlier server left it.
class FolderWithBase {
 public:
  explicit FolderWithBase(size_t bytes) : path_(testing::TempDir() + "kvilt_knowledge_routes") {
    std::filesystem::remove_all(path_);
    const auto bases = KnowledgeBases::open(path_);
    auto document = std::make_shared<KnowledgeDocument>();
    document->id = "all";
    document->text = std::string(bytes, 't');
    EXPECT_TRUE(bases.ok() && bases.value()->create("", "rivers").ok());
    EXPECT_TRUE(bases.value()->put("", "rivers", {document}).ok());
  }
  ~FolderWithBase() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

// What a chat names counts as what it sends: of two with 9 MiB each one is taken apart, and the other waits.
TEST(KnowledgeRoutes, NamedTextsWaitAtTheMemoryGate) {
  const FolderWithBase folder(size_t{9} << 20);
  const auto engine = std::make_shared<HeldPrompts>();
  ServerOptions options;
  options.knowledge_dir = folder.path();
  LiveServer running({}, options, false);
  running.server->attach(engine);
  const std::string chat = R"({"max_tokens": 1, "messages": [{"role": "user", "content": "how long?"}])";
  const std::string named = chat + R"(, "documents": [{"knowledge_base": "rivers"}]})";
  RawClient first(running.server->port()), second(running.server->port()), small(running.server->port());
  first.send(request("/v1/chat/completions", named));
  ASSERT_TRUE(eventually([&] { return engine->begun == 1; }));
  second.send(request("/v1/chat/completions", named));
  small.send(request("/v1/chat/completions", chat + "}"));
  EXPECT_TRUE(eventually([&] { return engine->begun == 2; })) << "power: what names nothing does not wait";
  second.close();  // it leaves the line, and nobody has rendered it
  const auto refused = [&] {
    return running.client().Get("/metrics")->body.find("http_responses_total{status=\"503\"} 1") != std::string::npos;
  };
  EXPECT_TRUE(eventually(refused));
  EXPECT_EQ(engine->begun, 2);
  engine->held = false;
  EXPECT_NE(first.receive("200 OK").find("200 OK"), std::string::npos);
  EXPECT_NE(small.receive("200 OK").find("200 OK"), std::string::npos);
  EXPECT_EQ(running.post("/v1/chat/completions", named)->status, 200) << "there is room again";
}

TEST(KnowledgeRoutes, TenantsDoNotSeeEachOther) {
  ServerOptions options;
  options.tenants = {{"a", {ApiKey::of("key-of-a-0123456789", false)}},
                     {"b", {ApiKey::of("key-of-b-0123456789", false)}}};
  LiveServer running({}, options);
  const httplib::Headers a = {{"Authorization", "Bearer key-of-a-0123456789"}};
  const httplib::Headers b = {{"Authorization", "Bearer key-of-b-0123456789"}};
  EXPECT_EQ(running.post(kBases, R"({"name": "x"})", a)->status, 200);
  EXPECT_EQ(running.client().Get(std::string(kBases) + "/x", b)->status, 404);
  EXPECT_EQ(running.client().Get(std::string(kBases) + "/x", a)->status, 200) << "power";
  EXPECT_EQ(running.client().Get(kBases)->status, 401);
}

}  // namespace
}  // namespace kvilt::server
