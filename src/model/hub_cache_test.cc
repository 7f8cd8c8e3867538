// Names of the hub are found where huggingface_hub puts them, and nowhere else.
#include "model/hub_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace kvilt {
namespace {

namespace fs = std::filesystem;

class HubCacheTest : public ::testing::Test {
 protected:
  HubCacheTest() : hub_(fs::temp_directory_path() / ("kvilt_hub_" + std::to_string(::getpid()))) {
    write("models--org--one/refs/main", "c0ffee\n");
    write("models--org--one/snapshots/c0ffee/one-Q8_0.gguf", "x");
    write("models--org--one/snapshots/c0ffee/mmproj-one.gguf", "x");
    write("models--org--one/snapshots/dead/old.gguf", "x");
    write("models--org--many/snapshots/abc/many-q4_k_m.gguf", "x");
    write("models--org--many/snapshots/abc/many-Q4_K.gguf", "x");
    write("models--org--many/snapshots/abc/Q6_K/many-Q6_K-00002-of-00002.gguf", "x");
    write("models--org--many/snapshots/abc/Q6_K/many-Q6_K-00001-of-00002.gguf", "x");
    write("models--org--folder/snapshots/abc/config.json", "{}");
    write("models--org--bad/refs/main", "../../..");
    write("models--org--gone/refs/main", "c0ffee");
    write("models--org--empty/snapshots/abc/README.md", "x");
  }
  ~HubCacheTest() override { fs::remove_all(hub_); }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((hub_ / name).parent_path());
    std::ofstream(hub_ / name) << text;
  }
  std::string found(const std::string& name) const {
    const auto out = find_model_in(hub_.string(), name);
    return out.ok() ? fs::path(*out).lexically_relative(hub_).string() : "error: " + out.error().message;
  }
  bool refused(const std::string& name, const std::string& part) const {
    const std::string out = found(name);
    return out.starts_with("error: ") && out.find(part) != std::string::npos;
  }

  const fs::path hub_;
};

TEST_F(HubCacheTest, FindsFilesByRepositoryAndTag) {
  EXPECT_EQ(found("org/one"), "models--org--one/snapshots/c0ffee/one-Q8_0.gguf") << "refs/main says which snapshot";
  EXPECT_EQ(found("org/one:q8_0"), "models--org--one/snapshots/c0ffee/one-Q8_0.gguf");
  EXPECT_EQ(found("org/many"), "models--org--many/snapshots/abc/many-q4_k_m.gguf") << "the usual one of several";
  EXPECT_EQ(found("org/many:Q4_K"), "models--org--many/snapshots/abc/many-Q4_K.gguf") << "not Q4_K_M";
  EXPECT_EQ(found("org/many:Q6_K"), "models--org--many/snapshots/abc/Q6_K/many-Q6_K-00001-of-00002.gguf");
  EXPECT_EQ(found("org/folder"), "models--org--folder/snapshots/abc");
}

TEST_F(HubCacheTest, SaysWhatIsThereInstead) {
  EXPECT_TRUE(refused("org/many:Q5_0", "many-Q4_K.gguf")) << found("org/many:Q5_0");
  EXPECT_TRUE(refused("org/many:Q5_0", "kvilt pull org/many:Q5_0")) << found("org/many:Q5_0");
  EXPECT_TRUE(refused("org/many:many", "more than one file")) << found("org/many:many");
  EXPECT_TRUE(refused("org/none", "kvilt pull org/none")) << found("org/none");
  EXPECT_TRUE(refused("org/bad", "not a commit")) << found("org/bad");
  EXPECT_TRUE(refused("org/empty", "neither a GGUF file nor")) << found("org/empty");
  EXPECT_TRUE(refused("org/gone", "kvilt pull org/gone")) << found("org/gone");
}

// What a newer commit's snapshot lacks is still on the disk.
TEST_F(HubCacheTest, LooksIntoOlderSnapshots) {
  EXPECT_EQ(found("org/one:old"), "models--org--one/snapshots/dead/old.gguf");
  write("models--org--one/snapshots/beef/else.gguf", "x");
  EXPECT_EQ(found("org/one:old"), "models--org--one/snapshots/dead/old.gguf");
  EXPECT_EQ(found("org/one:q8_0"), "models--org--one/snapshots/c0ffee/one-Q8_0.gguf") << "main's, where it has one";
  const fs::path link = hub_ / "models--org--one/snapshots/beef/old.gguf";
  fs::create_symlink("../dead/old.gguf", link);
  EXPECT_TRUE(found("org/one:old").ends_with("/old.gguf")) << "one file: " << found("org/one:old");
  fs::remove(link);
  write("models--org--one/snapshots/beef/old.gguf", "y");
  EXPECT_TRUE(refused("org/one:old", "snapshots/beef/old.gguf")) << found("org/one:old");
  EXPECT_TRUE(refused("org/one:old", "snapshots/dead/old.gguf")) << found("org/one:old");
}

TEST_F(HubCacheTest, PathsStayPaths) {
  for (const char* path : {"model.gguf", "/no/such/model.gguf", "a/b/c.gguf", "./org/one", "../one", "org/one:", ""})
    EXPECT_EQ(*find_model_in(hub_.string(), path), path);
  const fs::path here = fs::path(hub_) / "models--org--one";
  EXPECT_EQ(*find_model_in(hub_.string(), here.string()), here.string());
}

TEST_F(HubCacheTest, TheFolderIsTheOneThatOtherProgramsUse) {
  ::setenv("HF_HUB_CACHE", hub_.c_str(), 1);
  EXPECT_TRUE(find_model("org/one").ok());
  ::unsetenv("HF_HUB_CACHE");
  EXPECT_FALSE(find_model("org/one").ok()) << "power";
}

}  // namespace
}  // namespace kvilt
