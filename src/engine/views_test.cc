// Namespaces: who finds what, and that one copy of the KV serves several of them.
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>

#include "engine/content_cache_for_test.h"

namespace kvilt {
namespace {

class ViewsTest : public ContentCacheTest {
 protected:
  struct Space {
    std::string tenant, salt;
    std::vector<std::string> names;
  };
  void in(const Space& space) {
    const auto domains_of = [&](const std::string& name) {
      ContentDomains out = cache->domains({space.tenant, name, space.salt}, "mend");
      out.chain = 0;
      return out;
    };
    domains = domains_of(space.names[0]);
    for (size_t i = 1; i < space.names.size(); ++i) domains.also.push_back(domains_of(space.names[i]));
  }
  // What progress.cc does: what was found elsewhere becomes views.
  Asked ask_in(const Space& space, Tokens tokens, std::vector<TokenMark> marks = {}, bool reuse = true) {
    in(space);
    const ContentCache::Found found = find(tokens, marks);
    const std::vector<Piece> elsewhere = reuse ? cache->elsewhere(found, domains) : std::vector<Piece>();
    Asked asked = compute(std::move(tokens), std::move(marks), reuse);
    ContentCache::Own own = asked.own(domains);
    own.elsewhere = elsewhere;
    asked.published = cache->publish_prompt(own);
    return asked;
  }
  const KvSegment* kv_of(const Space& space, const Tokens& tokens) {
    in(space);
    const auto found = find(tokens);
    return found.placements.empty() ? nullptr : found.placements[0].segment.get();
  }
  const Space just_a{"", "", {"a"}}, just_b{"", "", {"b"}}, both{"", "", {"a", "b"}};
};

TEST_F(ViewsTest, APrefixOfAnotherNamespaceIsFoundWhereItIsNamed) {
  ask_in(just_b, a);
  in(just_a);
  EXPECT_EQ(prefix(join(a, more)), 0);
  EXPECT_TRUE(pieces(join(question, a, more)).empty());
  in(both);
  EXPECT_EQ(prefix(join(a, more)), 20);
  EXPECT_EQ(pieces(join(question, a, more)), (Runs{{12, 32}}));
}

TEST_F(ViewsTest, OneCopyOfTheKvUnderTwoNames) {
  ask_in(just_b, a);
  const int64_t free = cache->store().free_pages(), tokens = cache->segments().tokens();
  ask_in(both, join(a, more));
  EXPECT_EQ(cache->store().free_pages(), free - 2 * kBlock) << "9 tokens of its own, in pages of 8";
  EXPECT_EQ(cache->segments().tokens(), tokens + 9) << "the view's are counted once";
  EXPECT_EQ(kv_of(just_a, join(a, question)), kv_of(just_b, join(a, question)));
  in(just_a);
  EXPECT_EQ(prefix(join(a, more, question)), 29) << "what was computed continues the view";
  in(just_b);
  EXPECT_EQ(prefix(join(a, more, question)), 20) << "what a request leaves goes to the first namespace only";

  ask_in(just_b, b, {}, false);
  ask_in(just_a, b, {}, false);
  EXPECT_NE(kv_of(just_a, join(b, question)), kv_of(just_b, join(b, question))) << "power check: two copies";
  EXPECT_EQ(kv_of(both, join(b, question)), kv_of(just_a, join(b, question))) << "the first that is named";
  EXPECT_EQ(kv_of({"", "", {"b", "a"}}, join(b, question)), kv_of(just_b, join(b, question)));
}

TEST_F(ViewsTest, AMarkedDocumentIsMadeVisibleUnderAnotherNamespace) {
  ask_in(just_b, join(question, a), {{12, 32}});
  const std::vector<TokenMark> there{{20, 40}};
  ask_in(both, join(b, a, more), there);
  in(just_a);
  const Tokens other = join(text(50, 5), a, text(51, 5));
  const auto found =
      cache->find(other, std::vector<TokenMark>{{5, 25}}, domains, {.prefix = true, .pieces = true, .unmarked = false});
  EXPECT_EQ(found.layout.pieces, (Runs{{5, 25}})) << "the mark came with it";
  EXPECT_NE(kv_of(just_a, other), nullptr);
  EXPECT_EQ(kv_of(just_a, other), kv_of(just_b, other));
  in({"", "", {"c"}});
  EXPECT_TRUE(pieces(other).empty()) << "power check";
}

TEST_F(ViewsTest, CleanCopiesStayClean) {
  const std::vector<TokenMark> mark{{12, 32}};
  ask_in(just_b, join(question, a), mark);
  ask_in(both, join(question, a, more), mark);
  const ContentCache::Wanted clean{.prefix = false, .clean_only = true};
  in(just_a);
  EXPECT_EQ(cache->find(join(question, a, b), mark, domains, clean).layout.reused(), (Runs{{12, 32}}));
  EXPECT_TRUE(cache->without_clean_copy(join(question, a, b), mark, domains).empty());
  in({"", "", {"c"}});
  EXPECT_TRUE(cache->find(join(question, a, b), mark, domains, clean).layout.reused().empty());
  EXPECT_EQ(cache->without_clean_copy(join(question, a, b), mark, domains).size(), 1u);
}

TEST_F(ViewsTest, AnEvictionTakesTheViewsToo) {
  open(4);
  ask_in(just_b, a);
  ask_in(both, join(a, text(9, 3)));
  EXPECT_TRUE(cache->make_room(4 * kBlock));
  EXPECT_EQ(segments(), 0);
  for (const Space& space : {just_a, just_b, both}) {
    in(space);
    EXPECT_EQ(prefix(join(a, more)), 0);
  }
}

// A conversation behind a view that is asked on and on keeps it, and what it computed behind it, whoever else comes.
TEST_F(ViewsTest, TheViewThatWasFoundLongestAgoLeavesFirst) {
  open(40);
  ask_in(just_b, a);
  const Space kept{"", "", {"kept", "b"}};
  const Tokens talk = join(a, text(499, 12));
  ask_in(kept, talk);
  ask_in({"", "", {"left", "b"}}, join(a, text(498, 12)));
  for (int i = 0; i < 30; ++i) {
    ask_in({"", "", {"user" + std::to_string(i), "b"}}, join(a, text(500 + i, 3)));
    in({"", "", {"kept"}});
    ASSERT_EQ(prefix(join(talk, more)), 32) << i;
  }
  in({"", "", {"left"}});
  EXPECT_EQ(prefix(join(a, more)), 0) << "power check: views left";
}

// One document under ever more names: the index of them is bounded, and costs nobody the KV.
TEST_F(ViewsTest, ManyNamesHaveNoMoreTokensThanThePool) {
  open(40);
  ask_in(just_b, a);
  const KvSegment* const kv = kv_of(just_b, join(a, question));
  for (int i = 0; i < 100; ++i) {
    const Space space{"", "", {"user" + std::to_string(i), "b"}};
    ask_in(space, join(a, text(500 + i, 3)));
    in({"", "", {space.names[0]}});
    ASSERT_EQ(prefix(join(a, more)), 20) << "the last one's is there";
  }
  const KvShape& shape = cache->store().shape();
  EXPECT_LE(cache->segments().view_tokens(), cache->store().pages() * shape.P / (int64_t{shape.L} * shape.G));
  EXPECT_GT(cache->segments().view_tokens(), 0);
  in({"", "", {"user0"}});
  EXPECT_EQ(prefix(join(a, more)), 0) << "the oldest left";
  EXPECT_EQ(kv_of(just_b, join(a, question)), kv) << "and took nothing with it";
}

// Random requests of three tenants with two salts and four namespaces, whose names are alike, with equal texts. The
// parameter is the seed.
class ManyTenantsTest : public ViewsTest, public testing::WithParamInterface<uint32_t> {
 protected:
  template <class List>
  const auto& any(const List& list) {
    return list[rng() % list.size()];
  }
  Space random_space(size_t most_names) {
    Space space{any(tenants), any(salts), names};
    std::ranges::shuffle(space.names, rng);
    space.names.resize(1 + rng() % most_names);
    return space;
  }
  using Where = std::tuple<std::string, std::string, std::string>;
  static Where own(const Space& space) { return {space.tenant, space.salt, space.names[0]}; }

