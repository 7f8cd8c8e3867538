// The hub's cache folder as it is written: hashes, locks, links, and blobs that have their name once they are right.
#include "hub/hub_store.h"

#include <gtest/gtest.h>

#include "hub/fake_hub_for_test.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

const HubName kName{"org", "name", ""};

const auto never = [] { return false; };

RepoFile file_of(const std::string& path, const std::string& contents) {
  return {path, static_cast<int64_t>(contents.size()), hash_for_test(contents, true)};
}

Status append_text(GrowingBlob& blob, const std::string& text) { return blob.append(std::as_bytes(std::span(text))); }

TEST(ContentHash, IsSha256OrGits) {
  EXPECT_EQ(hash_for_test("abc", true), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_for_test("hello\n", false), "ce013625030ba8dba906f756967f9e9ca394464a") << "git hash-object";
  EXPECT_NE(hash_for_test("hello", false), hash_for_test("hello\n", false)) << "power";
  EXPECT_FALSE(ContentHash::is_name("../../../etc/passwd"));
  EXPECT_FALSE(ContentHash::is_name(std::string(64, 'G')));
}

using HubStoreTest = HubFolderTest;

TEST_F(HubStoreTest, ABlobHasItsNameWhenItIsRight) {
  const HubStore store(folder_.string(), kName);
  const RepoFile file = file_of("a", "some text");
  {
    auto blob = GrowingBlob::open(store, file, never);
    ASSERT_TRUE(blob.ok()) << blob.error().message;
    ASSERT_TRUE(append_text(*blob, "some").ok());
    EXPECT_FALSE(store.has(file));
  }
  EXPECT_EQ(store.begun_bytes(file), 4);
  auto blob = GrowingBlob::open(store, file, never);
  ASSERT_TRUE(blob.ok());
  EXPECT_EQ(blob->bytes(), 4) << "it goes on";
  ASSERT_TRUE(append_text(*blob, " text").ok());
  EXPECT_EQ(append_text(*blob, "!").error().code, Code::kCorrupt);
  EXPECT_TRUE(*blob->finish());
  EXPECT_TRUE(store.has(file));
  EXPECT_EQ(slurp_for_test(store.blob(file)), "some text");
  EXPECT_FALSE(fs::exists(store.incomplete(file)));
}

TEST_F(HubStoreTest, AWrongBlobIsGone) {
  const HubStore store(folder_.string(), kName);
  const RepoFile file = file_of("a", "some text");
  auto blob = GrowingBlob::open(store, file, never);
  ASSERT_TRUE(append_text(*blob, "some test").ok());
  EXPECT_FALSE(*blob->finish());
  EXPECT_FALSE(store.has(file));
  EXPECT_FALSE(fs::exists(store.incomplete(file)));
}

TEST_F(HubStoreTest, WhatIsLongerThanTheFileIsNotTakenOver) {
  const HubStore store(folder_.string(), kName);
  const RepoFile file = file_of("a", "some text");
  fs::create_directories(store.incomplete(file).parent_path());
  std::ofstream(store.incomplete(file)) << "some text and more";
  auto blob = GrowingBlob::open(store, file, never);
  ASSERT_TRUE(blob.ok());
  EXPECT_EQ(blob->bytes(), 0);
}

TEST_F(HubStoreTest, OneHoldsALock) {
  const HubStore store(folder_.string(), kName);
  const RepoFile file = file_of("a", "x"), other = file_of("b", "y");
  {
    const auto lock = store.try_lock(file);
    ASSERT_TRUE(lock.ok() && lock->has_value());
    EXPECT_FALSE(store.try_lock(file)->has_value());
    EXPECT_TRUE(store.try_lock(other)->has_value());
    fs::remove(folder_ / ".locks/models--org--name" / (file.blob + ".lock"));
    EXPECT_TRUE(store.try_lock(file)->has_value()) << "power: it is the file's lock, not the store's";
  }
  EXPECT_TRUE(store.try_lock(file)->has_value());
}

TEST_F(HubStoreTest, LinksAreRelativeAndReplaced) {
  const HubStore store(folder_.string(), kName);
  RepoListing listing;
  listing.commit = FakeHub::kCommit;
  RepoFile file = file_of("deep/er/a", "old");
  ASSERT_TRUE(store.publish(listing, std::span(&file, 1), "pr/1").ok());
  EXPECT_EQ(fs::read_symlink(snapshot() / "deep/er/a").string(), "../../../../blobs/" + file.blob);
  EXPECT_EQ(slurp_for_test(model() / "refs/pr/1"), FakeHub::kCommit);
  file.blob = hash_for_test("new", true);
  ASSERT_TRUE(store.publish(listing, std::span(&file, 1), FakeHub::kCommit).ok());
  EXPECT_EQ(fs::read_symlink(snapshot() / "deep/er/a").string(), "../../../../blobs/" + file.blob);
  EXPECT_FALSE(fs::exists(model() / "refs" / FakeHub::kCommit)) << "a commit needs no ref";
  RepoFile below = file_of("deep/er/a/b", "x");
  EXPECT_FALSE(store.publish(listing, std::span(&below, 1), "main").ok()) << "below a file";
  EXPECT_FALSE(fs::exists(model() / "refs/main"));
}

}  // namespace
}  // namespace kvilt
