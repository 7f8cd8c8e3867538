// A change of a knowledge base for which memory ends behind its sync: it is on disk, so it is there.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <utility>

#include "server/knowledge_for_test.h"

namespace {
thread_local bool memory_is_out = false;
}  // namespace

// Not inlined: the compiler takes one that is, beside one that is not, for a mistake.
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* const out = memory_is_out ? nullptr : std::malloc(bytes);
  if (!out) throw std::bad_alloc();
  return out;
}
[[gnu::noinline]] void operator delete(void* at) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, size_t) noexcept { std::free(at); }

namespace kvilt::server {
namespace {

TEST(KnowledgeMemory, WhatIsOnDiskIsThere) {
  const KnowledgeFolder folder;
  bool armed = false, blanks_fail = false;
  const auto sync = [&](int file) {
    if (memory_is_out && blanks_fail) return -1;
    const int synced = ::fdatasync(file);
    memory_is_out = armed;
    return synced;
  };
  auto opening = KnowledgeBases::open(folder.path(), {}, {.sync = sync});
  ASSERT_TRUE(opening.ok());
  KnowledgeBases& bases = *opening.value();
  ASSERT_TRUE(bases.create("a", "x").ok() && bases.put("a", "x", {text_document("p", "first text")}).ok());
  const auto changed = [&](const auto& change) {
    bool ok = false;
    armed = true;
    try {
      ok = change().ok();
    } catch (const std::bad_alloc&) {
      ok = false;
    }
    const bool power = std::exchange(memory_is_out, false);
    armed = false;
    EXPECT_TRUE(power);
    return ok;
  };
  const std::string name = "a", base = "x", id = "a longer id than fits into a string itself";
  for (const bool fail : {false, true}) {
    blanks_fail = fail;
    const std::vector<KnowledgeDocumentPtr> documents = {text_document("p", "second text"), text_document(id, "third")};
    ASSERT_TRUE(changed([&] { return bases.put(name, base, documents); })) << fail;
    EXPECT_EQ(bases.find("a", "x", "p").value()->text, "second text");
    EXPECT_EQ(bases.info("a", "x")->documents, 2u);
    ASSERT_TRUE(changed([&] { return bases.remove(name, base, id); })) << fail;
    EXPECT_EQ(bases.info("a", "x")->documents, 1u);
    ASSERT_TRUE(bases.put("a", "x", {text_document("p", "first text")}).ok());
    EXPECT_EQ(folder.bytes().find("second text"), std::string::npos);
    EXPECT_EQ(folder.bytes().find("third"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvilt::server
