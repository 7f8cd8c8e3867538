#include "peer/peer_message.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

const std::vector<PeerMessage> kMessages{
    PeerHello{{1, 2, 3}, 3072},
    PeerAsk{7, {4, 5}, 1, {11, 12, 13}},
    PeerRows{7, 256, 2, std::vector<std::byte>(6, std::byte{9})},
    PeerEnd{7, PeerEnding::kPart},
    PeerCancel{8},
};

TEST(PeerMessage, ComesBackAsItWas) {
  for (const PeerMessage& message : kMessages) {
    const auto back = parse_message(bytes_of_message(message));
    ASSERT_TRUE(back.ok()) << message.index();
    EXPECT_EQ(*back, message) << message.index();
    EXPECT_NE(*back, kMessages[(message.index() + 1) % kMessages.size()]) << "power";
  }
}

TEST(PeerMessage, LengthsAreAsTheBoundsSay) {
  EXPECT_EQ(bytes_of_message(kMessages[1]).size(), most_bytes_of_ask(3));
  PeerRows rows{1, 0, PeerRows::kMostTokens, std::vector<std::byte>(PeerRows::kMostTokens * 8)};
  EXPECT_EQ(bytes_of_message(rows).size(), most_bytes_of_rows(8));
  EXPECT_LE(bytes_of_message(kMessages[0]).size(), most_bytes_of_ask(0));
}

// Every beginning of every message, and every message with one byte changed or one more: an error or a message, no more.
TEST(PeerMessage, TakesWhateverComes) {
  int refused = 0;
  for (const PeerMessage& message : kMessages) {
    const std::vector<std::byte> whole = bytes_of_message(message);
    for (size_t n = 0; n < whole.size(); ++n) {
      const auto part = parse_message(std::span(whole).first(n));
      if (message.index() != 1 && message.index() != 2) {
        EXPECT_FALSE(part.ok()) << message.index() << " " << n;
      }
      refused += part.ok() ? 0 : 1;
      for (const int bit : {0, 3, 7}) {
        std::vector<std::byte> flipped = whole;
        flipped[n] ^= std::byte(1 << bit);
        const auto other = parse_message(flipped);
        EXPECT_FALSE(other.ok() && *other == message) << message.index() << " " << n;
      }
    }
    std::vector<std::byte> longer = whole;
    longer.push_back(std::byte{0});
    const auto other = parse_message(longer);
    EXPECT_FALSE(other.ok() && *other == message);
  }
  EXPECT_GT(refused, 50);
}

TEST(PeerMessage, FieldsAreChecked) {
  EXPECT_FALSE(parse_message(bytes_of_message(PeerAsk{1, {}, 0, {}})).ok()) << "no tokens";
  EXPECT_FALSE(parse_message(bytes_of_message(PeerAsk{1, {}, 3, {1, 2, 3}})).ok()) << "nothing is missing";
  EXPECT_FALSE(parse_message(bytes_of_message(PeerAsk{1, {}, -1, {1, 2, 3}})).ok());
  EXPECT_FALSE(parse_message(bytes_of_message(PeerRows{1, 0, 257, {}})).ok());
  EXPECT_FALSE(parse_message(bytes_of_message(PeerRows{1, 0, 0, {}})).ok());
  EXPECT_FALSE(parse_message(bytes_of_message(PeerRows{1, -1, 1, {}})).ok());
  EXPECT_FALSE(parse_message(bytes_of_message(PeerEnd{1, static_cast<PeerEnding>(3)})).ok());
  EXPECT_FALSE(parse_message({}).ok());
}

}  // namespace
}  // namespace kvilt
