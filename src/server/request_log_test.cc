// What an answer, and GET /v1/requests/{id}, tell about a prompt; progress while it is computed.
#include "server/request_log.h"

#include <gtest/gtest.h>

#include "server/anthropic_response.h"
#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

// Each string is a message; bytes are tokens.
ComparedPrompt prompt_of(const std::vector<std::string>& messages) {
  Prompt prompt;
  for (size_t i = 0; i < messages.size(); ++i) {
    prompt.ids.push_back(FakeEngine::kRole);
    const auto begin = static_cast<int32_t>(prompt.ids.size());
    for (const char c : messages[i]) prompt.ids.push_back(static_cast<unsigned char>(c));
    prompt.parts.push_back(
        {PromptPart::Of::kMessage, static_cast<int32_t>(i), -1, begin, static_cast<int32_t>(prompt.ids.size())});
  }
  return compared(prompt);
}

std::pair<std::string, std::string> difference(const std::vector<std::string>& older,
                                               const std::vector<std::string>& newer) {
  const FakeEngine engine;
  const FirstDifference out = first_difference(prompt_of(older), prompt_of(newer), engine);
  return {out.kind, out.path};
}

using Kind = std::pair<std::string, std::string>;

TEST(FirstDifference, SaysWhereAndOfWhichKind) {
  const std::string rules = "Rules of the house";
  EXPECT_EQ(difference({"a", "b"}, {"a", "b"}).first, "none");
  EXPECT_EQ(difference({"a", "b"}, {"a", "b", "c"}), Kind("new", "messages[2].content"));
  EXPECT_EQ(difference({rules, "now 10:31:07", "x"}, {rules, "now 10:31:09", "x"}),
            Kind("clock", "messages[1].content"));
  EXPECT_EQ(difference({"on 2026-11-24"}, {"on 2026-11-25"}), Kind("clock", "messages[0].content"));
  EXPECT_EQ(difference({"at 1763981234567"}, {"at 1763981299567"}), Kind("clock", "messages[0].content"));
  EXPECT_EQ(difference({"cch=9f3a1c; x"}, {"cch=00aa1c; x"}), Kind("id", "messages[0].content"));
  EXPECT_EQ(difference({"call_x7Gh2 y"}, {"call_q9Lm1 y"}), Kind("id", "messages[0].content"));
  EXPECT_EQ(difference({rules, "one", "two"}, {rules, "two", "one"}), Kind("order", "messages[1].content"));
  EXPECT_EQ(difference({rules, "one", "two"}, {rules, "two"}), Kind("removal", "messages[1].content"));
  EXPECT_EQ(difference({rules, "one", "two"}, {rules, "one"}).first, "removal");
  EXPECT_EQ(difference({rules, "two"}, {rules, "one", "two"}), Kind("new", "messages[1].content"));
  EXPECT_EQ(difference({rules, "a dog"}, {rules, "a cat"}), Kind("edit", "messages[1].content"));
  EXPECT_EQ(difference({}, {"a"}).first, "new");
}

