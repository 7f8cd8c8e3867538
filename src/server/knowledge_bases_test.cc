#include "server/knowledge_bases.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "server/knowledge_for_test.h"

namespace kvilt::server {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> ids(const KnowledgeBases& bases, const std::string& tenant, const std::string& name) {
  std::vector<std::string> out;
  const auto all = bases.documents(tenant, name);
  if (!all.ok()) return {"none"};
  for (const auto& one : all.value()) out.push_back(one->id);
  return out;
}

using Ids = std::vector<std::string>;

const auto any_room = [](size_t) { return true; };

TEST(KnowledgeBases, DocumentsComeAndGo) {
  const auto bases = opened_bases("");
  ASSERT_TRUE(bases->create("a", "rivers").ok());
  EXPECT_FALSE(bases->create("a", "rivers").ok());
  EXPECT_TRUE(bases->put("a", "rivers", {text_document("elbe", "1,094 km"), text_document("rhine", "1,233 km")}).ok());
  EXPECT_EQ(ids(*bases, "a", "rivers"), (Ids{"elbe", "rhine"}));
  EXPECT_TRUE(bases->put("a", "rivers", {text_document("elbe", "1094 km", "Elbe")}).ok());
  EXPECT_EQ(ids(*bases, "a", "rivers"), (Ids{"rhine", "elbe"})) << "it took its own place, and came last";
  EXPECT_EQ(bases->find("a", "rivers", "elbe").value()->text, "1094 km");
  EXPECT_EQ(bases->info("a", "rivers")->bytes, 4u + 4 + 7 + 5 + 8);
  EXPECT_TRUE(bases->remove("a", "rivers", "elbe").ok());
  EXPECT_EQ(bases->remove("a", "rivers", "elbe").error().code, Code::kNotFound);
  EXPECT_EQ(bases->info("a", "rivers")->bytes, 5u + 8);
  EXPECT_TRUE(bases->erase("a", "rivers").ok());
  EXPECT_EQ(bases->put("a", "rivers", {text_document("x", "y")}).error().code, Code::kNotFound);
}

TEST(KnowledgeBases, TenantsHaveTheirOwn) {
  const auto bases = opened_bases("");
  ASSERT_TRUE(bases->create("a", "rivers").ok());
  ASSERT_TRUE(bases->put("a", "rivers", {text_document("elbe", "1,094 km")}).ok());
  EXPECT_TRUE(bases->list("b").empty());
  EXPECT_EQ(bases->find("b", "rivers", "elbe").error().code, Code::kNotFound);
  EXPECT_EQ(bases->erase("b", "rivers").error().code, Code::kNotFound);
  Json body = {{"documents", {{{"knowledge_base", "rivers"}, {"id", "elbe"}}}}};
  EXPECT_EQ(bases->fill("b", body, any_room).error().code, Code::kNotFound);
  EXPECT_TRUE(bases->fill("a", body, any_room).ok()) << "power";
  EXPECT_TRUE(bases->create("b", "rivers").ok()) << "names are each tenant's own";
}

TEST(KnowledgeBases, SharesAreBounded) {
  const auto bases = opened_bases("", {.bases = 1, .documents = 2, .bytes = 30});
  ASSERT_TRUE(bases->create("a", "x").ok());
  EXPECT_EQ(bases->create("a", "y").error().code, Code::kOverLimit);
  EXPECT_TRUE(bases->create("b", "y").ok());
  EXPECT_EQ(bases->put("a", "x", {text_document("1", std::string(30, 't'))}).error().code, Code::kOverLimit);
  EXPECT_EQ(
      bases->put("a", "x", {text_document("1", "t"), text_document("2", "t"), text_document("3", "t")}).error().code,
      Code::kOverLimit);
  EXPECT_TRUE(ids(*bases, "a", "x").empty()) << "all or none";
  EXPECT_TRUE(bases->put("a", "x", {text_document("1", "t"), text_document("2", "t")}).ok()) << "power";
}

// A document that takes another's place needs what it has more than that one.
TEST(KnowledgeBases, ASuccessorCountsAsTheDifference) {
  const auto bases = opened_bases("", {.bases = 1, .documents = 2, .bytes = 30});
  ASSERT_TRUE(bases->create("a", "x").ok());
  ASSERT_TRUE(
      bases->put("a", "x", {text_document("1", std::string(14, 't')), text_document("2", std::string(14, 't'))}).ok());
  EXPECT_TRUE(
      bases->put("a", "x", {text_document("1", std::string(14, 'u')), text_document("2", std::string(14, 'u'))}).ok());
  EXPECT_EQ(bases->info("a", "x")->bytes, 30u);
  EXPECT_EQ(bases->put("a", "x", {text_document("1", std::string(15, 'v'))}).error().code, Code::kOverLimit);
  EXPECT_EQ(bases->put("a", "x", {text_document("3", "")}).error().code, Code::kOverLimit) << "power: this one is new";
  EXPECT_TRUE(bases->put("a", "x", {text_document("1", "short"), text_document("1", std::string(14, 'w'))}).ok())
      << "the last of one id stays, and it alone counts";
  EXPECT_EQ(bases->find("a", "x", "1").value()->text, std::string(14, 'w'));
  EXPECT_EQ(bases->info("a", "x")->bytes, 30u);
}

// All tenants have a total; what is refused there tells nothing of how much others have.
TEST(KnowledgeBases, AllTenantsTogetherAreBounded) {
  const auto bases = opened_bases("", {.bytes = 30, .all_bytes = 50});
  for (const char* tenant : {"a", "b"}) ASSERT_TRUE(bases->create(tenant, "x").ok());
  ASSERT_TRUE(bases->put("a", "x", {text_document("1", std::string(29, 't'))}).ok());
  ASSERT_TRUE(bases->put("b", "x", {text_document("1", std::string(15, 't'))}).ok());
  const Status full = bases->put("b", "x", {text_document("2", "tttt")});
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, Code::kOverLimit);
  EXPECT_NE(full.error().message.find("50 bytes"), std::string::npos);
  EXPECT_NE(full.error().message.find("--knowledge-total-bytes"), std::string::npos);
  EXPECT_EQ(full.error().message.find("4 of"), std::string::npos);
  EXPECT_TRUE(bases->put("b", "x", {text_document("1", std::string(19, 't'))}).ok()) << "the difference counts";
  EXPECT_TRUE(bases->put("a", "x", {text_document("1", std::string(10, 't'))}).ok());
  EXPECT_TRUE(bases->put("b", "x", {text_document("2", std::string(9, 't'))}).ok()) << "room that another gave up";
  EXPECT_TRUE(bases->erase("b", "x").ok());
  ASSERT_TRUE(bases->create("a", "y").ok());
  EXPECT_TRUE(bases->put("a", "y", {text_document("2", std::string(18, 't'))}).ok()) << "nothing is left reserved";
}

