// What was deleted or replaced is no longer in the files of knowledge bases, whenever a crash comes.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "server/knowledge_for_test.h"

namespace kvilt::server {
namespace {

namespace fs = std::filesystem;
using Texts = std::map<std::string, std::string>;  // by id

bool has(const std::string& bytes, std::string_view text) { return bytes.find(text) != std::string::npos; }

Texts texts_in(const KnowledgeBases& bases, const std::string& name = "x") {
  Texts out;
  const auto all = bases.documents("a", name);
  if (!all.ok()) return {{"none", all.error().message}};
  for (const auto& one : all.value()) out[one->id] = one->text;
  return out;
}

void write_whole(const std::string& file, std::string_view bytes) {
  std::ofstream(file, std::ios::trunc | std::ios::binary) << bytes;
}

TEST(KnowledgeErasure, ADeletedDocumentIsNotInTheFile) {
  const KnowledgeFolder folder;
  auto bases = opened_bases(folder.path());
  ASSERT_TRUE(bases->create("a", "x").ok());
  const std::string large(200'000, 'L');
  ASSERT_TRUE(bases
                  ->put("a", "x",
                        {text_document("first-id", "first text", "first title"), text_document("large", large),
                         text_document("kept", "kept text")})
                  .ok());
  ASSERT_TRUE(has(folder.bytes(), "first text") && has(folder.bytes(), "LLL")) << "power";
  ASSERT_TRUE(bases->remove("a", "x", "first-id").ok());
  ASSERT_TRUE(bases->remove("a", "x", "large").ok());
  for (int round = 0; round < 2; ++round) {
    for (const char* gone : {"first text", "first title", "first-id", "LLL", "large"})
      EXPECT_FALSE(has(folder.bytes(), gone)) << gone;
    EXPECT_TRUE(has(folder.bytes(), "kept text"));
    EXPECT_EQ(texts_in(*bases), (Texts{{"kept", "kept text"}})) << round;
    bases.reset();
    bases = opened_bases(folder.path());
  }
}

TEST(KnowledgeErasure, AReplacedTextIsNotInTheFile) {
  const KnowledgeFolder folder;
  auto bases = opened_bases(folder.path());
  ASSERT_TRUE(bases->create("a", "x").ok());
  for (const char* text : {"one ", "two ", "three "}) {
    std::vector<KnowledgeDocumentPtr> documents;
    for (const char* id : {"p", "q", "r"}) documents.push_back(text_document(id, std::string(text) + id));
    ASSERT_TRUE(bases->put("a", "x", documents).ok());
  }
  for (int round = 0; round < 2; ++round) {
    for (const char* gone : {"one p", "one q", "one r", "two p", "two q", "two r"})
      EXPECT_FALSE(has(folder.bytes(), gone)) << gone;
    EXPECT_EQ(texts_in(*bases), (Texts{{"p", "three p"}, {"q", "three q"}, {"r", "three r"}})) << round;
    bases.reset();
    bases = opened_bases(folder.path());
  }
}

TEST(KnowledgeErasure, ABaseGoesWithItsFile) {
  const KnowledgeFolder folder;
  const auto bases = opened_bases(folder.path());
  ASSERT_TRUE(bases->create("a", "x").ok() && bases->put("a", "x", {text_document("p", "text")}).ok());
  const std::string file = folder.only_file();
  fs::rename(file, file + ".aside");
  fs::create_directory(file);  // nobody can delete it as a file, not even root
  const Status refused = bases->erase("a", "x");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kIo);
  EXPECT_TRUE(has(refused.error().message, file)) << refused.error().message;
  EXPECT_EQ(texts_in(*bases), (Texts{{"p", "text"}}));
  fs::remove(file);
  fs::rename(file + ".aside", file);
  ASSERT_TRUE(bases->put("a", "x", {text_document("q", "more")}).ok()) << "and it goes on";
  EXPECT_TRUE(bases->erase("a", "x").ok());
  EXPECT_FALSE(fs::exists(file));
  EXPECT_TRUE(bases->list("a").empty());
  // Whoever deleted the file before did what was asked; that the folder says so is another matter.
  ASSERT_TRUE(bases->create("a", "y").ok());
  fs::remove(folder.only_file());
  EXPECT_TRUE(bases->erase("a", "y").ok());
  ASSERT_TRUE(bases->create("a", "z").ok());
  fs::remove_all(folder.path());
  const Status unsure = bases->erase("a", "z");
  ASSERT_FALSE(unsure.ok());
  EXPECT_TRUE(has(unsure.error().message, "a crash may bring it back")) << unsure.error().message;
  EXPECT_TRUE(bases->list("a").empty());
}

// A disk of which states are seen that a crash may leave: before each sync, what was written over lines since the last
// one may be there or not, piece by piece, and a line that is appended may end anywhere. Not here: an appended line with
// holes, which is damage and ends the start. What a sync failed to write is on
// no disk, whatever the next one says, until it is written again: so does Linux.
class CrashingDisk {
 public:
  explicit CrashingDisk(const KnowledgeFolder& folder) : folder_(folder) {}
  KnowledgeJournal::Sync hook() {
    return [this](int) {
      if (at_sync) at_sync(++syncs);
      std::string now = folder_.bytes();
      if (fails && fails(syncs)) {
        lost_ = now;
        errno = EIO;
        return -1;
      }
      if (syncs > 1) lost_.clear();  // all blanks were written again
      for (size_t i = 0; i < std::min(lost_.size(), synced_.size()); ++i) {
        if (now[i] == lost_[i]) now[i] = synced_[i];
      }
      synced_ = now;
      return 0;
    };
  }
  // One of these states.
  std::string crashed(std::mt19937_64& dice) const {
    std::string now = folder_.bytes();
    const size_t common = std::min(now.size(), synced_.size());
    const size_t piece = size_t{1} << (dice() % 7);
    for (size_t at = 0; at < common; at += piece) {
      if (dice() % 2 == 0) std::copy_n(synced_.begin() + at, std::min(piece, common - at), now.begin() + at);
    }
    now.resize(common + (now.size() > common ? dice() % (now.size() - common + 1) : 0));
    return now;
  }
  std::function<void(int sync)> at_sync;
  std::function<bool(int sync)> fails;
  int syncs = 0;  // of this change