// As agents write the time at the head of their prompts.
TEST(FirstDifference, ATimeOrADateIsAClockHoweverItIsWritten) {
  const auto kind = [](const std::string& was, const std::string& is) { return difference({was}, {is}).first; };
  const std::pair<const char*, const char*> clocks[] = {{"at 10:31PM now", "at 10:32PM now"},
                                                        {"at 10:31pm", "at 9:05am"},
                                                        {"at 10:31 AM.", "at 10:31 PM."},
                                                        {"at 10:31 a.m., then", "at 10:32 a.m., then"},
                                                        {"It is Monday.", "It is Tuesday."},
                                                        {"Tue Nov 24 2026", "Wed Nov 25 2026"},
                                                        {"Today is Nov 24, 2026", "Today is Nov 25, 2026"},
                                                        {"on 24 November", "on 25 November"},
                                                        {"on November 9th", "on November 10th"},
                                                        {"Nov 24, 2026", "Nov 24, 2027"},
                                                        {"Thu, 24 Nov 2026", "Thu, 24 Nov 2027"},
                                                        {"since JUNE", "since JULY"},
                                                        {"at 2026-11-24T10:31:07Z", "at 2026-11-24T10:31:09Z"}};
  for (const auto& [was, is] : clocks) EXPECT_EQ(kind(was, is), "clock") << was << " / " << is;
  const std::pair<const char*, const char*> edits[] = {{"I have 24 apples", "I have 25 apples"},
                                                       {"It is Monday.", "It is mine."},
                                                       {"you may go", "you might go"},
                                                       {"the march of 24 men", "the march of 25 men"},
                                                       {"AMPLE room", "PMPLE room"}};
  for (const auto& [was, is] : edits) EXPECT_EQ(kind(was, is), "edit") << was << " / " << is;
  EXPECT_EQ(kind("call 10a31PM", "call 10b32PM"), "id") << "power: it is none of a clock's";
}

TEST(FirstDifference, ToolsAreInTheHead) {
  const FakeEngine engine;
  ComparedPrompt older = prompt_of({"a"}), newer = older;
  older.ids.insert(older.ids.begin(), {1, 2, 3});
  newer.ids.insert(newer.ids.begin(), {1, 3, 2});
  for (ComparedPrompt* one : {&older, &newer}) one->parts[0].begin += 3, one->parts[0].end += 3;
  older.tools = {7, 8};
  newer.tools = {8, 7};
  const FirstDifference out = first_difference(older, newer, engine);
  EXPECT_EQ(Kind(out.kind, out.path), Kind("order", "tools[0]"));
  EXPECT_EQ(out.common, 1);
}

// Qwen's templates have them behind the system's text, and others' in it.
TEST(FirstDifference, ToolsMayStandBehindTheSystemsText) {
  const FakeEngine engine;
  const auto with_tools = [](const std::string& system, int32_t tool, int32_t systems) {
    ComparedPrompt out = prompt_of({system, "hi"});
    const auto behind = static_cast<size_t>(out.parts[0].end);
    out.ids.insert(out.ids.begin() + static_cast<ptrdiff_t>(behind), {1, tool});
    out.parts[1].begin += 2, out.parts[1].end += 2;
    out.tools = {static_cast<size_t>(tool)};
    out.systems = systems;
    return out;
  };
  const auto path = [&](const std::string& system, int32_t tool, int32_t systems) {
    return first_difference(with_tools("kind", 5, systems), with_tools(system, tool, systems), engine).path;
  };
  EXPECT_EQ(path("kind", 6, 1), "tools[0]");
  for (const char* system : {"kinder", "blunt"})
    EXPECT_EQ(path(system, 6, 1), "messages[0].content") << "the difference is inside a message";
  EXPECT_NE(path("kin", 6, 1), "tools[0]") << "so it is where some of it went";
  EXPECT_EQ(path("kind", 6, 0), "template") << "power: the user had spoken before";
  EXPECT_EQ(path("blunt", 5, 1), "messages[0].content");
}

// In the log, as a request's that was taken.
std::shared_ptr<RequestRecord> kept_in(RequestLog& log, RequestRecord record) {
  const FakeEngine engine;
  auto kept = log.begin(std::move(record), "", engine);
  log.submitted(kept, 0);
  return kept;
}

RequestRecord record_of(const std::string& id, const std::string& tenant, const std::string& text = "same text") {
  RequestRecord record;
  record.id = id;
  record.tenant = tenant;
  record.prompt = prompt_of({text});
  return record;
}

