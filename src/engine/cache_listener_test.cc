// What a listener hears of the whole cache, with eviction, answers, chains and clearing: always what can be found.
#include <random>

#include "engine/content_cache_for_test.h"
#include "index/mirror_for_test.h"

namespace kvilt {
namespace {

class CacheListenerTest : public ContentCacheTest {
 protected:
  void listen() { cache->listen(&mirror); }
  ~CacheListenerTest() override { cache->listen(nullptr); }

  // A prompt that begins like others, has a known part, and sometimes an answer.
  void request(std::mt19937& random) {
    Tokens tokens = text(static_cast<int>(random() % 3), static_cast<int>(20 + random() % 40));
    const Tokens middle = text(static_cast<int>(10 + random() % 4), 30);
    const auto first = static_cast<int32_t>(tokens.size());
    tokens.insert(tokens.end(), middle.begin(), middle.end());
    const Tokens tail = text(100 + static_cast<int>(random() % 1000), static_cast<int>(5 + random() % 30));
    tokens.insert(tokens.end(), tail.begin(), tail.end());
    Asked asked = ask(std::move(tokens), {{first, first + 30}});
    if (random() % 2 && cache->make_room(4 * kBlock)) answer(asked, text(2000 + static_cast<int>(random() % 1000), 17));
  }

  Mirror mirror;
};

TEST_F(CacheListenerTest, HearsWhatCanBeFoundWhateverIsEvicted) {
  open(60);
  listen();
  domains = cache->domains({}, "mend");
  std::mt19937 random(1);
  for (int i = 0; i < 400; ++i) {
    request(random);
    ASSERT_EQ(mirror.keys(), cache->block_keys()) << i;
    if (i % 150 == 149) cache->clear();
  }
  EXPECT_GT(cache->evicted(), 100) << "the test is about a full pool";
  EXPECT_FALSE(mirror.blocks.empty());
  EXPECT_FALSE(mirror.pieces.empty());
  EXPECT_EQ(mirror.clears, 2);
  EXPECT_EQ(mirror.unknown, 0);
  EXPECT_TRUE(mirror.open);
  cache->clear();
  EXPECT_TRUE(mirror.blocks.empty() && mirror.pieces.empty());
}

TEST_F(CacheListenerTest, ALateListenerHearsEverythingAgain) {
  open(200);
  std::mt19937 random(2);
  for (int i = 0; i < 30; ++i) request(random);
  EXPECT_FALSE(cache->block_keys().empty());
  EXPECT_TRUE(mirror.blocks.empty());
  listen();
  cache->tell_again();
  while (cache->tell_more()) request(random);
  EXPECT_EQ(mirror.keys(), cache->block_keys());
}

TEST_F(CacheListenerTest, ATenantsBlocksAreNotOpen) {
  listen();
  domains = cache->domains({.tenant = "a"});
  ask(join(a, question));
  EXPECT_FALSE(mirror.open);
  EXPECT_FALSE(mirror.blocks.empty());
}

}  // namespace
}  // namespace kvilt
