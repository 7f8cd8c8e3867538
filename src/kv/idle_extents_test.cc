// Who gives way when the pool is full: owners beyond their share first, then by kind.
#include "kv/idle_extents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kv/page_table.h"
#include "kv/rows_for_test.h"

namespace kvilt {
namespace {

class IdleExtentsTest : public testing::Test {
 protected:
  // A pool of so many extents.
  void open(int64_t extents) {
    kept.clear();
    const PageStore any = PageStore::create(kShape, 1000 * kShape.page_bytes()).value();
    slots = any.extent_slots();
    each = int64_t{kShape.L} * kShape.G * any.extent_pages();
    store.emplace(PageStore::create(kShape, extents * each * kShape.page_bytes()).value());
    store->idle().set_clock([this] { return now; });
  }
  IdleExtents& idle() { return store->idle(); }

  // One whole extent that waits, after `with` had a look at it. Evicts for its owner where there is no room.
  Extent* make(
      OwnerId owner = 0, const std::function<void(Extent&)>& with = [](Extent&) {}) {
    make_room(owner);
    PageTable table(*store, rope);
    table.give_to(owner);
    table.add(std::vector<Runs>{{{0, slots}}}, std::vector<uint16_t>(kShape.L, 0));
    kept.push_back(table.publish({0, slots}));
    Extent* const extent = extent_of(*kept.back());
    with(*extent);
    return extent;
  }
  void make_room(OwnerId owner) {
    while (store->free_pages() < each) {
      Extent* const next = idle().next(owner);
      ASSERT_NE(next, nullptr);
      evicted.push_back(next);
      next->evict();
      std::erase_if(kept, [&](const auto& segment) { return extent_of(*segment) == next; });
    }
  }
  static Extent* extent_of(const KvSegment& segment) { return segment.extents_of(segment.positions()).list[0].get(); }
  void use(Extent* extent) { const ExtentUse used(extent); }
  // All that wait, in the order in which they leave.
  std::vector<Extent*> drain() {
    std::vector<Extent*> out;
    while (Extent* const next = idle().next()) {
      out.push_back(next);
      next->evict();
    }
    return out;
  }

