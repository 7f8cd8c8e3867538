// Thousands of damaged files: each is opened and, if it opens, used. Nothing may crash, hang, or take memory without
// bound, and every refusal names the file. Seeded, so that a failure repeats; run it under ASan and UBSan too (preset
// asan).
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/mapped_file.h"
#include "model/model_file.h"
#include "tensor/dequantize.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;
const std::string kModelFolder = "tests/data/models/";
constexpr long kMaxResidentKiB = 2 << 20;

class MutationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("kvilt_mutation_" + std::to_string(::getpid()) + "_" +
                                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override {
    fs::remove_all(folder_);
    EXPECT_GT(opened_, 0) << "power check: some damage must go unnoticed by the reader and be used";
    EXPECT_GT(refused_, 0) << "power check: some damage must be noticed";
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    EXPECT_LT(usage.ru_maxrss, kMaxResidentKiB);
    std::printf("opened %d, refused %d\n", opened_, refused_);
  }

  static std::string read(const std::string& path) {
    auto text = read_file(path, 64 << 20);
    EXPECT_TRUE(text.ok());
    return std::move(text).value();
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  std::string path(const std::string& name = "") const { return (folder_ / name).string(); }

  void try_open(const std::string& path) {
    const auto model = open_model(path);
    if (model.ok()) {
      ++opened_;
      return use(**model);
    }
    ++refused_;
    EXPECT_NE(model.error().code, Code::kInternal) << model.error().message;
    EXPECT_NE(model.error().message.find(folder_.string()), std::string::npos)
        << "the message does not name the file: " << model.error().message;
    EXPECT_LT(model.error().message.size(), 2000u);
  }

  // What an engine does first: reads shapes, weights, angles, and encodes.
  static void use(const ModelFile& model) {
    const ModelConfig& c = model.config;
    ASSERT_TRUE(c.L > 0 && c.D > 0 && c.H > 0 && c.G > 0 && c.H % c.G == 0 && c.E >= 2 && c.F > 0 && c.V > 0 &&
                c.context > 0);
    ASSERT_EQ(c.rope.inv_freq.size(), static_cast<size_t>(c.rope.rotary_dim / 2));
    for (const double f : c.rope.inv_freq) {
      ASSERT_TRUE(std::isfinite(f) && (f > 0 || (f == 0 && !c.local_layers.empty())));
    }
    ASSERT_TRUE(std::isfinite(c.rope.magnitude) && std::isfinite(c.rms_eps));
    for (const int32_t id : c.eos_ids) ASSERT_TRUE(id >= 0 && id < c.V);
    ASSERT_EQ(model.weights.layers.size(), static_cast<size_t>(c.L));
    touch(model.weights.embedding, c.V, c.D);
    touch(model.weights.lm_head.w, c.V, c.D);
    if (c.layer_input > 0) touch(model.weights.layer_embedding, c.V, int64_t{c.L} * c.layer_input);
    for (int l = 0; l < c.L; ++l) {
      const LayerWeights& layer = model.weights.layers[l];
      const KvHeads heads = c.heads_at(l);
      ASSERT_TRUE(c.kv_layer(l) < c.kv_layers() && c.H % heads.G == 0 && c.G % heads.G == 0 && heads.E <= c.E);
      touch(layer.q.w, int64_t{c.H} * heads.E, c.D);
      if (c.writes_kv(l)) touch(layer.k.w, int64_t{heads.G} * heads.E, c.D);
      touch(layer.o.w, c.D, int64_t{c.H} * heads.E);
      if (layer.experts.empty()) touch(layer.down.w, c.D, c.ffn_at(l));
      for (const ExpertWeights& expert : layer.experts) touch(expert.down.w, c.D, c.experts.F);
      if (layer.k.bias) touch(layer.k.bias, 1, int64_t{heads.G} * heads.E);
    }
    if (!model.tokenizer) return;
    const auto ids =
        model.tokenizer->encode("Once upon a time, needle 17\n", {.add_special = true, .parse_special = true});
    if (!ids.ok()) return;
    for (const int32_t id : *ids) ASSERT_TRUE(id >= 0 && id < c.V);
    model.tokenizer->decode(*ids);
  }

  static void touch(const Tensor& tensor, int64_t rows, int64_t cols) {
    ASSERT_TRUE(tensor);
    ASSERT_EQ(tensor.rows, rows);
    ASSERT_EQ(tensor.cols, cols);
    std::vector<float> row(static_cast<size_t>(cols));
    for (const int64_t r : {int64_t{0}, rows - 1}) {
      dequantize(tensor.dtype, tensor.data + static_cast<size_t>(r) * tensor.row_bytes(), row.size(), row.data());
    }
  }

  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  // One to four small damages in the first `header` bytes.
  std::string damage(std::string bytes, size_t header) {
    static constexpr uint64_t kWords[] = {0,          1,          2,          8,          9,          0x7f,
                                          0xff,       0xffff,     0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32,
                                          1ull << 48, 1ull << 62, 1ull << 63, ~0ull,      ~0ull - 31};
    for (size_t n = 1 + below(4); n > 0; --n) {
      const size_t at = below(header);
      const uint64_t word = kWords[below(std::size(kWords))];
      const size_t width = std::min<size_t>(size_t{1} << below(4), bytes.size() - at);
      const size_t kind = below(16);  // mostly in place: what shifts the rest seldom opens
      if (kind < 6) bytes[at] = static_cast<char>(below(256));
      if (kind >= 6 && kind < 10) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
      if (kind >= 10 && kind < 13) std::memcpy(bytes.data() + at, &word, width);
      if (kind == 13) {
        const size_t size = std::min(below(40) + 1, bytes.size() - header);
        std::memmove(bytes.data() + at, bytes.data() + below(header), size);
      }
      if (kind == 14) bytes.erase(at, 1 + below(16));
      if (kind == 15) bytes.insert(at, std::string(1 + below(16), static_cast<char>(below(256))));
      header = std::min(header, bytes.size() - 64);
    }
    return bytes;
  }

  // Replaces, removes or doubles one value somewhere in a JSON document.
  nlohmann::json damage(nlohmann::json document) {
    const nlohmann::json values[] = {nullptr,
                                     true,
                                     -1,
                                     0,
                                     1,
                                     2,
                                     3,
                                     1e308,
                                     -0.5,
                                     18446744073709551615ull,
                                     4294967296,
                                     "",
                                     "F16",
                                     "a",
                                     std::string(5000, 'x'),
                                     nlohmann::json::array(),
                                     nlohmann::json::object(),
                                     {1, 2},
                                     {{"rope_type", "yarn"}},
                                     "llama",
                                     "yarn"};
    nlohmann::json* node = &document;
    while (node->is_structured() && !node->empty()) {
      auto it = node->begin();
      std::advance(it, below(node->size()));
      node = &*it;
      if (below(8) == 0) break;
    }
    *node = values[below(std::size(values))];
    return document;
  }

  // Damages bytes half of the time, else the document; a safetensors file's document is its header.
  std::string damage_file(const std::string& name, const std::string& good) {
    if (below(10) == 0) return good.substr(0, 1 + below(good.size() - 1));
    if (!name.ends_with(".safetensors")) {
      if (below(3) == 0) return damage(good + std::string(64, ' '), good.size());
      return damage(nlohmann::json::parse(good)).dump();
    }
    uint64_t header_bytes;
    std::memcpy(&header_bytes, good.data(), sizeof header_bytes);
    if (below(2) == 0) return damage(good, 8 + header_bytes);
    const std::string header = damage(nlohmann::json::parse(good.substr(8, header_bytes))).dump();
    header_bytes = header.size();
    std::string out(sizeof header_bytes, '\0');
    std::memcpy(out.data(), &header_bytes, sizeof header_bytes);
    uint64_t old_bytes;
    std::memcpy(&old_bytes, good.data(), sizeof old_bytes);
    return out + header + good.substr(8 + old_bytes);
  }

  fs::path folder_;
  std::mt19937_64 random_{7};
  int opened_ = 0, refused_ = 0;
};

TEST_F(MutationTest, GgufHeader) {
  const std::string good = read(kModelFolder + "stories260K/derived-stories260K-F32.gguf");
  constexpr size_t kHeader = 14208;  // metadata and tensor table
  for (int i = 0; i < 3000; ++i) {
    SCOPED_TRACE(i);
    // Most damage in the vocabulary goes unnoticed, so the table and the first keys get more.
    const size_t header = i % 3 == 0 ? kHeader : 1000;
    std::string bytes = good;
    if (i % 3 == 2) {  // the tensor table: rotate it to the front of the damage
      const std::string table = damage(good.substr(kHeader - 2900, 2900 + 256), 2900);
      bytes = good.substr(0, kHeader - 2900) + table + good.substr(kHeader + 256);
    } else {
      bytes = damage(std::move(bytes), header);
    }
    write("m.gguf", bytes);
    try_open(path("m.gguf"));
    if (HasFatalFailure()) return;
  }
}

TEST_F(MutationTest, GgufTruncated) {
  const std::string good = read(kModelFolder + "stories260K/derived-stories260K-F32.gguf");
  write("m.gguf", good);
  try_open(path("m.gguf"));  // whole: the one that opens
  for (int i = 0; i < 500; ++i) {
    SCOPED_TRACE(i);
    write("m.gguf", good.substr(0, 1 + (i % 2 ? below(15000) : below(good.size() - 1))));
    try_open(path("m.gguf"));
  }
  EXPECT_EQ(opened_, 1);
}

TEST_F(MutationTest, HuggingFaceFolder) {
  const std::vector<std::string> sources = {kModelFolder + "probe-1M",
                                            "tests/data/fixtures/qwen3",
                                            "tests/data/fixtures/gemma4-shared",
                                            "tests/data/fixtures/gemma4-moe",
                                            "tests/data/fixtures/llama-yarn",
                                            "tests/data/fixtures/qwen3-moe-mixed",
                                            kModelFolder + "stories260K/derived-hf"};
  for (const std::string& source : sources) {
    SCOPED_TRACE(source);
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(source)) {
      const std::string name = entry.path().filename().string();
      if (!name.ends_with(".safetensors") && !name.ends_with("config.json") && name != "tokenizer.json" &&
          !name.ends_with(".index.json")) {
        continue;
      }
      names.push_back(name);
      write(name, read(entry.path().string()));
    }
    std::ranges::sort(names);
    for (int i = 0; i < 400; ++i) {
      SCOPED_TRACE(i);
      const std::string& name = names[below(names.size())];
      SCOPED_TRACE(name);
      const std::string good = read(source + "/" + name);
      write(name, damage_file(name, good));
      try_open(path());
      if (HasFatalFailure()) return;
      write(name, good);
    }
    try_open(path());
  }
}

}  // namespace
}  // namespace kvilt
