// What --fold-volatile takes out of a system message, and what it leaves.
#include "engine/volatile_lines.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvilt {
namespace {

std::string folded(std::string text, int lines) {
  EXPECT_EQ(fold_volatile_text(text), lines) << text;
  return text;
}

TEST(VolatileLines, TwoRequestsBecomeOne) {
  const auto head = [](const char* cch, const char* clock, const char* status) {
    return std::string("x-anthropic-billing-header: cc_version=2.1; cch=") + cch +
           ";\nYou help.\nCurrent time: " + clock + "\n\nStatus:\n" + status + "\n\nRules follow.";
  };
  const std::string one = folded(head("9f3a1c", "2026-11-24T10:31:07.512Z", "M a.cc"), 3);
  EXPECT_EQ(folded(head("00ffaa", "2026-11-24T10:31:09Z", "M a.cc\n?? b.cc"), 4), one);
  EXPECT_EQ(one,
            "x-anthropic-billing-header: cc_version=2.1; cch=0;\nYou help.\nCurrent time: "
            "2026-11-24\n\nStatus:\n\nRules follow.");
  EXPECT_NE(folded(head("9f3a1c", "2026-11-25T10:31:07Z", "M a.cc"), 3), one) << "power: another day";
}

TEST(VolatileLines, TimesOfDay) {
  EXPECT_EQ(folded("Today is 2026-11-24 10:31", 1), "Today is 2026-11-24");
  EXPECT_EQ(folded("Now: 9:05:33 PM, Berlin", 1), "Now:, Berlin");
  EXPECT_EQ(folded("Date: 24.11.2026 10:31:00+01:00", 1), "Date: 24.11.2026");
  EXPECT_EQ(folded("timestamp: 1763981234567 end", 1), "timestamp: 0 end");
  EXPECT_EQ(folded("The current time is 10:31, in Bonn", 1), "The current time is, in Bonn");
  EXPECT_EQ(folded("Local time (Bonn): 10:31", 1), "Local time (Bonn):");
  EXPECT_EQ(folded("It is now 10:31", 1), "It is now");
  EXPECT_EQ(folded("It is 14:03:59 now.", 1), "It is now.");
  EXPECT_EQ(folded("be there at 14:03 nowadays", 0), "be there at 14:03 nowadays");
  EXPECT_EQ(folded("Today is Tuesday, 2026-11-24, 10:31", 1), "Today is Tuesday, 2026-11-24,");
  EXPECT_EQ(folded("Current date: Tue 2026-11-24T10:31:07Z (UTC)", 1), "Current date: Tue 2026-11-24 (UTC)");
  EXPECT_EQ(folded("the timestamp is 1763981234567 now", 1), "the timestamp is 0 now");
  EXPECT_EQ(folded("timestamp=1763981234567 (server timestamp=1763981234999), last timestamp: none", 1),
            "timestamp=0 (server timestamp=0), last timestamp: none");
}

TEST(VolatileLines, WhatIsNoClockStays) {
  for (const char* text :
       {"Meet at 10:31.",
        "See Genesis 1:12 and 3:15.",
        "fe80:12:34:56 is the time server's address",
        "Version 2026-11-24 of time.",
        "cch=x",
        "cch=12",
        "a:b:c date",
        "timestamp: 12345",
        "",
        "\n\n",
        "Status: fine\nStatus\nwords",
        "Feed them from time to time at 10:30.",
        "Now and then, as of 9:15, look up.",
        "Date night begins at 20:00",
        "Status:\n200 is fine\n404 is not",
        "gitStatus\nAt noon\nnews",
        "Status:\nA customer wrote twice.\nM is the manager.\nR 5 means five.\nAT home only.\nI am here",
        "Meeting 2026-11-24 at 10:30 in room 5.",
        "Open from 2026-11-24 08:00 to 2026-12-24 18:00.",
        "2026-11-24 08:00 the shop opens",
        "Since 24.11.2026 it maps ports 80:80.",
        "The bus leaves on time: 7:15, 8:15, 9:15.",
        "timestamps and phone 0049123456789",
        "a timestamp and phone 0049123456789",
        "会议 2026-11-24 10:30 开始",
        "- Встреча 2026-11-24 10:30 с Иваном",
        "Time: 会议从 10:30 开始",
        "- 2026-11-24 10:30 Lunch",
        "Free slots:\n- 2026-11-24 10:30\n2026-11-25 11:30"})
    EXPECT_EQ(folded(text, 0), text);
}

// Lines of megabytes take a moment: twice the text takes about twice as long.
TEST(VolatileLines, LongLines) {
  for (const std::string unit :
       {"10:30 ", "2026-11-24 10:31 ", "Today is 2026-11-24 10:31, ", "    ", "M a ", "cch=abcd "}) {
    std::string text = std::string(1 << 16, ' ') + "Status: ";
    while (text.size() < (1 << 20)) text += unit;
    const bool now = unit.starts_with("Today");
    EXPECT_EQ(fold_volatile_text(text), now || unit.starts_with("cch") ? 1 : 0) << unit;
    EXPECT_EQ(text.find("10:31") == std::string::npos, now || unit.find("10:31") == std::string::npos) << unit;
  }
}

TEST(VolatileLines, AStatusHasPathsOnly) {
  EXPECT_EQ(folded("Status:\nM a.cc\n M b.cc\nMM c.cc\nR  a -> b\n?? \"x y\"\r\nrest", 5), "Status:\nrest");
  EXPECT_EQ(folded("Status:\n M a.cc\nM b.cc\nrest", 1), "Status:\nM b.cc\nrest") << "of the first line alone";
  EXPECT_EQ(folded("gitStatus\nM Makefile\n M README.md\nA  TODO.md\n?? CMakeLists.txt\nend", 4), "gitStatus\nend");
  EXPECT_EQ(folded("Status:\r\n(clean)\r\nend", 1), "Status:\r\nend");
}

TEST(VolatileLines, OnlySystemMessagesAndAnyShape) {
  auto messages = nlohmann::ordered_json::parse(R"([
    {"role": "system", "content": "time 10:31"}, {"role": "user", "content": "time 10:31"},
    {"role": "developer", "content": [{"type": "text", "text": "time 10:31"}, 5, {"text": 7}]},
    {"role": 3, "content": "time 10:31"}, {"role": "system"}, null, 7, {"role": "system", "content": {"a": 1}}])");
  const auto before = messages;
  EXPECT_EQ(fold_volatile_lines(messages), 2);
  EXPECT_EQ(messages[0]["content"], "time");
  EXPECT_EQ(messages[2]["content"][0]["text"], "time");
  EXPECT_EQ(messages[1], before[1]);
  EXPECT_EQ(messages[3], before[3]);
}

}  // namespace
}  // namespace kvilt