TEST(RequestLog, IsBoundedAndOfOneTenant) {
  RequestLog log(3, false);
  for (int i = 0; i < 5; ++i) kept_in(log, record_of("r" + std::to_string(i), i == 4 ? "other" : "mine"));
  EXPECT_FALSE(log.show("mine", "r1"));
  ASSERT_TRUE(log.show("mine", "r3"));
  EXPECT_EQ((*log.show("mine", "r3"))["first_difference"]["previous"], "r2");
  EXPECT_FALSE(log.show("mine", "r4"));
  EXPECT_EQ((*log.show("other", "r4"))["first_difference"], nullptr) << "another tenant's prompt is none before it";
  EXPECT_EQ(log.list("mine").size(), 2u);

  RequestLog off(0, false);
  EXPECT_NE(kept_in(off, record_of("r", "")), nullptr);
  EXPECT_FALSE(off.show("", "r"));
}

TEST(RequestLog, TheTenantThatHasMostLosesItsOldest) {
  RequestLog log(4, false);
  for (const char* id : {"q0", "q1"}) kept_in(log, record_of(id, "quiet"));
  for (int i = 0; i < 20; ++i) kept_in(log, record_of("l" + std::to_string(i), "loud"));
  EXPECT_TRUE(log.show("quiet", "q0"));
  EXPECT_TRUE(log.show("quiet", "q1"));
  EXPECT_EQ(log.list("loud").size(), 2u) << "power: the log is full";
  EXPECT_TRUE(log.show("loud", "l19"));
  kept_in(log, record_of("q2", "quiet"));
  EXPECT_FALSE(log.show("quiet", "q0"));
}

// The same where their prompts are too long together.
TEST(RequestLog, TheTenantWhosePromptsAreLongestLosesItsOldest) {
  RequestLog log(100, false);
  const auto add = [&](const std::string& id, const std::string& tenant, size_t size) {
    RequestRecord record;
    record.id = id;
    record.tenant = tenant;
    record.prompt.ids.assign(size, 7);
    kept_in(log, std::move(record));
  };
  add("q", "quiet", 10);
  for (const char* id : {"l0", "l1", "l2"}) add(id, "loud", RequestLog::kMostTokens / 2);
  EXPECT_TRUE(log.show("quiet", "q"));
  EXPECT_EQ(log.list("loud").size(), 1u);
  EXPECT_TRUE(log.show("loud", "l2"));
}

// What was never taken, or whose client left, is no message before another.
TEST(RequestLog, IsComparedWithWhatWasAnsweredOnly) {
  const FakeEngine engine;
  RequestLog log(2, false);
  kept_in(log, record_of("first", "mine", "same"));
  for (int i = 0; i < 5; ++i) log.begin(record_of("refused", "mine"), "", engine);
  EXPECT_FALSE(log.show("mine", "refused"));
  const auto left = kept_in(log, record_of("left", "mine"));
  EXPECT_EQ(log.begin(record_of("next", "mine"), "", engine)->previous, "left") << "power: it is running";
  log.left(*left);
  EXPECT_EQ(log.begin(record_of("next", "mine"), "", engine)->previous, "first");
  EXPECT_EQ(log.begin(record_of("next", "mine"), "left", engine)->previous, "left") << "the client names it";
}

std::string chat(const std::string& text, const std::string& more) {
  return R"({"messages": [{"role": "system", "content": "You help."}, {"role": "user", "content": ")" + text +
         R"("}], "max_tokens": 4, "temperature": 0)" + more + "}";
}

TEST(RequestLog, APrefillStandsBesideTheBestOfItsTenant) {
  RequestLog log(8, false);
  const auto seconds_of = [&](const char* tenant, int fresh, double flops, double ttft_s) {
    RequestRecord record;
    record.tenant = tenant;
    const auto kept = kept_in(log, std::move(record));
    Completion completion;
    completion.usage.fresh = fresh;
    completion.usage.flops = flops;
    completion.usage.queued_s = 1;
    completion.usage.ttft_s = 1 + ttft_s;
    log.ended(*kept, completion);
    return log.json_of(*kept)["seconds"]["prefill_at_best"];
  };
  EXPECT_EQ(seconds_of("a", 10, 1e9, .001), nullptr) << "too short to be measured";
  EXPECT_DOUBLE_EQ(seconds_of("a", 1000, 8e9, 2), 2);
  EXPECT_DOUBLE_EQ(seconds_of("a", 1000, 8e9, 4), 2) << "it could have been";
  EXPECT_DOUBLE_EQ(seconds_of("a", 10, 1e9, 4), .25);
  EXPECT_DOUBLE_EQ(seconds_of("b", 1000, 8e9, 4), 4) << "another tenant's are not looked at";
}