 private:
  const KnowledgeFolder& folder_;
  std::string synced_, lost_;
};

// What a start finds and leaves of these bytes.
class StartOfBytes {
 public:
  StartOfBytes(const std::string& file, const std::string& bytes, const std::optional<HashSecret>& key) {
    const std::string scratch = fs::path(file).parent_path().string();
    fs::create_directories(scratch);
    write_whole(file, bytes);
    auto bases = KnowledgeBases::open(scratch, {}, {.sync = [](int) { return 0; }, .key = key});
    if (bases.ok()) {
      texts = texts_in(*bases.value());
    } else {
      error = bases.error().message;
    }
    std::ifstream in(file, std::ios::binary);
    left.assign(std::istreambuf_iterator<char>(in), {});
  }
  Texts texts;
  std::string error, left;
};

// Random changes, and at each of their syncs some crashes: the next start has all that was acknowledged, and texts of no
// other documents are left in the file. With a key none can be seen at all.
void crash_often(const std::function<bool(int sync)>& fails, const std::optional<HashSecret>& key = {}) {
  const KnowledgeFolder folder;
  CrashingDisk disk(folder);
  auto opening = KnowledgeBases::open(folder.path(), {}, {.sync = disk.hook(), .key = key});
  ASSERT_TRUE(opening.ok());
  KnowledgeBases& bases = *opening.value();
  ASSERT_TRUE(bases.create("a", "x").ok());
  const std::string scratch = folder.path() + "/crashed/" + fs::path(folder.only_file()).filename().string();
  std::mt19937_64 dice(7);
  Texts before, after;
  int number = 0, crashes = 0;
  const auto check = [&](int sync) {
    for (int i = 0; i < 12; ++i, ++crashes) {
      const std::string bytes = disk.crashed(dice);
      const StartOfBytes start(scratch, bytes, key);
      ASSERT_EQ(start.error, "") << bytes;
      ASSERT_TRUE(start.texts == after || (sync == 1 && start.texts == before)) << bytes;
      for (int old = 0; old <= number; ++old) {
        const std::string text = "text-" + std::to_string(old) + "-";
        const bool holds = std::ranges::any_of(start.texts, [&](const auto& one) { return one.second == text; });
        ASSERT_EQ(has(start.left, text), holds && !key) << text << "\n" << bytes << "\n" << start.left;
      }
    }
  };
  disk.at_sync = check;
  disk.fails = fails;
  for (int change = 0; change < 40 && !testing::Test::HasFatalFailure(); ++change) {
    const std::string id(1, static_cast<char>('p' + dice() % 4));
    before = after;
    disk.syncs = 0;
    if (after.contains(id) && dice() % 3 == 0) {
      after.erase(id);
      ASSERT_TRUE(bases.remove("a", "x", id).ok());
    } else {
      after[id] = "text-" + std::to_string(++number) + "-";
      ASSERT_TRUE(bases.put("a", "x", {text_document(id, after[id])}).ok());
    }
    ASSERT_EQ(texts_in(bases), after);
  }
  EXPECT_GT(crashes, 500) << "power";
}

TEST(KnowledgeErasure, ACrashAtAnyMomentLeavesWhatWasAcknowledged) { crash_often({}); }

// The second sync of a change is that of the blanks: with a disk that often fails there, they come late.
TEST(KnowledgeErasure, ACrashBehindBlanksThatFailedDoesToo) {
  std::mt19937_64 dice(3);
  crash_often([&](int sync) { return sync > 1 && dice() % 3 != 0; });
}

TEST(KnowledgeErasure, WithAKeyTheSame) {
  std::mt19937_64 dice(4);
  crash_often([&](int sync) { return sync > 1 && dice() % 3 == 0; }, HashSecret::fixed(1));
}

// Of version 1, which named no lines: what its changes left goes at the start.
constexpr const char* kOldFile =
    R"({"format":"kvilt knowledge base","version":1,"tenant":"a","name":"x","created":1}
{"put":{"id":"p","title":"","text":"old p","created":1,"tokens":3}}
{"put":{"id":"q","title":"","text":"old q","created":1,"tokens":3}}
{"put":{"id":"p","title":"","text":"new p","created":1,"tokens":3}}
{"remove":"q"}
{"put":{"id":"r","title":"","text":"new r","created":1,"tokens":3}}
)";

TEST(KnowledgeErasure, FilesOfVersion1AreWrittenAnew) {
  const KnowledgeFolder folder;
  ASSERT_TRUE(opened_bases(folder.path())->create("a", "x").ok());
  const std::string file = folder.only_file();
  for (const bool room : {true, false}) {
    write_whole(file, kOldFile);
    if (!room) fs::create_directory(file + ".new");  // no file can be written there
    for (int start = 0; start < 2; ++start) {
      const auto bases = opened_bases(folder.path());
      EXPECT_EQ(texts_in(*bases), (Texts{{"p", "new p"}, {"r", "new r"}}));
      for (const char* gone : {"old p", "old q", "remove"}) EXPECT_FALSE(has(folder.bytes(), gone)) << gone << room;
      EXPECT_EQ(has(folder.bytes(), R"("version":2)"), room);
    }
    EXPECT_TRUE(opened_bases(folder.path())->remove("a", "x", "p").ok()) << "and it goes on";
    EXPECT_FALSE(has(folder.bytes(), "new p"));
    EXPECT_EQ(texts_in(*opened_bases(folder.path())), (Texts{{"r", "new r"}}));
  }
}

// Bytes of a file that another one takes the place of outlive its name.
TEST(KnowledgeErasure, AFileThatIsReplacedIsOverwrittenFirst) {
  const KnowledgeFolder folder;
  ASSERT_TRUE(opened_bases(folder.path())->create("a", "x").ok());
  const std::string file = folder.only_file(), replaced = folder.path() + "/replaced";
  write_whole(file, kOldFile);
  fs::create_hard_link(file, replaced);
  (void)opened_bases(folder.path());
  EXPECT_FALSE(fs::equivalent(file, replaced)) << "power";
  std::ifstream in(replaced, std::ios::binary);
  const std::string left{std::istreambuf_iterator<char>(in), {}};
  for (const char* gone : {"old p", "old q"}) EXPECT_FALSE(has(left, gone)) << left;
}

// Nobody reads a line that a later one makes void; any other must be whole, and so must what makes lines void.
TEST(KnowledgeErasure, OnlyVoidLinesMayBeDamaged) {
  const KnowledgeFolder folder;
  ASSERT_TRUE(opened_bases(folder.path())->create("a", "x").ok());
  const std::string file = folder.only_file(), head = folder.bytes();
  const std::string at = std::to_string(head.size());
  const std::string put = R"({"put":{"id":"p","title":"","text":"t","created":1,"tokens":3}})";
  for (const std::string& good :
       {"damaged\n{\"void\":[" + at + "]}\n", put + "\n{\"void\":[" + at + "]}\n", std::string("   \n")}) {
    write_whole(file, head + good);
    EXPECT_EQ(texts_in(*opened_bases(folder.path())), Texts{}) << good;
    EXPECT_FALSE(has(folder.bytes(), "damaged"));
  }
  // What the second line says of others is nothing, since the third makes it void.
  const std::string second = std::to_string(head.size() + put.size() + 1);
  write_whole(file, head + put + "\n{\"void\":[99]}\n{\"void\":[" + second + "]}\n");
  EXPECT_EQ(texts_in(*opened_bases(folder.path())), (Texts{{"p", "t"}}));
  for (const std::string& bad : {std::string("damaged\n"), "damaged\n{\"void\":[" + at + "5]}\n",
                                 put + "\n{\"void\":[0]}\n", put + "\n{\"void\":[\"" + at + "\"]}\n",
                                 "{\"void\":[" + at + "]}\n", put + "\n{\"void\":3}\n", std::string("\n")}) {
    write_whole(file, head + bad);
    const auto out = KnowledgeBases::open(folder.path());
    ASSERT_FALSE(out.ok()) << bad;
    EXPECT_TRUE(has(out.error().message, file + ":")) << out.error().message;
  }
}

}  // namespace
}  // namespace kvilt::server
