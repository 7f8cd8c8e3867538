// Opening models: the shipped ones, their facts, and GGUF = safetensors on the same weights.
#include "model/model_file.h"
#include "tensor/dequantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>

namespace kvilt {
namespace {

const std::string kModels = "tests/data/models/";

std::unique_ptr<ModelFile> open_or_fail(const std::string& path) {
  auto model = open_model(path);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return model.ok() ? std::move(model).value() : nullptr;
}

std::vector<float> values(const Tensor& tensor) {
  std::vector<float> out(static_cast<size_t>(tensor.rows * tensor.cols));
  dequantize(tensor.dtype, tensor.data, out.size(), out.data());
  return out;
}

// Puts rows of a GGUF q or k back in halves: interleaved pair (2i, 2i+1) holds what halves keep at (i, i + E/2).
std::vector<float> halves_rows(const Tensor& tensor, int head_dim) {
  const std::vector<float> stored = values(tensor);
  std::vector<float> out(stored.size());
  for (int64_t r = 0; r < tensor.rows; ++r) {
    const int64_t head = r / head_dim, e = r % head_dim;
    const int64_t target = head * head_dim + (e % 2 == 0 ? e / 2 : head_dim / 2 + e / 2);
    std::copy_n(stored.begin() + r * tensor.cols, tensor.cols, out.begin() + target * tensor.cols);
  }
  return out;
}

TEST(ModelFile, GgufEqualsSafetensorsOnTheSameWeights) {
  const auto gguf = open_or_fail(kModels + "stories260K/derived-stories260K-F32.gguf");
  const auto hf = open_or_fail(kModels + "stories260K/derived-hf");
  ASSERT_TRUE(gguf && hf);
  EXPECT_EQ(gguf->config.rope.pairs, RopePairs::kInterleaved);
  EXPECT_EQ(hf->config.rope.pairs, RopePairs::kHalves);
  EXPECT_EQ(gguf->config.rope.inv_freq, hf->config.rope.inv_freq);
  EXPECT_EQ(gguf->config.rms_eps, hf->config.rms_eps);
  EXPECT_EQ(values(gguf->weights.embedding), values(hf->weights.embedding));
  EXPECT_EQ(values(gguf->weights.final_norm), values(hf->weights.final_norm));
  EXPECT_TRUE(gguf->config.tied_embeddings && hf->config.tied_embeddings);
  EXPECT_EQ(gguf->weights.lm_head.w.data, gguf->weights.embedding.data);
  EXPECT_EQ(hf->weights.lm_head.w.data, hf->weights.embedding.data);
  ASSERT_EQ(gguf->weights.layers.size(), 5u);
  ASSERT_EQ(hf->weights.layers.size(), 5u);
  for (size_t l = 0; l < 5; ++l) {
    const LayerWeights &a = gguf->weights.layers[l], &b = hf->weights.layers[l];
    EXPECT_EQ(halves_rows(a.q.w, gguf->config.E), values(b.q.w));
    EXPECT_EQ(halves_rows(a.k.w, gguf->config.E), values(b.k.w));
    EXPECT_NE(values(a.q.w), values(b.q.w)) << "power check: the rows must differ before un-permuting";
    for (const auto member :
         {&LayerWeights::v, &LayerWeights::o, &LayerWeights::gate, &LayerWeights::up, &LayerWeights::down}) {
      EXPECT_EQ(values((a.*member).w), values((b.*member).w));
      EXPECT_FALSE((a.*member).bias);
    }
    EXPECT_EQ(values(a.attn_norm), values(b.attn_norm));
    EXPECT_EQ(values(a.ffn_norm), values(b.ffn_norm));
  }
  EXPECT_NE(gguf->fingerprint, hf->fingerprint);
}

TEST(ModelFile, ProbeIsAQwen3WithNormsAndTiedEmbeddings) {
  const auto model = open_or_fail(kModels + "probe-1M");
  ASSERT_TRUE(model);
  const ModelConfig& c = model->config;
  EXPECT_EQ(c.arch, "qwen3");
  EXPECT_EQ(std::vector<int>({c.D, c.H, c.G, c.E, c.F, c.L, c.V, c.context}),
            std::vector<int>({128, 4, 2, 32, 384, 6, 1024, 4096}));
  EXPECT_TRUE(c.qk_norm && c.tied_embeddings);
  EXPECT_EQ(c.eos_ids, std::vector<int32_t>{2});
  EXPECT_EQ(c.bos_token, "<bos>");
  EXPECT_FALSE(c.add_bos);
  EXPECT_TRUE(model->weights.layers[5].q_norm);
  EXPECT_EQ(model->weights.layers[5].k_norm.cols, 32);
  EXPECT_FALSE(model->weights.layers[5].q.bias);
  ASSERT_TRUE(model->tokenizer);
  EXPECT_EQ(model->fingerprint, open_or_fail(kModels + "probe-1M")->fingerprint);
}

TEST(ModelFile, AttoHasEveryBias) {
  const auto model = open_or_fail(kModels + "llama3-atto-1M/derived-hf");
  ASSERT_TRUE(model);
  EXPECT_FALSE(model->config.tied_embeddings);
  EXPECT_NE(model->weights.lm_head.w.data, model->weights.embedding.data);
  EXPECT_EQ(model->weights.lm_head.bias.cols, 2048);
  for (const LayerWeights& layer : model->weights.layers) {
    EXPECT_TRUE(layer.q.bias && layer.k.bias && layer.v.bias && layer.gate.bias && layer.up.bias);
  }
  EXPECT_EQ(model->config.eos_ids, std::vector<int32_t>{2046});
  EXPECT_TRUE(model->config.add_bos);
}

TEST(ModelFile, RealModel) {
  const char* home = std::getenv("HOME");
  const std::string path = std::string(home ? home : "") + "/.cache/kvilt/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there; scripts/get_model fetches it";
  const auto model = open_or_fail(path);
  ASSERT_TRUE(model);
  const ModelConfig& c = model->config;
  EXPECT_EQ(c.arch, "qwen2");
  EXPECT_EQ(std::vector<int>({c.D, c.H, c.G, c.E, c.F, c.L, c.V, c.context}),
            std::vector<int>({896, 14, 2, 64, 4864, 24, 151936, 32768}));
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_FALSE(c.tied_embeddings);
  EXPECT_EQ(model->weights.layers[0].down.w.dtype, DType::kQ6_K);
  EXPECT_EQ(model->weights.lm_head.w.dtype, DType::kQ8_0);
  EXPECT_EQ(model->weights.embedding.dtype, DType::kQ5_0);
  EXPECT_TRUE(model->weights.layers[23].k.bias);
  EXPECT_TRUE(std::ranges::find(c.eos_ids, 151645) != c.eos_ids.end());
  EXPECT_NE(model->chat_template.find("<|im_start|>"), std::string::npos);
  EXPECT_EQ(model->description, "GGUF Q4_K_M, 291 tensors, 469 MiB");
}

TEST(ModelFile, SaysWhatIsNotThere) {
  EXPECT_EQ(open_model("no/such/model.gguf").error().code, Code::kNotFound);
  EXPECT_EQ(open_model("tests/data").error().code, Code::kNotFound);     // a folder without config.json
  EXPECT_EQ(open_model("CMakeLists.txt").error().code, Code::kCorrupt);  // not a GGUF
}

}  // namespace
}  // namespace kvilt