// It went on from a prefill whose client had left: its time is that of the rest, its operations are those of both.
TEST(RequestLog, AJoinedPrefillIsNoMeasureOfTheBest) {
  const auto best = [](int joined) {
    RequestLog log(8, false);
    Json out;
    for (const double ttft_s : {.001, 2.}) {
      const auto kept = kept_in(log, {});
      Completion completion;
      completion.usage.fresh = 1000;
      completion.usage.flops = 8e9;
      completion.usage.ttft_s = ttft_s;
      completion.usage.joined = ttft_s < 1 ? joined : 0;
      log.ended(*kept, completion);
      out = log.json_of(*kept)["seconds"]["prefill_at_best"];
    }
    return out;
  };
  EXPECT_DOUBLE_EQ(best(990), 2);
  EXPECT_DOUBLE_EQ(best(0), .001) << "power: it would be";
}

// What the previous request of the conversation had at this place and left in the cache, and is not there.
TEST(RequestLog, WhatHasGoneFromTheCacheIsEvicted) {
  const auto told = [&](bool left, Finish finish, FreshWhy why, const std::string& more = " and more") {
    RequestLog log(8, false);
    Json out;
    for (const auto& text : {std::string("the same beginning"), "the same beginning" + more}) {
      RequestRecord record;
      record.id = text;
      record.prompt = prompt_of({text});
      const int32_t all = static_cast<int32_t>(record.prompt.ids.size());
      const auto kept = kept_in(log, std::move(record));
      Completion done;
      done.finish = finish;
      done.quilt = {{.kind = PatchKind::kPrefix, .count = 4, .exact = true},
                    {.begin = 4, .count = all - 4, .why = why, .exact = left}};
      log.ended(*kept, done);
      out = log.json_of(*kept);
    }
    EXPECT_EQ(out["first_difference"]["common_tokens"], 19) << "a role and 18 bytes";
    return out;
  };
  const Json gone = told(true, Finish::kLength, FreshWhy::kNew);
  EXPECT_EQ(gone["fresh"], (Json{{"evicted", 15}, {"new", 9}}));
  EXPECT_EQ(gone["quilt"][1]["evicted"], 15);
  const Json all_new = {{"new", 24}};
  EXPECT_EQ(told(false, Finish::kLength, FreshWhy::kNew)["fresh"], all_new) << "power: it was not left there";
  EXPECT_EQ(told(true, Finish::kError, FreshWhy::kNew)["fresh"], all_new) << "power: it had failed";
  EXPECT_EQ(told(true, Finish::kLength, FreshWhy::kRefused)["fresh"], (Json{{"refused", 24}}))
      << "power: it was not looked for";
  EXPECT_EQ(told(true, Finish::kLength, FreshWhy::kNew, "")["fresh"], (Json{{"evicted", 14}, {"new", 1}}))
      << "the last token is computed in any case";
}