  const RopeConfig rope = small_rope();
  int32_t slots = 0;
  int64_t each = 0, now = 1000;
  std::optional<PageStore> store;
  std::vector<std::shared_ptr<const KvSegment>> kept;
  std::vector<Extent*> evicted;
};

using Extents = std::vector<Extent*>;

TEST_F(IdleExtentsTest, KindsGiveWayOneAfterTheOther) {
  open(20);
  Extent* const frozen = make(0, [](Extent& e) { e.freeze(7); });
  Extent* const hour = make(0, [](Extent& e) { e.retain(Retention::kHour); });
  Extent* const minutes = make(0, [](Extent& e) { e.retain(Retention::kFiveMinutes); });
  Extent* const first = make();
  Extent* const second = make();
  EXPECT_EQ(idle().pages(), 5 * each) << "all of it can be had";
  EXPECT_EQ(idle().frozen(), each);
  EXPECT_EQ(idle().pinned(), 2 * each);
  EXPECT_EQ(drain(), (Extents{first, second, minutes, hour, frozen}));
  EXPECT_EQ(idle().pages() + idle().pinned() + idle().frozen(), 0);
}

// Without owners, pins and names the order is what the two orders of extents make by themselves.
// What nobody waits for takes nothing that somebody asked to be kept, and of others what they hold beyond their share.
TEST_F(IdleExtentsTest, OrdinaryExtentsAloneAreWithinAShortReach) {
  constexpr auto kOrdinary = IdleExtents::Reach::kOrdinary;
  open(20);
  make(0, [](Extent& e) { e.freeze(7); });
  make(0, [](Extent& e) { e.retain(Retention::kHour); });
  Extent* const first = make();
  Extent* const second = make();
  const OwnerId shared = idle().add_owner(.4);
  std::vector<Extent*> theirs;
  for (int i = 0; i < 8; ++i) theirs.push_back(make(shared));
  for (Extent* const wanted : {first, second}) {
    EXPECT_EQ(idle().pages(0, kOrdinary), (wanted == first ? 2 : 1) * each);
    ASSERT_EQ(idle().next(0, kOrdinary), wanted) << "who is within its share keeps all";
    wanted->evict();
  }
  EXPECT_EQ(idle().pages(0, kOrdinary), 0);
  EXPECT_EQ(idle().next(0, kOrdinary), nullptr);
  EXPECT_EQ(idle().pages(shared, kOrdinary), 8 * each) << "its own";
  EXPECT_EQ(idle().next(shared, kOrdinary), theirs[0]);
  ASSERT_NE(idle().next(0), nullptr) << "power: whoever runs may take what is kept";
  for (int i = 0; i < 2; ++i) theirs.push_back(make(shared));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(idle().pages(0, kOrdinary), (2 - i) * each) << "what was lent";
    ASSERT_EQ(idle().next(0, kOrdinary), theirs[static_cast<size_t>(i)]);
    theirs[static_cast<size_t>(i)]->evict();
  }
  EXPECT_EQ(idle().next(0, kOrdinary), nullptr);
}

TEST_F(IdleExtentsTest, WithoutMarksTheOrderIsThatOfTheTwoOrdersAlone) {
  open(64);
  EvictionOrder orders[2] = {EvictionOrder(EvictionOrder::Rule::kAdaptive), EvictionOrder(EvictionOrder::Rule::kLru)};
  std::map<Extent*, Evictable> shadows;
  uint64_t clock = 0;
  std::mt19937 rng(11);
  const auto order_of = [&](Extent* extent) -> EvictionOrder& { return orders[static_cast<int>(extent->order)]; };
  const auto next = [&]() -> Extent* {  // the older one, or a chain while these hold more
    Evictable *const piece = orders[0].next(), *const chain = orders[1].next();
    const bool chains_first =
        piece && chain && (orders[1].pages() > orders[0].pages() || orders[1].since(*chain) < orders[0].since(*piece));
    Evictable* const first = !piece || chains_first ? chain : piece;
    for (auto& [extent, shadow] : shadows) {
      if (&shadow == first) return extent;
    }
    return nullptr;
  };
  int chains = 0, again = 0;
  for (int step = 0; step < 3000; ++step) {
    ASSERT_EQ(idle().next(), next()) << step;
    const unsigned what = rng() % 10;
    if (what < 5 || kept.empty()) {
      if (store->free_pages() < each) {
        Extent* const last = idle().next();
        chains += last->order == IdleExtents::Order::kChains;
        again += last->again;
        order_of(last).leave(shadows[last]);
        shadows.erase(last);
        make_room(0);
      }
      Extent* const made = make(
          0, [&](Extent& e) { e.order = rng() % 3 == 0 ? IdleExtents::Order::kChains : IdleExtents::Order::kPieces; });
      order_of(made).enter(shadows[made], made->pages(), ++clock);
    } else if (what < 9) {
      Extent* const used = extent_of(*kept[rng() % kept.size()]);
      what < 7 ? use(used) : used->touch();
      order_of(used).leave(shadows[used]);
      shadows[used].again = true;
      order_of(used).enter(shadows[used], used->pages(), ++clock);
    } else {
      const bool of_again = rng() % 2 == 0;
      idle().missed(0, each, of_again, 1.5);
      orders[0].missed(each, of_again, 1.5);
    }
  }
  EXPECT_GT(chains, 50) << "power";
  EXPECT_GT(again, 50) << "power";
}

TEST_F(IdleExtentsTest, WhatIsThawedWaitsAsOrdinary) {
  open(20);
  Extent* const one = make(0, [](Extent& e) { e.freeze(7), e.freeze(8), e.freeze(8); });
  Extent* const two = make();
  EXPECT_EQ(idle().next(), two);
  one->thaw(7);
  EXPECT_EQ(idle().next(), two) << "somebody else keeps it";
  one->thaw(8);
  EXPECT_EQ(idle().frozen(), 0);
  use(two);
  EXPECT_EQ(idle().next(), one);
}

TEST_F(IdleExtentsTest, APinLastsFromTheLastUse) {
  open(20);
  Extent* const pinned = make(0, [](Extent& e) { e.retain(Retention::kFiveMinutes); });
  Extent* const other = make();
  const auto next = [&] {
    idle().end_pins();
    return idle().next();
  };
  now += 200;
  use(pinned);
  now += 200;
  EXPECT_EQ(next(), other) << "it was used since";
  now += 100;
  EXPECT_EQ(next(), other) << "power: its time is over, and it waits like what was used just now";
  use(other);
  EXPECT_EQ(next(), pinned);
  EXPECT_EQ(idle().pinned(), 0);
  EXPECT_EQ(pinned->retention(), Retention::kNone);
}

TEST_F(IdleExtentsTest, PinsAreBounded) {
  open(16);
  const OwnerId a = idle().add_owner(0), b = idle().add_owner(0), c = idle().add_owner(0);
  const auto pin = [](Extent& e) { e.retain(Retention::kHour); };
  Extents of_a;
  for (int i = 0; i < 5; ++i) of_a.push_back(make(a, pin));
  EXPECT_EQ(idle().pinned_by(a), 4 * each) << "a quarter";
  EXPECT_EQ(idle().next(), of_a[4]) << "what is beyond that is ordinary";
  for (int i = 0; i < 4; ++i) make(b, pin);
  EXPECT_EQ(idle().pinned_by(b), 4 * each);
  make(c, pin);
  EXPECT_EQ(idle().pinned_by(c), 0) << "half of the pool is pinned";
  EXPECT_EQ(idle().pinned(), 8 * each);
}

// What was pinned takes no place from what comes when its time is over, though nobody has asked for room.
TEST_F(IdleExtentsTest, PinsThatAreOverTakeNoPlace) {
  open(16);
  for (int i = 0; i < 4; ++i) make(0, [](Extent& e) { e.retain(Retention::kFiveMinutes); });
  const auto pin = [](Extent& e) { e.retain(Retention::kHour); };
  now += 299;
  Extent* const beyond = make(0, pin);
  EXPECT_EQ(idle().next(), beyond) << "power: there is no place, a quarter is one owner's";
  now += 1;
  const Extents later{make(0, pin), make(0, pin), make(0, pin), make(0, pin)};
  EXPECT_EQ(idle().pinned_by(0), 4 * each);
  const Extents out = drain();
  ASSERT_EQ(out.size(), 9u);
  EXPECT_TRUE(std::equal(later.begin(), later.end(), out.begin() + 5)) << "these leave last";
}

TEST_F(IdleExtentsTest, FrozenTextsShrinkFromTheLeastUsed) {
  open(10);
  Extents all;
  const auto freeze = [](Extent& e) { e.freeze(1); };
  for (int i = 0; i < 9; ++i) all.push_back(make(0, freeze));
  EXPECT_EQ(idle().frozen(), 9 * each);
  for (int i = 0; i < 9; ++i) {
    if (i != 5) use(all[i]);
  }
  make(0, [](Extent& e) { e.freeze(1), e.touch(); });
  EXPECT_EQ(idle().frozen(), 9 * each) << "nine tenths";
  EXPECT_FALSE(all[5]->frozen());
  EXPECT_EQ(all[5]->frozen_for().size(), 1u) << "it keeps its name";
  EXPECT_EQ(idle().next(), all[5]);
}

TEST_F(IdleExtentsTest, OfSeveralTenantsNoneFreezesMoreThanHalf) {
  open(20);
  const OwnerId a = idle().add_owner(0);
  const auto freeze = [](Extent& e) { e.freeze(1); };
  Extents of_a;
  for (int i = 0; i < 18; ++i) of_a.push_back(make(a, freeze));
  EXPECT_EQ(idle().frozen_by(a), 18 * each) << "it is alone";
  use(of_a[0]);
  const OwnerId b = idle().add_owner(0);
  EXPECT_EQ(idle().frozen_by(a), 10 * each) << "half, from then on";
  EXPECT_TRUE(of_a[0]->frozen()) << "its least used ones went";
  EXPECT_FALSE(of_a[1]->frozen());
  Extents kept;  // the others leave, to make room for b's
  std::ranges::copy_if(of_a, std::back_inserter(kept), &Extent::frozen);
  Extents of_b;
  for (int i = 0; i < 8; ++i) of_b.push_back(make(b, freeze));
  EXPECT_EQ(idle().frozen_by(b), 8 * each);
  EXPECT_EQ(idle().frozen_by(a), 10 * each) << "nobody loses what it may have";
  use(of_b[7]);
  for (Extent* const one : kept) use(one);
  for (int i = 0; i < 4; ++i) make(b, freeze);
  EXPECT_EQ(idle().frozen_by(b), 8 * each) << "nine tenths of all";
  EXPECT_EQ(idle().frozen_by(a), 10 * each) << "the least used are b's own";
  EXPECT_TRUE(of_b[7]->frozen());
}

TEST_F(IdleExtentsTest, AShareBoundsWhatIsPinnedAndFrozen) {
  open(20);
  const OwnerId a = idle().add_owner(.5), b = idle().add_owner(.3);
  const auto freeze = [](Extent& e) { e.freeze(1); };
  const auto pin = [](Extent& e) { e.retain(Retention::kHour); };
  for (int i = 0; i < 10; ++i) make(a, freeze);
  EXPECT_EQ(idle().frozen_by(a), 9 * each) << "nine tenths of its share, with nobody else there";
  for (int i = 0; i < 6; ++i) make(b, pin);
  EXPECT_EQ(idle().pinned_by(b), 3 * each) << "half of its share";
  for (int i = 0; i < 4; ++i) make(0, i < 2 ? pin : freeze);
  EXPECT_EQ(idle().pinned_by(0), each) << "a quarter of what is left";
  EXPECT_EQ(idle().frozen_by(0), 2 * each) << "alone in the line";
  EXPECT_EQ(idle().frozen_by(a), 9 * each);
  EXPECT_EQ(idle().pinned_by(b), 3 * each);
}

// Whatever is frozen and pinned by whom in whatever order: nobody has more of it than it may, and nobody's texts are
// thawed for the sake of an owner in another line, nor for one that has more than it may.
TEST_F(IdleExtentsTest, WhatOneFreezesThawsNobodyElsesWithoutNeed) {
  int own = 0, of_line = 0, refused = 0;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    open(40);
    const std::vector<OwnerId> owners{0, idle().add_owner(.25), idle().add_owner(.2), idle().add_owner(0),
                                      idle().add_owner(0)};
    const auto line_of = [&](OwnerId owner) { return idle().own_share(owner) > 0 ? owner : 0; };
    const auto part = [&](OwnerId owner, double of) { return of * static_cast<double>(idle().share_of(owner)); };
    std::mt19937 rng(seed);
    for (int step = 0; step < 600; ++step) {
      const OwnerId owner = owners[seed % 2 == 0 ? rng() % owners.size() : std::min<size_t>(4, rng() % 8)];
      Extent* changed = nullptr;
      const unsigned what = rng() % 10;
      if (kept.empty() || what < 4) {
        changed = make(owner);
      } else {
        changed = extent_of(*kept[rng() % kept.size()]);
      }
      std::map<Extent*, bool> before;
      for (const auto& segment : kept) before[extent_of(*segment)] = extent_of(*segment)->frozen();
      const OwnerId by = changed->owner();
      const auto mine = idle().frozen_by(by);
      if (what < 7) {
        changed->freeze(1);
      } else if (what < 8) {
        const auto pinned = idle().pinned_by(by);
        changed->retain(Retention::kHour);
        refused += !changed->frozen() && idle().pinned_by(by) == pinned;
      } else {
        use(changed);
      }
      const bool over = line_of(by) == 0 && static_cast<double>(mine + each) > part(by, IdleExtents::kMostFrozenByOne);
      for (const auto& [extent, frozen] : before) {
        if (!frozen || extent->frozen()) continue;
        ASSERT_EQ(line_of(extent->owner()), line_of(by)) << seed << " " << step;
        ASSERT_TRUE(!over || extent->owner() == by) << seed << " " << step;
        (extent->owner() == by ? own : of_line) += 1;
      }
      double pinned_in_common = 0, frozen_in_common = 0;
      for (const OwnerId of : owners) {
        const bool shares = line_of(of) != 0;
        const auto frozen = static_cast<double>(idle().frozen_by(of)), pins = static_cast<double>(idle().pinned_by(of));
        ASSERT_LE(frozen, part(of, shares ? IdleExtents::kMostFrozen : IdleExtents::kMostFrozenByOne));
        ASSERT_LE(pins, part(of, shares ? IdleExtents::kMostPinned : IdleExtents::kMostPinnedByOne));
        frozen_in_common += shares ? 0 : frozen;
        pinned_in_common += shares ? 0 : pins;
      }
      ASSERT_LE(frozen_in_common, part(0, IdleExtents::kMostFrozen));
      ASSERT_LE(pinned_in_common, part(0, IdleExtents::kMostPinned));
    }
    kept.clear();
    for (const OwnerId owner : owners) ASSERT_EQ(idle().frozen_by(owner) + idle().pinned_by(owner), 0);
    ASSERT_EQ(idle().pages() + idle().pinned() + idle().frozen(), 0) << "every page was counted back";
  }
  EXPECT_GT(own, 50) << "power";
  EXPECT_GT(of_line, 20) << "power";
  EXPECT_GT(refused, 50) << "power";
}