TEST(KnowledgeBases, NamesAreNoPaths) {
  const auto bases = opened_bases("");
  for (const char* name : {"", "../x", "a/b", "a b", "a\n", "\xff"})
    EXPECT_FALSE(bases->create("a", name).ok()) << name;
  EXPECT_FALSE(bases->create("a", std::string(65, 'x')).ok());
  EXPECT_TRUE(bases->create("a", "..").ok()) << "no path is made of it";
}

TEST(KnowledgeBases, AChatNamesThem) {
  const auto bases = opened_bases("");
  ASSERT_TRUE(bases->create("a", "rivers").ok());
  ASSERT_TRUE(
      bases->put("a", "rivers", {text_document("elbe", "1,094 km", "Elbe"), text_document("rhine", "1,233 km")}).ok());
  Json body = Json::parse(R"({"documents": [{"text": "own"}, {"knowledge_base": "rivers", "id": "rhine"},
                                            {"knowledge_base": "rivers"}]})");
  const auto named = bases->fill("a", body, any_room);
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(body["documents"], Json::parse(R"([{"text": "own"}, {"text": "1,233 km"},
                                              {"text": "1,094 km", "title": "Elbe"}, {"text": "1,233 km"}])"));
  EXPECT_EQ(bases->info("a", "rivers")->hits, 0u) << "nothing was asked yet";
  count_hits(*named);
  EXPECT_EQ(bases->info("a", "rivers")->hits, 2u) << "one request, that names one of them twice";
  ASSERT_EQ(named->size(), 4u) << "one for each entry";
  EXPECT_EQ((*named)[0].document, nullptr) << "the client's own";
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ((*named)[i].base, "rivers");
  EXPECT_EQ((*named)[2].document->id, "elbe");
  EXPECT_EQ((*named)[3].document->id, "rhine");
  for (const char* wrong : {R"([{"knowledge_base": 1}])", R"([{"knowledge_base": "rivers", "id": 2}])",
                            R"([{"knowledge_base": "rivers", "id": "elbe", "text": "mine"}])",
                            R"([{"knowledge_base": "lakes"}])", R"([{"knowledge_base": "rivers", "id": "nile"}])"}) {
    Json bad = {{"documents", Json::parse(wrong)}};
    const auto filled = bases->fill("a", bad, any_room);
    ASSERT_FALSE(filled.ok()) << wrong;
    EXPECT_TRUE(filled.error().message.starts_with("documents[0]")) << filled.error().message;
  }
  Json none = Json::parse(R"({"documents": [{"text": "own"}]})"), same = none;
  EXPECT_TRUE(bases->fill("a", none, any_room)->empty());
  EXPECT_EQ(none, same);
}