// A piece that was placed, or a chain, is what no other method finds: behind it nothing was there to be evicted.
TEST(RequestLog, WhatWasNotLeftExactlyIsNotEvicted) {
  const auto evicted = [](const std::vector<PromptPatch>& of_first) {
    RequestLog log(8, false);
    Json out;
    for (const char* id : {"first", "again"}) {
      const auto kept = kept_in(log, record_of(id, "", "a beginning, a piece, an end"));
      Completion done;
      const auto all = static_cast<int32_t>(kept->prompt.ids.size());
      done.quilt = std::string(id) == "first" ? of_first : std::vector<PromptPatch>{{.count = all, .exact = true}};
      log.ended(*kept, done);
      out = log.json_of(*kept)["fresh"];
    }
    return out.value("evicted", 0);
  };
  const PromptPatch head{.count = 10, .exact = true}, rest{.begin = 20, .count = 9};
  EXPECT_EQ(evicted({head, {.kind = PatchKind::kReused, .begin = 10, .count = 10, .exact = true}, rest}), 10);
  EXPECT_EQ(evicted({head, {.kind = PatchKind::kRecomputed, .begin = 10, .count = 10, .exact = true}, rest}), 10);
  const PromptPatch chain{.kind = PatchKind::kPrefix, .count = 20, .exact = true, .chain = true};
  EXPECT_EQ(evicted({chain, rest}), 0);
  PromptPatch exact = chain;
  exact.chain = false;
  EXPECT_EQ(evicted({exact, rest}), 20) << "power";
}

TEST(Diagnostics, AreInTheAnswerAndLater) {
  LiveServer running;
  const std::string asked = R"(, "kvilt": {"diagnostics": true})";
  const auto first = running.post("/v1/chat/completions", chat("now 10:31:07 is it", asked));
  ASSERT_EQ(first->status, 200) << first->body;
  const auto second = running.post("/v1/chat/completions", chat("now 10:31:09 is it", asked));
  const Json answer = Json::parse(second->body), told = answer["usage"]["kvilt"]["diagnostics"];
  EXPECT_EQ(told["id"], answer["id"]);
  EXPECT_EQ(told["first_difference"]["class"], "clock");
  EXPECT_EQ(told["first_difference"]["previous"], Json::parse(first->body)["id"]);
  EXPECT_FALSE(told["first_difference"].contains("after")) << "the operator did not allow text";
  EXPECT_EQ(told["quilt"][0]["kind"], "prefix");
  EXPECT_EQ(told["quilt"][0]["count"], answer["usage"]["kvilt"]["prefix"]);
  int fresh = 0;
  for (const auto& [why, count] : told["fresh"].items()) fresh += count.get<int>();
  EXPECT_EQ(fresh, answer["usage"]["kvilt"]["fresh"]);

  auto later = running.client().Get("/v1/requests/" + answer["id"].get<std::string>());
  ASSERT_EQ(later->status, 200);
  EXPECT_EQ(Json::parse(later->body), told);
  EXPECT_EQ(Json::parse(running.client().Get("/v1/requests")->body)["data"].size(), 2u);
  EXPECT_EQ(running.client().Get("/v1/requests/nothing")->status, 404);

  const auto plain = running.post("/v1/chat/completions", chat("now 10:31:09 is it", ""));
  EXPECT_FALSE(Json::parse(plain->body)["usage"]["kvilt"].contains("diagnostics"));
  EXPECT_EQ(error_of(running.post("/v1/chat/completions", chat("x", R"(, "kvilt": {"diagnostics": 1})")))["param"],
            "kvilt.diagnostics");
}

TEST(Diagnostics, OfAStreamAreInItsUsage) {
  LiveServer running;
  const auto reply =
      running.post("/v1/chat/completions", chat("hi", R"(, "stream": true, "kvilt": {"diagnostics": true})"));
  auto all = events(reply->body);
  EXPECT_EQ(all.back()["usage"]["kvilt"]["diagnostics"]["state"], "done");
}

