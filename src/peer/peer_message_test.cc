#include "peer/peer_message.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

const std::vector<PeerMessage> kMessages{
    PeerHello{{1, 2, 3}, 3072},
    PeerAsk{7, {4, 5}, 1, {11, 12, 13}, {}},
    PeerRows{7, 256, 2, std::vector<std::byte>(6, std::byte{9})},
    PeerEnd{7, PeerEnding::kPart},
    PeerCancel{8},
    PeerPart{7, 100, 106, std::vector<std::byte>(6, std::byte{9})},
    PeerAsk{7, {4, 5}, 0, {11, 12, 13}, {"redknot", "map", "mine", "window", ""}},
};

TEST(PeerMessage, ComesBackAsItWas) {
  for (const PeerMessage& message : kMessages) {
    const auto back = parse_message(bytes_of_message(message));
    ASSERT_TRUE(back.ok()) << message.index();
    EXPECT_EQ(*back, message) << message.index();
    for (const PeerMessage& other : kMessages) EXPECT_EQ(*back == other, &other == &message) << "power";
  }
}

TEST(PeerMessage, LengthsAreAsTheBoundsSay) {
  PeerAsk ask{7, {4, 5}, 0, {11, 12, 13}, {std::string(PeerAsk::kMostMethodBytes - 4, 'm')}};
  EXPECT_EQ(bytes_of_message(ask).size(), most_bytes_of_ask(3));
  EXPECT_TRUE(parse_message(bytes_of_message(ask)).ok());
  ask.method[0] += 'm';
  EXPECT_FALSE(parse_message(bytes_of_message(ask)).ok()) << "a method that is too long";
  PeerRows rows{1, 0, PeerRows::kMostTokens, std::vector<std::byte>(size_t{PeerRows::kMostTokens} * 8192)};
  EXPECT_EQ(bytes_of_message(rows).size(), most_bytes_of_kv(8192));
  PeerPart part{1, 0, PeerPart::kMostBytes, std::vector<std::byte>(PeerPart::kMostBytes)};
  EXPECT_EQ(bytes_of_message(part).size(), most_bytes_of_kv(8));
  EXPECT_LE(bytes_of_message(kMessages[0]).size(), most_bytes_of_ask(0));
}

// Every beginning of every message, and every message with one byte changed or one more: an error or a message, no more.
TEST(PeerMessage, TakesWhateverComes) {
  int refused = 0;
  for (const PeerMessage& message : kMessages) {
    const std::vector<std::byte> whole = bytes_of_message(message);
    for (size_t n = 0; n < whole.size(); ++n) {
      const auto part = parse_message(std::span(whole).first(n));
      if (message.index() != 1 && message.index() != 2 && message.index() != 5) {
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
  EXPECT_FALSE(parse_message(bytes_of_message(PeerAsk{1, {}, 1, {1, 2, 3}, {"redknot"}})).ok()) << "a session is whole";
  EXPECT_FALSE(parse_message(bytes_of_message(PeerAsk{1, {}, 0, {1}, {"redknot", "map"}})).ok()) << "half a pair";
  EXPECT_TRUE(parse_message(bytes_of_message(PeerAsk{1, {}, 0, {1}, {"redknot", "map", ""}})).ok()) << "power";
  const std::vector<std::byte> bytes(8);
  EXPECT_TRUE(parse_message(bytes_of_message(PeerPart{1, 2, 10, bytes})).ok()) << "power";
  EXPECT_FALSE(parse_message(bytes_of_message(PeerPart{1, 3, 10, bytes})).ok()) << "beyond its size";
  EXPECT_FALSE(parse_message(bytes_of_message(PeerPart{1, -1, 10, bytes})).ok());
  EXPECT_FALSE(parse_message(bytes_of_message(PeerPart{1, INT64_MAX, INT64_MAX, bytes})).ok());
  EXPECT_FALSE(parse_message(bytes_of_message(PeerPart{1, 0, 10, {}})).ok());
  EXPECT_FALSE(parse_message(bytes_of_message(PeerPart{1, 0, 2 << 20, std::vector<std::byte>((1 << 20) + 1)})).ok());
  EXPECT_FALSE(parse_message({}).ok());
}

}  // namespace
}  // namespace kvilt
