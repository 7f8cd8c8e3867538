#include "engine/open_requests.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace kvilt {
namespace {

class Heard : public TokenSink {
 public:
  void on_tokens(const TokenDelta&) override {}
  void on_finish(Completion completion) override { ends.push_back(completion.finish); }
  std::vector<Finish> ends;
};

TEST(OpenRequests, SeveralHavePlacesTogetherOrNotAtAll) {
  OpenRequests open(3, 1);
  auto two = open.take(2, "");
  ASSERT_TRUE(two.ok());
  const auto three = open.take(3, "");
  ASSERT_FALSE(three.ok());
  EXPECT_EQ(three.error().code, Code::kExhausted);
  EXPECT_NE(three.error().message.find("2 places left for 3"), std::string::npos) << three.error().message;
  EXPECT_EQ(open.count(), 2) << "none of the three has one";
  EXPECT_TRUE(open.take(2, "").ok()) << "power: two fit";
  const auto five = open.take(5, "");
  ASSERT_FALSE(five.ok());
  EXPECT_EQ(five.error().code, Code::kInvalidArgument) << "they never fit";
  EXPECT_NE(five.error().message.find("places for 4"), std::string::npos) << five.error().message;
}

TEST(OpenRequests, PlacesComeBack) {
  OpenRequests open(3, 1);
  const auto ended = std::make_shared<Heard>(), lost = std::make_shared<Heard>();
  {
    auto three = open.take(3, "");
    ASSERT_TRUE(three.ok());
    auto first = three.value().give(ended);
    auto second = three.value().give(lost);
    first->on_finish({});
    EXPECT_EQ(open.count(), 2);
  }
  EXPECT_EQ(open.count(), 0) << "of the one that has no sink, and of the one that was lost";
  EXPECT_EQ(ended->ends.size(), 1u);
  EXPECT_EQ(lost->ends, std::vector<Finish>{Finish::kError});
}

TEST(OpenRequests, NoTenantFillsTheQueue) {
  OpenRequests open(8, 2);
  std::vector<std::unique_ptr<OpenRequests::Places>> held;
  const auto most_of = [&](const char* tenant) {
    for (int count = 0;; ++count) {
      auto one = open.take(1, tenant);
      if (!one.ok()) return count;
      held.push_back(std::make_unique<OpenRequests::Places>(std::move(one).value()));
    }
  };
  EXPECT_EQ(most_of("red"), 5) << "half";
  EXPECT_EQ(most_of("blue"), 2) << "as many as are left then";
  EXPECT_EQ(open.take(1, "red").error().code, Code::kOverLimit);
  EXPECT_EQ(open.take(3, "green").error().code, Code::kOverLimit);
  EXPECT_EQ(open.count(), 7) << "who was refused has none";
  EXPECT_EQ(most_of("green"), 1);
  EXPECT_EQ(most_of("grey"), 1);
  EXPECT_EQ(most_of("black"), 1) << "the last place is for who has none";
  EXPECT_EQ(open.take(1, "white").error().code, Code::kExhausted);
  held.erase(held.begin() + 1, held.begin() + 5);  // red's
  EXPECT_EQ(most_of("red"), 1) << "what ended counts no more";
  held.clear();
  EXPECT_EQ(most_of("blue"), 5) << "power: and so for blue";
  held.clear();
  EXPECT_EQ(most_of(""), 10) << "who is no tenant may have all";
  EXPECT_EQ(OpenRequests(0, 1).take(1, "red").ok(), true) << "one place is for anybody";
  EXPECT_EQ(OpenRequests(8, 2).take(6, "red").error().code, Code::kInvalidArgument) << "these never fit";
}

}  // namespace
}  // namespace kvilt