TEST(Diagnostics, AnthropicsNameTheMessageBefore) {
  LiveServer running;
  const auto body = [](const std::string& text, const std::string& more) {
    return R"({"max_tokens": 4, "messages": [{"role": "user", "content": ")" + text + R"("}])" + more + "}";
  };
  const auto first = Json::parse(running.post("/v1/messages", body("one 1 text", ""))->body);
  running.post("/v1/messages", body("one 1 texts", ""));
  const auto reply = running.post("/v1/messages", body("one 2 text", R"(, "diagnostics": {"previous_message_id": ")" +
                                                                         first["id"].get<std::string>() + "\"}"));
  ASSERT_EQ(reply->status, 200) << reply->body;
  const Json told = Json::parse(reply->body)["usage"]["kvilt"]["diagnostics"];
  EXPECT_EQ(told["first_difference"]["previous"], first["id"]);
  EXPECT_EQ(Json::parse(reply->body)["diagnostics"]["cache_miss_reason"]["type"], "messages_changed");
  const auto reason = [&](const std::string& text, const std::string& more, const std::string& id) {
    const std::string named = id.empty() ? "null" : "\"" + id + "\"";
    const auto said =
        running.post("/v1/messages", body(text, more + R"(, "diagnostics": {"previous_message_id": )" + named + "}"));
    EXPECT_EQ(said->status, 200) << said->body;
    const Json json = Json::parse(said->body);
    EXPECT_TRUE(json["diagnostics"].contains("cache_miss_reason")) << said->body;
    const Json why = json["diagnostics"]["cache_miss_reason"];
    return why.is_null() ? "" : why["type"].get<std::string>();
  };
  EXPECT_EQ(reason("one 1 text", "", first["id"]), "");
  EXPECT_EQ(reason("one 1 text", "", ""), "");
  EXPECT_EQ(reason("one 1 text", "", "msg_none"), "previous_message_not_found");
  const std::string system = R"(, "system": "You are )";
  const auto asked = Json::parse(running.post("/v1/messages", body("hi", system + "kind.\""))->body);
  EXPECT_EQ(reason("hi", system + "terse.\"", asked["id"]), "system_changed");
  EXPECT_EQ(reason("hi", system + "curt.\"", ""), "") << "null: the first turn, with no message to be compared with";
  const auto turn =
      Json::parse(running.post("/v1/messages", body("hi", system + R"(blunt.", "diagnostics": {})"))->body);
  EXPECT_EQ(turn["diagnostics"]["cache_miss_reason"], nullptr);
  EXPECT_EQ(turn["usage"]["kvilt"]["diagnostics"]["first_difference"]["path"], "system") << "ours has what is nearest";
  for (const char* none : {R"("")", "null", "[]", R"([{"type": "text", "text": ""}])"})
    EXPECT_EQ(reason("one 4 text", std::string(R"(, "system": )") + none, first["id"]), "messages_changed") << none;
  RequestRecord tools;
  tools.prompt.ids = {1, 2, 3, 4};
  tools.difference.emplace();
  tools.difference->common = 1;
  tools.difference->path = "tools[0]";
  EXPECT_EQ(anthropic_diagnostics(tools, true)["cache_miss_reason"],
            Json({{"type", "tools_changed"}, {"cache_missed_input_tokens", 3}}));
  EXPECT_FALSE(first.contains("diagnostics")) << "power";
  const auto streamed =
      running.post("/v1/messages", body("one 3 text", R"(, "stream": true, "diagnostics": {"previous_message_id": ")" +
                                                          first["id"].get<std::string>() + "\"}"));
  EXPECT_LT(streamed->body.find("cache_miss_reason"), streamed->body.find("content_block_start"));
  for (const char* wrong : {"7", "[]", R"({"previous_message_id": 7})"})
    EXPECT_EQ(running.post("/v1/messages", body("x", std::string(R"(, "diagnostics": )") + wrong))->status, 400);
}

