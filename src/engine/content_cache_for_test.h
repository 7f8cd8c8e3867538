// engine/content_cache_for_test.h: a content cache with small pages, and requests as far as the cache sees them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/content_cache.h"
#include "index/tokens_for_test.h"
#include "kv/rows_for_test.h"

namespace kvilt {

inline constexpr int kMinSegment = 8;
inline constexpr int64_t kBlock = 6;  // pages of 8 tokens: 3 layers, 2 heads

class ContentCacheTest : public testing::Test {
 protected:
  ContentCacheTest() { open(100); }

  void open(int64_t blocks) {
    cache.emplace(PageStore::create(kShape, blocks * kBlock * kShape.page_bytes()).value(), HashSecret::fixed(1),
                  "model", kMinSegment);
    domains = cache->domains({}, "mend");
    domains.chain = 0;  // the tests of chains turn it on
  }

  ContentCache::Found find(const Tokens& tokens, std::vector<TokenMark> marks = {}) {
    return cache->find(tokens, marks, domains, {true, true});
  }
  int32_t prefix(const Tokens& tokens, std::vector<TokenMark> marks = {}) {
    return find(tokens, std::move(marks)).layout.prefix;
  }
  Runs pieces(const Tokens& tokens, std::vector<TokenMark> marks = {}) {
    return find(tokens, std::move(marks)).layout.pieces;
  }

  // A request as far as the cache sees it: what was found is placed, the rest has slots of its own.
  struct Asked {
    Tokens tokens;
    std::vector<TokenMark> marks;
    PromptLayout layout;
    std::unique_ptr<PageTable> kv;
    ChainEnd exact = {}, chain = {};
    ContentCache::Published published = {};
    ContentCache::Own own(const ContentDomains& domains) const {
      return {*kv, layout, tokens, marks, domains, static_cast<int32_t>(tokens.size()), exact, chain};
    }
  };
  // also: positions of pieces that are computed again.
  Asked compute(Tokens tokens, std::vector<TokenMark> marks = {}, bool reuse = true, const Runs& also = {}) {
    ContentCache::Found found = cache->find(tokens, marks, domains, {reuse, reuse});
    auto kv = std::make_unique<PageTable>(cache->store(), rope);
    kv->give_to(cache->owner(tenant));
    for (Placement& placement : found.placements) kv->place(std::move(placement));
    for (Placement& placement : found.overlays) kv->overlay(std::move(placement));
    const std::vector<Runs> sets{unite(found.layout.fresh(), also)};
    const std::vector<uint16_t> write(kShape.L, 0);
    EXPECT_TRUE(cache->make_room(kv->pages_for(sets, write)));
    kv->add(sets, write);
    return {std::move(tokens), std::move(marks), found.layout, std::move(kv), found.exact, found.chain};
  }
  Asked ask(Tokens tokens, std::vector<TokenMark> marks = {}, bool reuse = true) {
    Asked asked = compute(std::move(tokens), std::move(marks), reuse);
    asked.published = cache->publish_prompt(asked.own(domains));
    return asked;
  }
  // Here every token of the answer has its KV.
  void answer(Asked& asked, const Tokens& said) {
    for (const int32_t id : said) {
      asked.kv->add_next(static_cast<int32_t>(asked.tokens.size()));
      asked.tokens.push_back(id);
    }
    cache->publish_answer(asked.own(domains), asked.published);
  }
  bool exact(SegmentId id) const { return cache->exact(id); }
  int64_t segments() const { return cache->segments().segments(); }

  const RopeConfig rope = small_rope();
  std::optional<ContentCache> cache;
  ContentDomains domains;
  std::string tenant;  // whose requests these are; domains are the test's affair
  const Tokens a = text(1, 20), b = text(2, 20), question = text(3, 12), more = text(4, 9);
};

}  // namespace kvilt