TEST(KnowledgeBases, WhatOneChatNamesIsBounded) {
  const auto bases = opened_bases("", {.asked_bytes = 100});
  ASSERT_TRUE(bases->create("a", "x").ok());
  ASSERT_TRUE(
      bases->put("a", "x", {text_document("1", std::string(60, 't')), text_document("2", std::string(60, 't'))}).ok());
  Json body = {{"documents", {{{"knowledge_base", "x"}}}}};
  EXPECT_EQ(bases->fill("a", body, any_room).error().code, Code::kTooLong);
  Json one = {{"documents", {{{"knowledge_base", "x"}, {"id", "1"}}}}};
  EXPECT_TRUE(bases->fill("a", one, any_room).ok()) << "power";
}

TEST(KnowledgeBases, RoomIsAskedForBeforeTextsAreCopied) {
  const auto bases = opened_bases("");
  ASSERT_TRUE(bases->create("a", "x").ok());
  ASSERT_TRUE(
      bases->put("a", "x", {text_document("1", std::string(60, 't')), text_document("2", std::string(80, 't'))}).ok());
  const Json asked = Json::parse(R"({"documents": [{"knowledge_base": "x"}, {"knowledge_base": "x", "id": "2"}]})");
  Json body = asked;
  std::vector<size_t> bytes;
  const auto no_room = [&](size_t all) {
    bytes.push_back(all);
    return false;
  };
  const auto refused = bases->fill("a", body, no_room);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kUnavailable);
  EXPECT_EQ(bytes, (std::vector<size_t>{61 + 81 + 81}));
  EXPECT_EQ(body, asked);
  EXPECT_EQ(bases->info("a", "x")->hits, 0u);
  Json own = Json::parse(R"({"documents": [{"text": "own"}]})");
  EXPECT_TRUE(bases->fill("a", own, no_room).ok()) << "nobody is asked about what was sent";
  EXPECT_TRUE(bases->fill("a", body, any_room).ok()) << "power";
  EXPECT_EQ(body["documents"].size(), 3u);
}

TEST(KnowledgeBases, SurviveARestart) {
  const KnowledgeFolder folder;
  {
    const auto bases = opened_bases(folder.path());
    ASSERT_TRUE(bases->create("a", "rivers").ok());
    ASSERT_TRUE(bases->create("b", "rivers").ok());
    ASSERT_TRUE(bases->create("a", "lakes").ok());
    ASSERT_TRUE(
        bases->put("a", "rivers", {text_document("elbe", "line\nend \"quoted\"", "Elbe"), text_document("po", "x")})
            .ok());
    ASSERT_TRUE(bases->remove("a", "rivers", "po").ok());
    ASSERT_TRUE(bases->put("a", "rivers", {text_document("oder", "x")}).ok());
    ASSERT_TRUE(bases->erase("a", "lakes").ok());
  }
  const auto bases = opened_bases(folder.path());
  EXPECT_EQ(ids(*bases, "a", "rivers"), (Ids{"elbe", "oder"}));
  EXPECT_EQ(bases->find("a", "rivers", "elbe").value()->text, "line\nend \"quoted\"");
  EXPECT_EQ(bases->find("a", "rivers", "elbe").value()->tokens, 3);
  EXPECT_TRUE(ids(*bases, "b", "rivers").empty());
  EXPECT_EQ(bases->list("a").size(), 1u);
}