// A body that was made of the client's has other messages: the path is the client's own.
TEST(Diagnostics, PathsAreTheClientsOwn) {
  LiveServer running;
  int next = 0;
  const auto path = [&](const char* route, const Json& before, const Json& after) {
    Json difference;
    for (Json body : {before, after}) {
      body["cache_salt"] = std::to_string(next);
      body["kvilt"] = {{"diagnostics", true}};
      const auto reply = running.post(route, body.dump());
      EXPECT_EQ(reply->status, 200) << reply->body;
      difference = Json::parse(reply->body)["usage"]["kvilt"]["diagnostics"]["first_difference"];
    }
    ++next;
    return difference.is_object() ? difference["path"].get<std::string>() : "none";
  };
  const auto result = [](const char* id, const std::string& text) -> Json {
    return {{"type", "tool_result"}, {"tool_use_id", id}, {"content", text}};
  };
  const auto call = [](const char* id) -> Json {
    return {{"type", "tool_use"}, {"id", id}, {"name", "look"}, {"input", Json::object()}};
  };
  const auto messages = [&](const std::string& system, const std::string& second, const std::string& last) -> Json {
    return {{"max_tokens", 2},
            {"system", system},
            {"messages",
             {{{"role", "user"}, {"content", "look twice"}},
              {{"role", "assistant"}, {"content", {call("a"), call("b")}}},
              {{"role", "user"}, {"content", {result("a", "one"), result("b", second)}}},
              {{"role", "assistant"}, {"content", "seen"}},
              {{"role", "user"}, {"content", last}}}}};
  };
  const Json asked = messages("Be kind.", "two", "and now");
  EXPECT_EQ(path("/v1/messages", asked, messages("Be terse.", "two", "and now")), "system");
  EXPECT_EQ(path("/v1/messages", asked, messages("Be kind.", "three", "and now")), "messages[2].content[1].content");
  EXPECT_EQ(path("/v1/messages", asked, messages("Be kind.", "two", "and then")), "messages[4].content");

  const auto responses = [](const std::string& rules, const std::string& said) -> Json {
    return {{"max_output_tokens", 2},
            {"instructions", rules},
            {"input", Json::array({{{"role", "user"}, {"content", said}}})}};
  };
  EXPECT_EQ(path("/v1/responses", responses("Be kind.", "one"), responses("Be terse.", "one")), "instructions");
  EXPECT_EQ(path("/v1/responses", responses("Be kind.", "one"), responses("Be kind.", "two")), "input[0].content");

  const auto documents = [](const char* order, const std::vector<std::string>& texts) -> Json {
    Json body{{"max_tokens", 2},
              {"messages", Json::array({{{"role", "user"}, {"content", "?"}}})},
              {"documents_order", order},
              {"documents", Json::array()}};
    for (const std::string& text : texts) body["documents"].push_back({{"text", text}});
    return body;
  };
  const std::vector<std::string> known = {"the first", "the second"}, more = {"a new one", "the first", "the second"};
  EXPECT_EQ(path("/v1/chat/completions", documents("any", known), documents("any", more)), "documents[0]");
  EXPECT_EQ(path("/v1/chat/completions", documents("given", more), documents("given", known)), "documents[0]")
      << "power: no order was chosen";
  const PartPlaces places{{2, 0, 1}, {1, 0}};
  EXPECT_EQ(places.in_own_order("documents[0]"), "documents[2]");
  EXPECT_EQ(places.in_own_order("tools[1]"), "tools[0]");
  for (const char* same : {"documents[3]", "tools[2]", "messages[1].content", "template"})
    EXPECT_EQ(places.in_own_order(same), same);
  EXPECT_EQ(PartPlaces().in_own_order("documents[0]"), "documents[0]");
}