  std::mt19937 rng{GetParam()};
  const std::vector<std::string> tenants{"", "x", "y"}, salts{"", "x", "s"}, names{"", "x", "y", "s"};
  int hits = 0, misses = 0;
};
INSTANTIATE_TEST_SUITE_P(Seeds, ManyTenantsTest, testing::Range(1u, 9u));

// Each text is found exactly where the same tenant, with the same salt, has it in a namespace that is named. Whoever
// names several has all of them; what is found elsewhere is in one's own from then on.
TEST_P(ManyTenantsTest, NobodyFindsWhatIsNotTheirs) {
  open(2000);
  std::map<Where, std::set<int>> known;
  for (int step = 0; step < 500; ++step) {
    const Space space = random_space(3);
    const int which = static_cast<int>(rng() % 4);
    const Tokens document = text(100 + which, 20);
    const bool there = std::ranges::any_of(space.names, [&](const std::string& name) {
      return known[{space.tenant, space.salt, name}].contains(which);
    });
    ++(there ? hits : misses);
    in(space);
    ASSERT_EQ(prefix(join(document, more)), there ? 20 : 0) << step;
    ASSERT_EQ(!pieces(join(question, document, more)).empty(), there) << step;
    ASSERT_EQ(!cache
                   ->find(join(document, more), std::vector<TokenMark>{{0, 20}}, domains,
                          {.prefix = false, .clean_only = true})
                   .layout.reused()
                   .empty(),
              there)
        << step;
    if (rng() % 3 == 0) {
      ask_in(space, document, {{0, 20}}, rng() % 4 != 0);
      known[own(space)].insert(which);
    } else if (rng() % 120 == 0) {
      cache->clear();
      known.clear();
    }
    // A block of 16 tokens each: no two domains have a key in common.
    size_t blocks = 0;
    for (const auto& [where, texts] : known) blocks += texts.size();
    ASSERT_EQ(cache->block_keys().size(), blocks) << step;
  }
  EXPECT_GT(hits, 60) << "power check";
  EXPECT_GT(misses, 60) << "power check";
}

// The same of what is not exact: pieces that one policy left behind others, means over contexts, and texts that nearly
// are what was cached.
TEST_P(ManyTenantsTest, NobodyFindsApproximateKvMeansOrNearTextsThatAreNotTheirs) {
  constexpr int kLeast = 32;
  cache.emplace(PageStore::create(kShape, 8000 * kBlock * kShape.page_bytes()).value(), HashSecret::fixed(GetParam()),
                "model", kLeast);
  ThreadPool pool(1);
  const std::vector<std::string> policies{"mend", "naive"};
  const Tokens opening = text(90, 40), end = text(91, 40);
  std::map<Where, std::set<int>> exact, means;
  std::map<std::pair<Where, std::string>, std::set<int>> approximate;
  int found_near = 0, found_means = 0, found_approximate = 0;
  for (int step = 0; step < 400; ++step) {
    const Space space = random_space(1);
    const Where where = own(space);
    const std::string& policy = any(policies);
    const KeySpace keys{space.tenant, space.names[0], space.salt};
    domains = cache->domains(keys, policy);
    domains.chain = 0;
    domains.seasoned = cache->seasoned_domain(keys);
    const int which = static_cast<int>(rng() % 3);
    const Tokens document = text(100 + which, 64);
    const bool there = exact[where].contains(which), left = approximate[{where, policy}].contains(which),
               mean = means[where].contains(which);
    const auto found = [&](const Tokens& prompt, ContentCache::Wanted wanted, std::vector<TokenMark> marks = {}) {
      return cache->find(prompt, marks, domains, wanted).layout;
    };
    ASSERT_EQ(found(join(document, end), {.pieces = false}).prefix, there ? 64 : 0) << step;
    ASSERT_EQ(!found(join(more, document, end), {.prefix = false}).pieces.empty(), there || left) << step;
    ASSERT_EQ(found(join(more, document, end), {.seasoned = true}, {{9, 73}}).seasoned, mean ? 64 : 0) << step;
    Tokens edited = document;
    for (size_t at = 15; at < edited.size(); at += 16) edited[at] = 77777;
    ASSERT_EQ(found(join(more, edited, end), {.near = 8}).near, there || left ? 60 : 0) << step;
    ++(there || left || mean ? hits : misses);
    found_approximate += left && !there;
    found_means += mean;
    found_near += there || left;

    const Tokens head = text(1000 + step, 12);  // nobody asks with it again
    switch (rng() % 8) {
      case 0:
        ask(document, {}, false);
        exact[where].insert(which);
        break;
      case 1:
      case 2:
        ask(opening, {}, false);
        ask(join(head, opening, document));  // behind a piece that is reused
        if (!there) approximate[{where, policy}].insert(which);
        break;
      case 3:
        cache->season(compute(join(head, document), {{12, 76}}, false).own(domains), pool);
        means[where].insert(which);
        break;
      default:
        if (rng() % 60 != 0) break;
        cache->clear();
        exact.clear(), means.clear(), approximate.clear();
    }
  }
  EXPECT_GT(misses, 40) << "power check";
  EXPECT_GT(found_approximate, 10) << "power check";
  EXPECT_GT(found_means, 10) << "power check";
  EXPECT_GT(found_near, 20) << "power check";
}

}  // namespace
}  // namespace kvilt