TEST_F(IdleExtentsTest, RequestsWinOverFrozenTexts) {
  open(4);
  for (int i = 0; i < 3; ++i) make(0, [](Extent& e) { e.freeze(1); });
  for (int i = 0; i < 5; ++i) make();
  EXPECT_EQ(idle().frozen(), 3 * each) << "power: the ordinary one left";
  PageTable table(*store, rope);
  for (int64_t pages = 4 * each; store->free_pages() < pages;) idle().next()->evict();
  table.add(std::vector<Runs>{{{0, 4 * slots}}}, std::vector<uint16_t>(kShape.L, 0));
  EXPECT_EQ(store->free_pages(), 0) << "a request that needs all of the pool has it";
}

TEST_F(IdleExtentsTest, SharesAreLentAndTakenBack) {
  open(10);
  const OwnerId a = idle().add_owner(.5), b = idle().add_owner(.3);
  EXPECT_EQ(idle().share_of(a), 5 * each);
  EXPECT_EQ(idle().share_of(0), 2 * each) << "the rest";
  for (int i = 0; i < 10; ++i) make(a);
  EXPECT_EQ(idle().held_by(a), 10 * each) << "nobody else needs it";
  for (int i = 0; i < 3; ++i) make(b);
  EXPECT_EQ(idle().held_by(b), 3 * each);
  EXPECT_EQ(idle().held_by(a), 7 * each) << "power: it gave way";
  for (int i = 0; i < 4; ++i) make(0);
  EXPECT_EQ(idle().held_by(0), 2 * each) << "its share, and then its own leave";
  EXPECT_EQ(idle().held_by(a), 5 * each);
  for (int i = 0; i < 4; ++i) make(b);
  EXPECT_EQ(idle().held_by(b), 3 * each);
  EXPECT_EQ(idle().held_by(a), 5 * each);
}