TEST(Diagnostics, AnotherTenantSeesNothing) {
  ServerOptions options;
  options.tenants = {{"a", {ApiKey::of("key-a", false)}}, {"b", {ApiKey::of("key-b", true)}}};
  LiveServer running({}, options);
  const httplib::Headers a{{"Authorization", "Bearer key-a"}}, b{{"Authorization", "Bearer key-b"}};
  const auto reply = running.post("/v1/chat/completions", chat("hi", ""), a);
  const std::string id = Json::parse(reply->body)["id"];
  EXPECT_EQ(running.client().Get("/v1/requests/" + id, a)->status, 200);
  EXPECT_EQ(running.client().Get("/v1/requests/" + id, b)->status, 404);
  EXPECT_EQ(running.client().Get("/v1/requests/" + id)->status, 401);
  EXPECT_EQ(Json::parse(running.client().Get("/v1/requests", b)->body)["data"].size(), 0u);
}

// A request that gets no place leaves the log as it was: its own, and everybody's.
TEST(Diagnostics, RefusedRequestsPushNobodyOut) {
  ServerOptions options;
  options.keep_requests = 3;
  options.tenants = {{.name = "a", .keys = {ApiKey::of("key-a", false)}, .max_requests = 1},
                     {.name = "b", .keys = {ApiKey::of("key-b", false)}}};
  LiveServer running({}, options);
  const httplib::Headers a{{"Authorization", "Bearer key-a"}}, b{{"Authorization", "Bearer key-b"}};
  const auto reply = running.post("/v1/chat/completions", chat("hi", ""), b);
  const std::string kept = "/v1/requests/" + Json::parse(reply->body)["id"].get<std::string>();
  running.engine->hold(true);
  std::thread first([&] { EXPECT_EQ(running.post("/v1/chat/completions", chat("hi", ""), a)->status, 200); });
  const auto listed = [&] { return Json::parse(running.client().Get("/v1/requests", a)->body)["data"].size(); };
  EXPECT_TRUE(eventually([&] { return listed() == 1; }));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(running.post("/v1/chat/completions", chat("hi", ""), a)->status, 429);
  EXPECT_EQ(listed(), 1u);
  EXPECT_EQ(running.client().Get(kept, b)->status, 200);
  running.engine->hold(false);
  first.join();
  for (int i = 0; i < 8; ++i) {  // one that has answered may still be counted
    EXPECT_TRUE(eventually([&] { return running.post("/v1/chat/completions", chat("hi", ""), a)->status == 200; }));
  }
  EXPECT_EQ(listed(), 2u) << "power: what is answered fills the log";
  EXPECT_EQ(running.client().Get(kept, b)->status, 200) << "and pushes out its own tenant's";
}

TEST(Progress, IsSaidBeforeTheFirstTokenOfAStream) {
  LiveServer running;
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
    const bool is_chat = std::string(path).ends_with("chat/completions");
    const std::string more = R"(, "stream": true, "return_progress": true)";
    const auto reply =
        running.post(path, is_chat ? chat("hello", more) : R"({"prompt": "hello", "max_tokens": 4)" + more + "}");
    auto all = events(reply->body);
    ASSERT_GE(all.size(), 2u) << reply->body;
    const Json progress = all[0]["prompt_progress"];
    ASSERT_TRUE(progress.is_object()) << reply->body;
    for (const char* field : {"total", "cache", "processed", "time_ms"}) EXPECT_TRUE(progress[field].is_number());
    size_t said = 0;
    for (const Json& event : all) said += event.contains("prompt_progress") ? 1 : 0;
    EXPECT_LT(said, all.size());
    for (size_t i = 0; i < said; ++i) EXPECT_TRUE(all[i].contains("prompt_progress")) << "before the tokens";
    EXPECT_EQ(all[said - 1]["prompt_progress"]["processed"], progress["total"]);
  }
  const auto whole = running.post("/v1/chat/completions", chat("hello", R"(, "return_progress": true)"));
  EXPECT_EQ(whole->status, 200);
  EXPECT_EQ(whole->body.find("prompt_progress"), std::string::npos);
  const auto quiet = running.post("/v1/chat/completions", chat("hello", R"(, "stream": true)"));
  EXPECT_EQ(quiet->body.find("prompt_progress"), std::string::npos) << "power";
}

}  // namespace
}  // namespace kvilt::server