// Who still works with a document knows that it is no longer there.
TEST(KnowledgeBases, WhatLeavesIsWithdrawn) {
  const auto bases = opened_bases("");
  ASSERT_TRUE(bases->create("a", "x").ok());
  const auto replaced = text_document("1", "one"), removed = text_document("2", "two"),
             last = text_document("3", "three"), anew = text_document("1", "other");
  ASSERT_TRUE(bases->put("a", "x", {replaced, removed, last}).ok());
  ASSERT_TRUE(bases->put("a", "x", {text_document("3", "three")}).ok());
  EXPECT_FALSE(*replaced->withdrawn || *removed->withdrawn || *last->withdrawn) << "the same text changes nothing";
  ASSERT_TRUE(bases->put("a", "x", {anew}).ok());
  EXPECT_TRUE(*replaced->withdrawn);
  ASSERT_TRUE(bases->remove("a", "x", "2").ok());
  EXPECT_TRUE(*removed->withdrawn);
  EXPECT_FALSE(*anew->withdrawn || *last->withdrawn);
  ASSERT_TRUE(bases->erase("a", "x").ok());
  EXPECT_TRUE(*anew->withdrawn && *last->withdrawn);
}

TEST(KnowledgeBases, AnEqualDocumentIsNotWritten) {
  const KnowledgeFolder folder;
  const auto bases = opened_bases(folder.path());
  ASSERT_TRUE(bases->create("a", "x").ok());
  ASSERT_TRUE(bases->put("a", "x", {text_document("1", "one", "title"), text_document("2", "two")}).ok());
  Json chat = {{"documents", {{{"knowledge_base", "x"}, {"id", "1"}}}}};
  const auto named = bases->fill("a", chat, any_room);
  ASSERT_TRUE(named.ok());
  count_hits(*named);
  const auto size = [&] { return fs::file_size(folder.only_file()); };
  const auto before = size();
  EXPECT_TRUE(bases->put("a", "x", {text_document("1", "one", "title")}).ok());
  EXPECT_EQ(size(), before);
  EXPECT_EQ(ids(*bases, "a", "x"), (Ids{"1", "2"})) << "as it is on disk";
  EXPECT_EQ(bases->find("a", "x", "1").value()->hits, 1u);
  EXPECT_TRUE(bases->put("a", "x", {text_document("1", "one", "title"), text_document("3", "three")}).ok());
  const auto grown = size();
  EXPECT_GT(grown, before);
  EXPECT_LT(grown, before + 2 * (before / 3)) << "one line, of three of about a length";
  for (const auto& other : {text_document("1", "one", "other title"), text_document("1", "eins", "other title")}) {
    const auto was = size();
    EXPECT_TRUE(bases->put("a", "x", {other}).ok());
    EXPECT_GT(size(), was) << "power";
  }
  EXPECT_EQ(ids(*bases, "a", "x"), (Ids{"2", "3", "1"}));
}