// Whatever comes in whatever order: while an owner above its share has something that waits, nobody else gives way; and
// who asks gives way itself before others that are not above theirs.
TEST_F(IdleExtentsTest, WhoIsWithinItsShareLosesNothingToWhoIsNot) {
  int lent = 0, own = 0;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    open(24);
    const std::vector<OwnerId> owners{0, idle().add_owner(.25), idle().add_owner(.4), idle().add_owner(.05),
                                      idle().add_owner(0)};
    std::mt19937 rng(seed);
    std::vector<std::pair<OwnerId, std::unique_ptr<PageTable>>> running;
    for (int step = 0; step < 400; ++step) {
      const OwnerId owner = owners[rng() % owners.size()];
      const unsigned what = rng() % 10;
      if (what < 2 && running.size() < 12) {  // a request that holds its pages for a while
        if (store->free_pages() + idle().pages() < each) continue;
        make_room(owner);
        auto table = std::make_unique<PageTable>(*store, rope);
        table->give_to(owner);
        table->add(std::vector<Runs>{{{0, slots}}}, std::vector<uint16_t>(kShape.L, 0));
        running.emplace_back(owner, std::move(table));
        continue;
      }
      if (what < 4) {
        if (!running.empty()) running.erase(running.begin() + static_cast<ptrdiff_t>(rng() % running.size()));
        continue;
      }
      if (store->free_pages() + idle().pages() < each) continue;
      while (store->free_pages() < each) {
        Extent* const next = idle().next(owner);
        ASSERT_NE(next, nullptr);
        std::set<OwnerId> beyond, waiting;
        for (const auto& segment : kept) {
          Extent* const one = extent_of(*segment);
          if (!one->waits()) continue;
          waiting.insert(one->owner());
        }
        const auto held = [&](OwnerId of) {  // owners without a share have one together
          return idle().share_of(of) == idle().share_of(0) ? idle().held_by(0) + idle().held_by(owners[4])
                                                           : idle().held_by(of);
        };
        for (const OwnerId of : waiting) {
          if (held(of) > idle().share_of(of)) beyond.insert(of);
        }
        if (!beyond.empty()) {
          ASSERT_TRUE(beyond.count(next->owner())) << seed << " " << step;
          lent += next->owner() != owner;
        } else if (waiting.count(owner)) {
          ASSERT_EQ(idle().share_of(next->owner()), idle().share_of(owner)) << seed << " " << step;
          ++own;
        }
        next->evict();
        std::erase_if(kept, [&](const auto& segment) { return extent_of(*segment) == next; });
      }
      make(owner, [&](Extent& e) {
        if (what == 5) e.freeze(1);
        if (what == 6) e.retain(Retention::kHour);
      });
    }
    running.clear();
    kept.clear();
    for (const OwnerId owner : owners) ASSERT_EQ(idle().held_by(owner), 0) << "every page was counted back";
    ASSERT_EQ(idle().pages() + idle().pinned() + idle().frozen(), 0);
    ASSERT_EQ(store->free_pages(), store->pages());
  }
  EXPECT_GT(lent, 20) << "power";
  EXPECT_GT(own, 20) << "power";
}

}  // namespace
}  // namespace kvilt
