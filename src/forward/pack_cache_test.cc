// The cache of packed weights: what it gives equals packing bit by bit, and no damage gets through.
#include "forward/pack_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "kernels/dispatch.h"
#include "kernels/reference/backend.h"
#include "model/tiny_gguf_for_test.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

std::string read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write_all(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class PackCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    if (backend_.layout().name.empty()) GTEST_SKIP() << "this machine's backend keeps nothing";
    std::string name = (fs::temp_directory_path() / "kvilt_pack_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    cache_ = root_ / "cache";
    write_model(12, DType::kQ4_K);
  }
  void TearDown() override {
    if (!root_.empty()) fs::remove_all(root_);
  }

  void write_model(uint32_t type, DType dtype) {
    TinyGguf tiny;
    tiny.type = type;
    tiny.dtype = dtype;
    write_all(root_ / "tiny.gguf", tiny.build());
    auto opened = open_model((root_ / "tiny.gguf").string());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    model_ = std::move(opened).value();
  }

  std::vector<WeightView> views() const {
    std::vector<WeightView> out;
    for (const LayerWeights& layer : model_->weights.layers) {
      for (const LinearWeights* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
        out.push_back({linear->w.data, linear->w.dtype, linear->w.rows, linear->w.cols});
    }
    const Tensor& head = model_->weights.lm_head.w;
    out.push_back({head.data, head.dtype, head.rows, head.cols});
    return out;
  }

  // A start: every weight through a cache, each compared with one just packed. Returns {adopted, packed}.
  std::pair<int, int> start(const Backend& backend, const fs::path& folder) {
    PackCache cache(folder.string(), *model_, backend, pool_);
    std::vector<std::unique_ptr<PackedWeight>> weights;
    for (const WeightView& view : views()) {
      weights.push_back(cache.get(view));
      const auto fresh = backend.pack(view, pool_);
      const auto& got = weights.back()->image;
      EXPECT_EQ(got.size(), fresh->image.size());
      if (got.empty() || got.size() != fresh->image.size()) continue;
      EXPECT_EQ(std::memcmp(got.data(), fresh->image.data(), got.size()), 0);
      EXPECT_EQ(weights.back()->N, view.rows);
      EXPECT_EQ(weights.back()->bytes, fresh->bytes);
    }
    cache.keep();
    return {cache.adopted(), cache.packed()};
  }
  std::pair<int, int> start() { return start(backend_, cache_); }

  std::vector<fs::path> kept() const {
    std::vector<fs::path> out;
    std::error_code none;
    for (const auto& item : fs::directory_iterator(cache_, none)) out.push_back(item.path());
    return out;
  }

  const Backend& backend_ = *find_backend("auto").value();
  ThreadPool pool_{2};
  fs::path root_, cache_;
  std::unique_ptr<ModelFile> model_;
};

using Counts = std::pair<int, int>;
constexpr int kWeights = 15;

TEST_F(PackCacheTest, ASecondStartPacksNothingWhateverTheType) {
  for (const auto& [id, dtype] : kTinyTypes) {
    write_model(id, dtype);
    EXPECT_EQ(start(), (Counts{0, kWeights})) << dtype_info(dtype).name;
    EXPECT_EQ(start(), (Counts{kWeights, 0})) << dtype_info(dtype).name;
    EXPECT_EQ(kept().size(), 1u) << "the model's former file goes";
  }
}

TEST_F(PackCacheTest, AFolderIsOptional) {
  EXPECT_EQ(start(backend_, ""), (Counts{0, 0}));
  EXPECT_EQ(start(reference::backend(), cache_).first, 0);  // it points into the model's file
  EXPECT_FALSE(fs::exists(cache_));
  write_all(cache_, "a file where the folder should be");
  EXPECT_EQ(start(), (Counts{0, kWeights}));
}

TEST_F(PackCacheTest, AChangedModelIsPackedAgain) {
  start();
  const fs::path before = kept().at(0);
  fs::last_write_time(root_ / "tiny.gguf", fs::last_write_time(root_ / "tiny.gguf") + std::chrono::seconds(1));
  model_ = std::move(open_model((root_ / "tiny.gguf").string())).value();
  EXPECT_EQ(start(), (Counts{0, kWeights}));
  ASSERT_EQ(kept().size(), 1u);
  EXPECT_NE(kept().at(0), before);
}

// Every damaged file is refused (and replaced): each bit matters, be it in header, index, padding or contents.
TEST_F(PackCacheTest, DamageNeverGetsThrough) {
  start();
  const fs::path path = kept().at(0);
  const std::string good = read_all(path);
  Digest key;
  std::memcpy(key.data(), good.data() + 32, key.size());
  const auto opens = [&](const std::string& bytes) {
    write_all(path, bytes);
    return PackFile::open(path.string(), key, pool_).ok();
  };
  EXPECT_TRUE(opens(good));
  for (size_t at = 0; at < good.size(); at += at < 80 ? 1 : at < 2048 ? 37 : 8191) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1 << at % 8);
    EXPECT_FALSE(opens(bad)) << "byte " << at;
  }
  for (const size_t size : {size_t{1}, size_t{63}, size_t{64}, size_t{1000}, good.size() / 2, good.size() - 1}) {
    EXPECT_FALSE(opens(good.substr(0, size))) << size << " bytes";
  }
  EXPECT_FALSE(opens(good + '\0'));
  EXPECT_FALSE(opens(std::string(good.size(), '\0')));
  Digest other = key;
  other[0] ^= 1;
  write_all(path, good);
  EXPECT_FALSE(PackFile::open(path.string(), other, pool_).ok());

  write_all(path, good.substr(0, good.size() - 1));
  EXPECT_EQ(start(), (Counts{0, kWeights}));
  EXPECT_EQ(read_all(path), good);  // written again
  EXPECT_EQ(start(), (Counts{kWeights, 0}));
}