// Fills a base with documents that others took the place of, or that were removed.
void change_often(KnowledgeBases& bases, int times) {
  for (int i = 0; i < times; ++i)
    EXPECT_TRUE(bases.put("a", "x", {text_document("1", std::to_string(i) + std::string(20'000, 't'))}).ok());
  EXPECT_TRUE(
      bases.put("a", "x", {text_document("2", "two"), text_document("0", "zero"), text_document("gone", "x")}).ok());
  EXPECT_TRUE(bases.remove("a", "x", "gone").ok());
}

TEST(KnowledgeBases, WhatIsMostlyVoidIsWrittenAnew) {
  const KnowledgeFolder folder;
  const auto size = [&] { return fs::file_size(folder.only_file()); };
  const auto last = std::to_string(9) + std::string(20'000, 't');
  {
    const auto bases = opened_bases(folder.path());
    ASSERT_TRUE(bases->create("a", "x").ok());
    change_often(*bases, 10);
    EXPECT_GT(size(), 200'000u);
  }
  for (int start = 0; start < 3; ++start) {
    std::ofstream(folder.only_file() + ".new") << "what a crash left aside";
    const auto bases = opened_bases(folder.path());
    EXPECT_LT(size(), 22'000u) << start;
    EXPECT_FALSE(fs::exists(folder.only_file() + ".new"));
    EXPECT_EQ(bases->find("a", "x", "1").value()->text, last);
    Ids expected{"1", "2", "0"};
    for (int i = 0; i < start; ++i) expected.push_back("more" + std::to_string(i));
    EXPECT_EQ(ids(*bases, "a", "x"), expected);
    EXPECT_TRUE(bases->put("a", "x", {text_document("more" + std::to_string(start), "m")}).ok()) << "and it goes on";
  }
}

TEST(KnowledgeBases, WhatIsMostlyAliveStays) {
  const KnowledgeFolder folder;
  {
    const auto bases = opened_bases(folder.path());
    ASSERT_TRUE(bases->create("a", "x").ok());
    change_often(*bases, 5);
    ASSERT_TRUE(bases->put("a", "x", {text_document("alive", std::string(150'000, 't'))}).ok());
  }
  const auto before = fs::file_size(folder.only_file());
  (void)opened_bases(folder.path());
  EXPECT_EQ(fs::file_size(folder.only_file()), before);
}

// A disk without room for a second file: the first one goes on.
TEST(KnowledgeBases, WithoutRoomTheOldFileGoesOn) {
  const KnowledgeFolder folder;
  {
    const auto bases = opened_bases(folder.path());
    ASSERT_TRUE(bases->create("a", "x").ok());
    change_often(*bases, 10);
  }
  const auto before = fs::file_size(folder.only_file());
  rlimit all;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &all), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {4096, all.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  auto bases = opened_bases(folder.path());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &all), 0);
  EXPECT_EQ(fs::file_size(folder.only_file()), before);
  EXPECT_FALSE(fs::exists(folder.only_file() + ".new"));
  EXPECT_EQ(ids(*bases, "a", "x"), (Ids{"1", "2", "0"}));
  EXPECT_TRUE(bases->put("a", "x", {text_document("3", "three")}).ok());
  bases.reset();
  EXPECT_EQ(ids(*opened_bases(folder.path()), "a", "x"), (Ids{"1", "2", "0", "3"}));
  EXPECT_LT(fs::file_size(folder.only_file()), before) << "power: with room it was written anew";
}

TEST(KnowledgeBases, OneProcessAFolder) {
  const KnowledgeFolder folder;
  const auto bases = opened_bases(folder.path());
  const auto second = KnowledgeBases::open(folder.path());
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("another process"), std::string::npos);
}

// A crash at any byte of the last line: the lines before it are there, and the next one is written whole.
TEST(KnowledgeBases, ACrashLosesTheLineThatWasWritten) {
  const KnowledgeFolder folder;
  {
    const auto bases = opened_bases(folder.path());
    ASSERT_TRUE(bases->create("a", "x").ok());
    ASSERT_TRUE(bases->put("a", "x", {text_document("1", "one")}).ok());
    ASSERT_TRUE(bases->put("a", "x", {text_document("2", "two")}).ok());
  }
  const std::string file = folder.only_file();
  std::string whole;
  std::getline(std::ifstream(file), whole, '\0');
  const size_t last = whole.rfind('\n', whole.size() - 2) + 1;
  for (size_t size = last; size < whole.size(); ++size) {
    std::ofstream(file, std::ios::trunc) << whole.substr(0, size);
    const auto bases = opened_bases(folder.path());
    ASSERT_EQ(ids(*bases, "a", "x"), (Ids{"1"})) << size;
    ASSERT_TRUE(bases->put("a", "x", {text_document("3", "three")}).ok());
  }
  EXPECT_EQ(ids(*opened_bases(folder.path()), "a", "x"), (Ids{"1", "3"})) << "power";
}

// A crash at any byte of the first line: the base was not acknowledged, and is not there; its name is free.
TEST(KnowledgeBases, ACrashWhileABaseIsMadeLeavesNothing) {
  const KnowledgeFolder folder;
  ASSERT_TRUE(opened_bases(folder.path())->create("a", "x").ok());
  const std::string file = folder.only_file();
  std::string whole;
  std::getline(std::ifstream(file), whole, '\0');
  ASSERT_EQ(whole.back(), '\n');
  for (size_t size = 0; size < whole.size(); ++size) {
    std::ofstream(file, std::ios::trunc) << whole.substr(0, size);
    const auto bases = opened_bases(folder.path());
    ASSERT_NE(bases, nullptr) << size;
    ASSERT_TRUE(bases->list("a").empty()) << size;
    ASSERT_EQ(folder.only_file(), "") << size;
  }
  const auto bases = opened_bases(folder.path());
  EXPECT_TRUE(bases->create("a", "x").ok());
  EXPECT_EQ(folder.only_file(), file) << "power";
}

TEST(KnowledgeBases, DamageIsNamed) {
  const KnowledgeFolder folder;
  {
    const auto bases = opened_bases(folder.path());
    ASSERT_TRUE(bases->create("a", "x").ok());
    ASSERT_TRUE(bases->put("a", "x", {text_document("1", "one")}).ok());
  }
  const std::string file = folder.only_file();
  std::string whole;
  std::getline(std::ifstream(file), whole, '\0');
  for (const std::string& bad :
       {std::string("{\"formal"), std::string("no end"), std::string("{}\n"), std::string("not JSON\n"),
        whole + "{\"put\": 3}\n", whole + "[]\n", whole + "{\"put\": {\"id\": 1}}\n",
        std::string(R"({"format":"kvilt knowledge base","version":99})") + "\n"}) {
    std::ofstream(file, std::ios::trunc) << bad;
    const auto out = KnowledgeBases::open(folder.path());
    ASSERT_FALSE(out.ok()) << bad;
    EXPECT_NE(out.error().message.find(file), std::string::npos) << out.error().message;
  }
  std::ofstream(file, std::ios::trunc) << whole;
  EXPECT_EQ(ids(*opened_bases(folder.path()), "a", "x"), (Ids{"1"})) << "power";
}

TEST(KnowledgeBases, ACopyInTheFolderIsNamed) {
  const KnowledgeFolder folder;
  ASSERT_TRUE(opened_bases(folder.path())->create("a", "rivers").ok());
  const std::string file = folder.only_file(), copy = folder.path() + "/copy.knowledge";
  fs::copy_file(file, copy);
  const auto out = KnowledgeBases::open(folder.path());
  ASSERT_FALSE(out.ok());
  for (const std::string& part : {file, copy, std::string("'rivers' of tenant 'a'"), std::string("move one of them")})
    EXPECT_NE(out.error().message.find(part), std::string::npos) << out.error().message;
}

// The message says how to keep what is before the damage.
TEST(KnowledgeBases, WhatIsBeforeDamageCanBeKept) {
  const KnowledgeFolder folder;
  {
    const auto bases = opened_bases(folder.path());
    ASSERT_TRUE(bases->create("a", "x").ok());
    ASSERT_TRUE(bases->put("a", "x", {text_document("1", "one")}).ok());
  }
  const std::string file = folder.only_file();
  const auto whole = fs::file_size(file);
  std::ofstream(file, std::ios::app) << std::string(40, '\0') << "\n{\"put\": {}}\n";
  const auto out = KnowledgeBases::open(folder.path());
  ASSERT_FALSE(out.ok());
  const std::string size = std::to_string(whole), command = "truncate -s " + size + " " + file;
  EXPECT_NE(out.error().message.find(file + ":3: "), std::string::npos) << out.error().message;
  EXPECT_NE(out.error().message.find(command), std::string::npos) << out.error().message;
  fs::resize_file(file, whole);  // as it says
  EXPECT_EQ(ids(*opened_bases(folder.path()), "a", "x"), (Ids{"1"}));
}

// A reader by recursion would end the process with its stack.
TEST(KnowledgeBases, DeeplyNestedLinesAreDamage) {
  const KnowledgeFolder folder;
  ASSERT_TRUE(opened_bases(folder.path())->create("a", "x").ok());
  const std::string file = folder.only_file(), head = folder.bytes();
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  for (const std::string& bad :
       {std::string(100'000, '[') + "\n", R"({"format":"kvilt knowledge base","version":)" + deep + "}\n",
        head + "{\"put\":" + deep + "}\n", head + "{\"void\":[" + deep + "]}\n"}) {
    std::ofstream(file, std::ios::trunc) << bad;
    const auto out = KnowledgeBases::open(folder.path());
    ASSERT_FALSE(out.ok());
    EXPECT_NE(out.error().message.find(file), std::string::npos) << out.error().message;
    EXPECT_NE(out.error().message.find("nested deeper than 8 levels"), std::string::npos) << out.error().message;
  }
}

// A disk that works on one tenant's change until it is let go, though not for ever.
class HeldSync {
 public:
  KnowledgeJournal::Sync hook() {
    return [this](int file) {
      if (armed.exchange(false)) {
        std::unique_lock lock(mutex_);
        inside = true;
        changed_.notify_all();
        changed_.wait_for(lock, std::chrono::seconds(20), [&] { return free_; });
        inside = false;
      }
      return ::fdatasync(file);
    };
  }
  void wait_until_inside() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return inside.load(); });
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    free_ = true;
    changed_.notify_all();
  }
  std::atomic<bool> armed{false}, inside{false};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool free_ = false;
};

TEST(KnowledgeBases, ASlowDiskHoldsNobodyElse) {
  const KnowledgeFolder folder;
  HeldSync sync;
  auto opening = KnowledgeBases::open(folder.path(), {}, {.sync = sync.hook()});
  ASSERT_TRUE(opening.ok());
  KnowledgeBases& bases = *opening.value();
  ASSERT_TRUE(bases.create("a", "x").ok() && bases.create("b", "x").ok());
  ASSERT_TRUE(bases.put("a", "x", {text_document("1", "one")}).ok());
  sync.armed = true;
  Status slow;
  std::thread writer([&] { slow = bases.put("a", "x", {text_document("2", "two")}); });
  sync.wait_until_inside();
  EXPECT_TRUE(bases.put("b", "x", {text_document("1", "one")}).ok());
  EXPECT_TRUE(bases.create("b", "y").ok());
  EXPECT_TRUE(bases.remove("b", "x", "1").ok());
  EXPECT_TRUE(bases.erase("b", "y").ok());
  EXPECT_EQ(ids(bases, "a", "x"), (Ids{"1"})) << "it is not on disk, so it is not there";
  EXPECT_EQ(bases.list("a").size(), 1u);
  Json chat = {{"documents", {{{"knowledge_base", "x"}}}}};
  EXPECT_TRUE(bases.fill("a", chat, any_room).ok());
  EXPECT_TRUE(sync.inside) << "all of this went on beside it";
  sync.let_go();
  writer.join();
  EXPECT_TRUE(slow.ok());
  EXPECT_EQ(ids(bases, "a", "x"), (Ids{"1", "2"}));
}

// What one tenant's change is about to add counts for the others while a disk works on it, and no longer if it fails.
TEST(KnowledgeBases, WhatIsBeingWrittenCounts) {
  const KnowledgeFolder folder;
  HeldSync sync;
  auto opening = KnowledgeBases::open(folder.path(), {.all_bytes = 20}, {.sync = sync.hook()});
  ASSERT_TRUE(opening.ok());
  KnowledgeBases& bases = *opening.value();
  ASSERT_TRUE(bases.create("a", "x").ok() && bases.create("b", "x").ok());
  sync.armed = true;
  Status slow;
  std::thread writer([&] { slow = bases.put("a", "x", {text_document("1", std::string(14, 't'))}); });
  sync.wait_until_inside();
  const Status refused = bases.put("b", "x", {text_document("1", "tttttt")});
  EXPECT_TRUE(bases.put("b", "x", {text_document("1", "tttt")}).ok()) << "power";
  EXPECT_TRUE(sync.inside) << "all of this went on beside it";
  sync.let_go();
  writer.join();
  EXPECT_TRUE(slow.ok());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kOverLimit);
  EXPECT_TRUE(bases.remove("a", "x", "1").ok());
  EXPECT_TRUE(bases.put("b", "x", {text_document("2", std::string(14, 't'))}).ok()) << "it is given back";
}

// A full disk, as a limit of the file's size: the change is refused, what was there stays, and goes on.
TEST(KnowledgeBases, AFullDiskChangesNothing) {
  const KnowledgeFolder folder;
  auto bases = opened_bases(folder.path());
  ASSERT_TRUE(bases->create("a", "x").ok());
  ASSERT_TRUE(bases->put("a", "x", {text_document("1", "one")}).ok());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {4096, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status full = bases->put("a", "x", {text_document("2", std::string(10'000, 't'))});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, Code::kIo);
  EXPECT_EQ(ids(*bases, "a", "x"), (Ids{"1"}));
  EXPECT_TRUE(bases->put("a", "x", {text_document("3", "three")}).ok());
  bases.reset();
  EXPECT_EQ(ids(*opened_bases(folder.path()), "a", "x"), (Ids{"1", "3"}));
}

}  // namespace
}  // namespace kvilt::server
