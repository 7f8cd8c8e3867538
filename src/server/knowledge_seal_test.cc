// Files of knowledge bases with a key: nothing of them can be read, moved or changed, and the wrong key is an error.
#include "server/knowledge_seal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "server/knowledge_for_test.h"

namespace kvilt::server {
namespace {

const HashSecret key_of_knowledge = HashSecret::fixed(11);

Result<std::unique_ptr<KnowledgeBases>> with_knowledge_key(const std::string& folder,
                                                           const std::optional<HashSecret>& key) {
  return KnowledgeBases::open(folder, {}, {.key = key});
}

void fill_rivers(KnowledgeBases& bases) {
  ASSERT_TRUE(bases.create("tenant-of-all", "rivers").ok());
  const std::vector<KnowledgeDocumentPtr> documents = {text_document("the-rhine", "some 1,230 km", "Rhine"),
                                                       text_document("the-elbe", "some 1,094 km", "Elbe")};
  ASSERT_TRUE(bases.put("tenant-of-all", "rivers", documents).ok());
  ASSERT_TRUE(bases.put("tenant-of-all", "rivers", {text_document("the-rhine", "some 1,233 km", "Rhine")}).ok());
}

// Where they are short with what no base64 has: by chance that holds each pair of letters now and then.
constexpr const char* kClearWords[] = {"tenant-of-all", "rivers", "Rhine",  "rhine",   "\"Elbe\"",
                                       "\"the-elbe\"",  "some 1", "233 km", "\"put\"", "\"text\""};

TEST(KnowledgeSeal, NoByteOfItCanBeRead) {
  const KnowledgeFolder folder;
  const auto seen = [&] {
    std::vector<std::string> out;
    const std::string bytes = folder.all_bytes();
    for (const char* word : kClearWords) {
      if (bytes.find(word) != std::string::npos) out.emplace_back(word);
    }
    if (bytes.find(name_of("tenant-of-all", "rivers")) != std::string::npos) out.emplace_back("the names' hash");
    return out;
  };
  {
    auto bases = with_knowledge_key(folder.path(), key_of_knowledge);
    ASSERT_TRUE(bases.ok());
    fill_rivers(*bases.value());
    EXPECT_EQ(seen(), std::vector<std::string>{});
  }
  for (int start = 0; start < 2; ++start) {
    auto bases = with_knowledge_key(folder.path(), key_of_knowledge);
    ASSERT_TRUE(bases.ok()) << bases.error().message;
    const auto all = bases.value()->documents("tenant-of-all", "rivers");
    ASSERT_TRUE(all.ok());
    ASSERT_EQ(all.value().size(), 2u);
    EXPECT_EQ(all.value()[0]->text, "some 1,094 km");
    EXPECT_EQ(all.value()[1]->text, "some 1,233 km");
    EXPECT_FALSE(bases.value()->create("tenant-of-all", "rivers").ok()) << "its name is taken";
    EXPECT_EQ(seen(), std::vector<std::string>{});
  }
  std::filesystem::remove_all(folder.path());
  fill_rivers(*opened_bases(folder.path()));
  EXPECT_EQ(seen().size(), std::size(kClearWords) + 1) << "power: without a key all of it";
}

TEST(KnowledgeSeal, AnotherKeyOrNoneIsRefusedAndNothingIsLost) {
  const KnowledgeFolder folder;
  fill_rivers(*with_knowledge_key(folder.path(), key_of_knowledge).value());
  const std::string before = folder.all_bytes();
  const auto refused = [&](const std::optional<HashSecret>& key, const char* says) {
    const auto bases = with_knowledge_key(folder.path(), key);
    ASSERT_FALSE(bases.ok()) << says;
    EXPECT_EQ(bases.error().code, Code::kInvalidArgument);
    for (const std::string& part : {folder.only_file(), std::string(says), std::string("--knowledge-dir")})
      EXPECT_NE(bases.error().message.find(part), std::string::npos) << part << ": " << bases.error().message;
    EXPECT_EQ(folder.all_bytes(), before);
  };
  refused(HashSecret::fixed(12), "written with another key");
  refused({}, "written with a key: give that (--cache-key FILE, or KVILT_CACHE_KEY)");
  EXPECT_TRUE(with_knowledge_key(folder.path(), key_of_knowledge).ok()) << "power";
}

TEST(KnowledgeSeal, AKeyForAFolderInClearIsRefused) {
  const KnowledgeFolder folder;
  fill_rivers(*opened_bases(folder.path()));
  const std::string before = folder.all_bytes();
  const auto bases = with_knowledge_key(folder.path(), key_of_knowledge);
  ASSERT_FALSE(bases.ok());
  EXPECT_EQ(bases.error().code, Code::kInvalidArgument);
  for (const char* part : {"written without a key", "without --cache-key and KVILT_CACHE_KEY it opens as before",
                           "leave out --cache-dir then too"})
    EXPECT_NE(bases.error().message.find(part), std::string::npos) << bases.error().message;
  EXPECT_EQ(folder.all_bytes(), before);
  EXPECT_NE(opened_bases(folder.path()), nullptr) << "power";
}

TEST(KnowledgeSeal, ALineIsOneOfItsFileAndItsPlace) {
  const auto seal = KnowledgeSeal::fresh(key_of_knowledge), other = KnowledgeSeal::fresh(key_of_knowledge);
  const auto again = KnowledgeSeal::of(key_of_knowledge, seal.salt());
  ASSERT_TRUE(again);
  for (const char* text : {"", "t", "te", "tex", "text of a line"}) {
    const std::string line = seal.seal(text, 100);
    EXPECT_EQ(line.find_first_of(" \n{"), std::string::npos);
    EXPECT_EQ(again->open(line, 100), text);
    EXPECT_NE(seal.seal(text, 100), line) << "every sealing is another";
    EXPECT_FALSE(seal.open(line, 101));
    EXPECT_FALSE(other.open(line, 100)) << "another salt";
    EXPECT_FALSE(KnowledgeSeal::of(HashSecret::fixed(12), seal.salt())->open(line, 100));
    for (size_t i = 0; i < line.size(); ++i) {
      std::string changed = line;
      changed[i] = changed[i] == 'A' ? 'B' : 'A';
      EXPECT_FALSE(seal.open(changed, 100)) << i;
      EXPECT_FALSE(seal.open(line.substr(0, i), 100)) << i;
    }
  }
  for (const char* salt : {"", "abcd", "not hexadecimal"}) EXPECT_FALSE(KnowledgeSeal::of(key_of_knowledge, salt));
}

// Each byte of each line: an error that names the file, or, of the first line, that the key may be the wrong one.
TEST(KnowledgeSeal, AChangedLineIsAnError) {
  const KnowledgeFolder folder;
  fill_rivers(*with_knowledge_key(folder.path(), key_of_knowledge).value());
  const std::string file = folder.only_file(), whole = folder.bytes();
  for (size_t i = 0; i < whole.size(); i += 7) {
    if (whole[i] == ' ' || whole[i] == '\n') continue;
    std::string changed = whole;
    changed[i] = changed[i] == 'A' || changed[i] == 'a' ? 'B' : 'A';  // digits of the salt have either case
    std::ofstream(file, std::ios::trunc | std::ios::binary) << changed;
    const auto bases = with_knowledge_key(folder.path(), key_of_knowledge);
    ASSERT_FALSE(bases.ok()) << i;
    EXPECT_NE(bases.error().message.find(file), std::string::npos) << bases.error().message;
  }
  std::ofstream(file, std::ios::trunc | std::ios::binary) << whole;
  EXPECT_TRUE(with_knowledge_key(folder.path(), key_of_knowledge).ok()) << "power";
}

TEST(KnowledgeSeal, WhatIsDeletedOrWrittenAnewStaysSealed) {
  const KnowledgeFolder folder;
  const std::string large(100'000, 'L');
  size_t blanks = 0;
  {
    auto opening = with_knowledge_key(folder.path(), key_of_knowledge);
    KnowledgeBases& bases = *opening.value();
    fill_rivers(bases);
    ASSERT_TRUE(bases.put("tenant-of-all", "rivers", {text_document("large", large)}).ok());
    ASSERT_TRUE(bases.remove("tenant-of-all", "rivers", "large").ok());
    const std::string bytes = folder.bytes();
    blanks = static_cast<size_t>(std::ranges::count(bytes, ' '));
    EXPECT_GT(blanks, large.size()) << "its line is blank";
  }
  const auto bases = with_knowledge_key(folder.path(), key_of_knowledge);
  ASSERT_TRUE(bases.ok()) << bases.error().message;
  EXPECT_LT(folder.bytes().size(), 2000u) << "written anew";
  EXPECT_EQ(folder.bytes().find("rhine"), std::string::npos);
  EXPECT_TRUE(bases.value()->remove("tenant-of-all", "rivers", "the-elbe").ok()) << "at its new place";
  EXPECT_EQ(bases.value()->documents("tenant-of-all", "rivers").value().size(), 1u);
}

}  // namespace
}  // namespace kvilt::server