TEST_F(PackCacheTest, WhatAKilledWriterLeftGoesAndALiveOnesFileStays) {
  start();
  const fs::path path = kept().at(0);
  const fs::path dead = path.string() + ".aaaaaa", alive = path.string() + ".bbbbbb", others = cache_ / "notes.pack";
  for (const fs::path& file : {dead, alive, others}) write_all(file, "x");
  const int fd = ::open(alive.c_str(), O_RDONLY);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  fs::remove(path);
  start();
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(alive));
  EXPECT_TRUE(fs::exists(others));
  ::close(fd);
}

TEST_F(PackCacheTest, ManyWritersAndReadersAtOnce) {
  std::vector<std::thread> threads;
  std::mutex packing;  // a backend packs on one thread at a time (backend.h); files are what is shared here
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        ThreadPool pool(1);
        PackCache cache(cache_.string(), *model_, backend_, pool);
        std::vector<std::unique_ptr<PackedWeight>> weights;  // keep() writes what they hold
        for (const WeightView& view : views()) {
          std::lock_guard lock(packing);
          const auto fresh = backend_.pack(view, pool);
          weights.push_back(cache.get(view));
          EXPECT_EQ(std::memcmp(weights.back()->image.data(), fresh->image.data(), fresh->image.size()), 0);
        }
        cache.keep();
        std::error_code none;
        const std::vector<fs::path> files = kept();  // once: others remove files too
        if (round % 2 == 0 && !files.empty()) fs::remove(files[0], none);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  start();
  EXPECT_EQ(start(), (Counts{kWeights, 0}));
}

// A file larger than one block, so that images cross the blocks' borders and the copy into huge pages is taken.
TEST(PackFile, ImagesAcrossBlocks) {
  std::string name = (fs::temp_directory_path() / "kvilt_pack_XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  ThreadPool pool(2);
  std::vector<std::vector<std::byte>> images;
  std::vector<PackEntry> entries;
  for (const size_t size : {size_t{1}, size_t{5} << 20, size_t{64}, (size_t{9} << 20) + 7, size_t{0}, size_t{100}}) {
    std::vector<std::byte> image(size);
    for (size_t i = 0; i < size; ++i) image[i] = static_cast<std::byte>(i * 31 + size);
    images.push_back(std::move(image));
  }
  for (size_t i = 0; i < images.size(); ++i) {
    entries.push_back({{0, DType::kQ8_0, 1000 - i, static_cast<int64_t>(i), 32}, images[i]});
  }
  const std::string path = name + "/a.pack";
  const Digest key = {1, 2, 3};
  ASSERT_TRUE(PackFile::write(path, key, entries, pool).ok());
  auto file = PackFile::open(path, key, pool);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->size(), images.size());
  for (size_t i = 0; i < images.size(); ++i) {
    const PackEntry* entry = file->find(entries[i].source);
    ASSERT_NE(entry, nullptr);
    ASSERT_EQ(entry->image.size(), images[i].size());
    EXPECT_TRUE(std::equal(images[i].begin(), images[i].end(), entry->image.begin())) << i;  // one has no bytes
  }
  EXPECT_EQ(file->find({0, DType::kQ8_0, 1, 1, 32}), nullptr);
  fs::remove_all(name);
}

}  // namespace
}  // namespace kvilt
