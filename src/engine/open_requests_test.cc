#include "engine/open_requests.h"

#include <gtest/gtest.h>

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
  auto two = open.take(2);
  ASSERT_TRUE(two.ok());
  const auto three = open.take(3);
  ASSERT_FALSE(three.ok());
  EXPECT_EQ(three.error().code, Code::kExhausted);
  EXPECT_NE(three.error().message.find("2 places left for 3"), std::string::npos) << three.error().message;
  EXPECT_EQ(open.count(), 2) << "none of the three has one";
  EXPECT_TRUE(open.take(2).ok()) << "power: two fit";
  const auto five = open.take(5);
  ASSERT_FALSE(five.ok());
  EXPECT_EQ(five.error().code, Code::kInvalidArgument) << "they never fit";
  EXPECT_NE(five.error().message.find("places for 4"), std::string::npos) << five.error().message;
}

TEST(OpenRequests, PlacesComeBack) {
  OpenRequests open(3, 1);
  const auto ended = std::make_shared<Heard>(), lost = std::make_shared<Heard>();
  {
    auto three = open.take(3);
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

}  // namespace
}  // namespace kvilt
