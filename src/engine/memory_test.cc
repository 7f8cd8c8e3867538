// What the system's files say of memory, laid out in texts and in a folder: no container is needed.
#include "engine/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace kvilt {
namespace {

constexpr int64_t kMiB = 1 << 20, kGiB = 1 << 30;

constexpr const char* kMeminfo =
    "MemTotal:       16384000 kB\nMemFree:         1024000 kB\nMemAvailable:   12288000 kB\nCached:          100 kB\n";

TEST(Memory, TheMachineCountsCachesButNotOurOwnFiles) {
  EXPECT_EQ(available_in_machine(kMeminfo, 0), 12288000LL * 1024);
  EXPECT_EQ(available_in_machine(kMeminfo, 100 * kMiB), 12288000LL * 1024 - 100 * kMiB);
  EXPECT_EQ(available_in_machine(kMeminfo, 1000 * kGiB), 0);
  EXPECT_EQ(mapped_bytes("Name:\tkvilt\nRssAnon:\t  7 kB\nRssFile:\t  2048 kB\n"), 2 * kMiB);
  for (const char* wrong : {"", "MemFree: 5 kB\n", "MemAvailable:", "MemAvailable: much\n", "MemAvailable: -1 kB\n",
                            "MemAvailable: 99999999999999999999 kB\n", "MemAvailable: 9223372036854775807 kB\n"}) {
    EXPECT_EQ(available_in_machine(wrong, 0), std::nullopt) << wrong;
  }
  EXPECT_EQ(mapped_bytes("RssFile:\n"), 0);
}

TEST(Memory, AGroupLeavesItsLimitLessWhatItHolds) {
  EXPECT_EQ(available_in_group({"209715200\n", "104857600\n", "anon 1\ninactive_file 0\n"}, 0), 100 * kMiB);
  // Version 2 without a limit, version 1 without one, and what nobody understands.
  EXPECT_EQ(available_in_group({"max\n", "5\n", ""}, 0), std::nullopt);
  EXPECT_GT(available_in_group({"9223372036854771712\n", "1000\n", "total_inactive_file 99999\n"}, 0), 1000 * kGiB);
  EXPECT_EQ(available_in_group({"", "", ""}, 0), std::nullopt);
  EXPECT_EQ(available_in_group({"200\n", "", ""}, 0), 200);
  EXPECT_EQ(available_in_group({"200\n", "300\n", ""}, 0), 0);
}

TEST(Memory, AGroupDropsFilesThatNobodyNeeds) {
  const GroupTexts two{"200", "180", "file 1\ninactive_file 100\n"};
  EXPECT_EQ(available_in_group(two, 0), 120);
  EXPECT_EQ(available_in_group(two, 60), 60);  // 60 of the 100 are our weights
  EXPECT_EQ(available_in_group(two, 500), 20);
  const GroupTexts one{"200", "180", "inactive_file 5\ntotal_inactive_file 100\n"};  // version 1: with those inside
  EXPECT_EQ(available_in_group(one, 0), 120);
  EXPECT_EQ(available_in_group({"200", "180", "inactive_file 1000\n"}, 0), 200);
}

TEST(Memory, EveryGroupAroundUsIsAsked) {
  using Folders = std::vector<std::string>;
  EXPECT_EQ(group_folders("0::/a/b\n"), (Folders{"/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"}));
  EXPECT_EQ(group_folders("0::/"), Folders{"/sys/fs/cgroup"});
  EXPECT_EQ(group_folders("9:name=systemd:/\n5:cpu,memory:/x\n4:cpuset:/y\n"),
            (Folders{"/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/memory"}));
  EXPECT_EQ(group_folders(""), Folders{});
  EXPECT_EQ(group_folders("nonsense\n:\n1:memory\n0::\n0::relative\n"), Folders{});
}

TEST(Memory, ThePoolIsHalfOfThat) {
  EXPECT_EQ(default_kv_bytes(200 * kMiB), 100 * kMiB);
  EXPECT_EQ(default_kv_bytes(100 * kGiB), 4 * kGiB);
  EXPECT_EQ(default_kv_bytes(std::nullopt), 4 * kGiB);
  EXPECT_EQ(default_kv_bytes(0), 0);
  EXPECT_EQ(pool_warning(0, 0), "");
  EXPECT_EQ(pool_warning(kGiB, kGiB), "");
  EXPECT_EQ(pool_warning(kGiB, std::nullopt), "");
  const std::string warning = pool_warning(kGiB + kMiB, 512 * kMiB);
  for (const char* word : {"1025 MiB", "--kv-bytes", "512 MiB"}) EXPECT_NE(warning.find(word), std::string::npos);
}

// A file system as a container sees it.
class MemoryTree : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "kvilt_memory_XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    root_ = path;
    write("/proc/meminfo", kMeminfo);
    write("/proc/self/status", "RssFile: 1024 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(MemoryTree, WithoutGroupsTheMachineCounts) {
  EXPECT_EQ(available_memory(root_), 12288000LL * 1024 - kMiB);
  write("/proc/self/cgroup", "0::/a\n");
  EXPECT_EQ(available_memory(root_), 12288000LL * 1024 - kMiB);
  EXPECT_EQ(available_memory(root_ + "/nowhere"), std::nullopt);
}

TEST_F(MemoryTree, TheTightestGroupOfVersion2Counts) {
  write("/proc/self/cgroup", "0::/pod/container\n");
  write("/sys/fs/cgroup/pod/container/memory.max", "max\n");
  write("/sys/fs/cgroup/pod/container/memory.current", "1\n");
  EXPECT_EQ(available_memory(root_), 12288000LL * 1024 - kMiB);
  write("/sys/fs/cgroup/pod/memory.max", "209715200\n");
  write("/sys/fs/cgroup/pod/memory.current", "104857600\n");
  write("/sys/fs/cgroup/pod/memory.stat", "anon 50\ninactive_file 3145728\n");
  EXPECT_EQ(available_memory(root_), 102 * kMiB);
  write("/sys/fs/cgroup/pod/container/memory.max", "1048576\n");
  EXPECT_EQ(available_memory(root_), kMiB - 1);
}

// Docker mounts the container's own group where /proc/self/cgroup names one on the host.
TEST_F(MemoryTree, Version1CountsToo) {
  write("/proc/self/cgroup", "4:memory:/docker/f00\n0::/\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "209715200\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "104857600\n");
  EXPECT_EQ(available_memory(root_), 100 * kMiB);
}

}  // namespace
}  // namespace kvilt
