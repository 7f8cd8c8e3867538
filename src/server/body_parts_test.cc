#include "server/body_parts.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvilt::server {
namespace {

constexpr const char* kFormType = "multipart/form-data; boundary=xx";

std::vector<BodyParts::Part> parts_of(std::string_view type, std::string_view body) {
  auto parts = BodyParts::open(type, body);
  EXPECT_TRUE(parts.ok());
  std::vector<BodyParts::Part> out;
  while (parts.ok() && out.size() < 100) {
    auto part = parts.value().next();
    if (!part) break;
    out.push_back(std::move(*part));
  }
  return out;
}

TEST(BodyParts, TypesAreKnownHoweverTheyAreWritten) {
  EXPECT_EQ(BodyParts::kind_of("application/x-ndjson; charset=utf-8"), BodyParts::Kind::kLines);
  EXPECT_EQ(BodyParts::kind_of("Application/JSONL"), BodyParts::Kind::kLines);
  EXPECT_EQ(BodyParts::kind_of("Multipart/Form-Data; boundary=a"), BodyParts::Kind::kForm);
  for (const char* other : {"", "application/json", "multipart/form-dat", "multipart/mixed; boundary=a", ";"})
    EXPECT_EQ(BodyParts::kind_of(other), std::nullopt) << other;
}

TEST(BodyParts, LinesKeepTheirNumbers) {
  const auto lines = parts_of("application/x-ndjson", "a\r\n\n  \nb\nc");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].content, "a\r");
  EXPECT_EQ(lines[1].number, 4u);
  EXPECT_EQ(lines[2].content, "c");
  EXPECT_TRUE(parts_of("application/x-ndjson", "").empty());
}

TEST(BodyParts, FilesAndFieldsOfAForm) {
  const auto parts = parts_of("multipart/form-data; charset=x; boundary=\"x x\"",
                              "preamble\r\n--x x  \r\nContent-Type: text/plain\r\n"
                              "content-disposition: form-data; name=\"file\"; filename=\"a\\\"b; c.txt\"\r\n\r\n"
                              "one\r\n--x \r\n\r\n--x x\r\nContent-Disposition: form-data; name=n\r\n\r\n"
                              "\r\n--x x\r\n\r\nbare\r\n--x x--\r\nepilogue");
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].file, "a\"b; c.txt");
  EXPECT_EQ(parts[0].content, "one\r\n--x \r\n");
  EXPECT_TRUE(parts[0].is_file);
  EXPECT_EQ(parts[1].name, "n");
  EXPECT_FALSE(parts[1].is_file);
  EXPECT_EQ(parts[1].content, "");
  EXPECT_EQ(parts[2].content, "bare");
}

TEST(BodyParts, BrokenFormsSayWhy) {
  const std::string head = "Content-Disposition: form-data; name=a\r\n";
  EXPECT_TRUE(parts_of(kFormType, "--xx\r\n" + head + "\r\nwhole\r\n--xx--")[0].wrong.empty()) << "power";
  const std::string body = "--xx\r\n" + head + "\r\nwhole\r\n--xx\r\n" + head + "\r\ncut";
  const auto cut = parts_of(kFormType, body);
  ASSERT_EQ(cut.size(), 2u);
  EXPECT_EQ(cut[0].content, "whole");
  EXPECT_NE(cut[1].wrong.find("last boundary"), std::string::npos);
  EXPECT_NE(parts_of(kFormType, "--xx\r\n" + head)[0].wrong.find("does not end"), std::string::npos);
  EXPECT_NE(parts_of(kFormType, "--xx\r\n" + std::string(5000, 'a') + "\r\n\r\n")[0].wrong.find("4,096"),
            std::string::npos);
  EXPECT_NE(parts_of(kFormType, "--xxyy\r\n")[0].wrong.find("new line"), std::string::npos);
  EXPECT_TRUE(parts_of(kFormType, "--xx--").empty());
  EXPECT_FALSE(BodyParts::open(kFormType, "nothing").ok());
  EXPECT_FALSE(BodyParts::open("multipart/form-data", "--\r\n\r\n").ok());
  EXPECT_FALSE(BodyParts::open("multipart/form-data; boundary=" + std::string(71, 'a'), "").ok());
}

// Whatever is cut off: it ends, and no part has what is not in the body.
TEST(BodyParts, EveryCutOfAFormEnds) {
  const std::string body =
      "--xx\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a\"\r\n\r\none\r\n--xx\r\n\r\ntwo\r\n--xx--\r\n";
  for (size_t size = 0; size <= body.size(); ++size) {
    auto parts = BodyParts::open(kFormType, std::string_view(body).substr(0, size));
    for (int i = 0; parts.ok() && i < 4; ++i) {
      const auto part = parts.value().next();
      if (!part) break;
      EXPECT_LT(i, 3) << size;
    }
  }
}

}  // namespace
}  // namespace kvilt::server
