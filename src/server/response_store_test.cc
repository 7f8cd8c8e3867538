#include "server/response_store.h"

#include <gtest/gtest.h>

namespace kvilt::server {
namespace {

StoredResponse response(const std::string& id, const std::string& previous = "", size_t bytes = 10) {
  return {id, previous, std::string(bytes, 'r'), "[]"};
}

std::vector<std::string> ids_of(const Result<ResponseStore::Thread>& thread) {
  std::vector<std::string> ids;
  if (thread.ok()) {
    for (const auto& one : thread.value()) ids.push_back(one->id);
  }
  return ids;
}

TEST(ResponseStore, AThreadIsFoundOldestFirst) {
  ResponseStore store;
  store.add("a", response("1"));
  store.add("a", response("2", "1"));
  store.add("a", response("3", "2"));
  store.add("a", response("other", "1"));
  EXPECT_EQ(ids_of(store.thread("a", "3")), (std::vector<std::string>{"1", "2", "3"}));
  EXPECT_TRUE(store.erase("a", "2"));
  EXPECT_FALSE(store.erase("a", "2"));
  const auto broken = store.thread("a", "3");
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().code, Code::kNotFound);
  EXPECT_NE(broken.error().message.find("'2'"), std::string::npos) << "names the one that is gone";
  EXPECT_EQ(ids_of(store.thread("a", "other")), (std::vector<std::string>{"1", "other"})) << "power";
}

TEST(ResponseStore, TenantsFindTheirOwnAlone) {
  ResponseStore store;
  store.add("a", response("1"));
  EXPECT_FALSE(store.find("b", "1"));
  EXPECT_FALSE(store.thread("b", "1").ok());
  EXPECT_FALSE(store.erase("b", "1"));
  EXPECT_TRUE(store.find("a", "1")) << "power";
}

TEST(ResponseStore, WhatWasUnusedLongestLeavesFirst) {
  ResponseStore store({.responses = 3});
  for (const char* id : {"1", "2", "3"}) store.add("a", response(id));
  EXPECT_TRUE(store.find("a", "1"));
  store.add("a", response("4", "3"));
  EXPECT_TRUE(store.find("a", "1"));
  EXPECT_FALSE(store.find("a", "2"));
  EXPECT_TRUE(store.thread("a", "4").ok()) << "which uses 3 too";
  store.add("a", response("5"));
  EXPECT_TRUE(store.find("a", "3"));
  EXPECT_FALSE(store.find("a", "1"));
  store.add("b", response("1"));
  EXPECT_TRUE(store.find("a", "5")) << "each tenant has a shelf of its own";
}

TEST(ResponseStore, BytesAndAgeAreBounded) {
  ResponseStore store({.bytes = 4000, .age = std::chrono::seconds(100)});
  const auto now = ResponseStore::Clock::now();
  for (int i = 0; i < 20; ++i) store.add("a", response(std::to_string(i), "", 700), now);
  EXPECT_LE(store.bytes("a"), 4000u);
  EXPECT_GT(store.bytes("a"), 2000u);
  EXPECT_TRUE(store.find("a", "19", now));
  EXPECT_FALSE(store.find("a", "0", now));
  EXPECT_FALSE(store.fits(5000));
  store.add("a", response("huge", "", 5000), now);
  EXPECT_FALSE(store.find("a", "huge", now));
  EXPECT_TRUE(store.find("a", "19", now + std::chrono::seconds(99)));
  EXPECT_TRUE(store.find("a", "19", now + std::chrono::seconds(150))) << "it was used meanwhile";
  EXPECT_FALSE(store.find("a", "18", now + std::chrono::seconds(150)));
  EXPECT_FALSE(store.find("a", "19", now + std::chrono::seconds(300)));
  EXPECT_EQ(store.bytes("a"), 0u);
}

TEST(ResponseStore, WhatATenantLeftForGoodLeavesToo) {
  ResponseStore store({.age = std::chrono::seconds(100)});
  const auto now = ResponseStore::Clock::now();
  store.add("gone", response("1"), now);
  store.add("here", response("1"), now);
  EXPECT_FALSE(store.find("here", "2", now + std::chrono::seconds(99)));
  EXPECT_GT(store.bytes("gone"), 0u) << "power";
  EXPECT_FALSE(store.find("here", "2", now + std::chrono::seconds(101)));
  EXPECT_EQ(store.bytes("gone"), 0u);
}

TEST(ResponseStore, AllTenantsTogetherAreBounded) {
  EXPECT_EQ(StoreLimits{.bytes = 3}.all_bytes, 12u);
  ResponseStore store({.bytes = 4000, .all_bytes = 10000});
  store.add("least", response("1"));
  const auto tenant = [](int i) { return "t" + std::to_string(i % 20); };
  for (int i = 0; i < 200; ++i) {
    store.add(tenant(i), response(std::to_string(i), "", 700));
    EXPECT_TRUE(store.find(tenant(i), std::to_string(i))) << "not what came last";
    size_t all = store.bytes("least");
    for (int other = 0; other < 20; ++other) all += store.bytes(tenant(other));
    EXPECT_LE(all, 10000u);
  }
  EXPECT_TRUE(store.find("least", "1")) << "who has the most gives way";
  store.add("large", response("1", "", 3500));
  EXPECT_TRUE(store.find("large", "1")) << "though not with what came last";
  EXPECT_TRUE(store.find("least", "1"));
}

}  // namespace
}  // namespace kvilt::server
