// Configs and weights of whole tiny models: every type and architecture opens, and each contradiction is named.
#include "model/read_config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/model_file.h"
#include "model/tiny_gguf_for_test.h"
#include "tensor/dequantize.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

class TempFolder {
 public:
  TempFolder() : path_(fs::temp_directory_path() / ("kvilt_config_" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~TempFolder() { fs::remove_all(path_); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return (path_ / name).string();
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

Result<std::unique_ptr<ModelFile>> open_tiny(const TinyGguf& tiny) {
  const TempFolder folder;
  return open_model(folder.write("tiny.gguf", tiny.build()));  // a mapping outlives its file's name
}

void expect_refused(const TinyGguf& tiny, Code code, const std::string& part) {
  const auto model = open_tiny(tiny);
  ASSERT_FALSE(model.ok()) << part;
  EXPECT_EQ(model.error().code, code) << model.error().message;
  EXPECT_NE(model.error().message.find(part), std::string::npos) << model.error().message << " wanted " << part;
  EXPECT_NE(model.error().message.find("tiny.gguf"), std::string::npos) << model.error().message;
}

TEST(GgufModel, EveryTensorTypeOpens) {
  for (const auto& type : kTinyTypes) {
    TinyGguf tiny;
    tiny.type = type.id, tiny.dtype = type.dtype;
    const auto model = open_tiny(tiny);
    ASSERT_TRUE(model.ok()) << model.error().message;
    const Tensor& down = (*model)->weights.layers[1].down.w;
    EXPECT_EQ(down.dtype, type.dtype);
    std::vector<float> values(down.rows * down.cols);
    dequantize(down.dtype, down.data, values.size(), values.data());
    double sum = 0;
    for (const float v : values) sum += std::fabs(v);
    EXPECT_TRUE(sum > 0 && sum < static_cast<double>(values.size())) << dtype_info(type.dtype).name << " " << sum;
  }
}

TEST(GgufModel, IsDescribedByItsTypes) {
  const auto described = [](uint32_t file_type) {
    TinyGguf tiny;
    tiny.metadata = [=](GgufBytes& b) { b.u32("general.file_type", file_type); };
    return (*open_tiny(tiny))->description;
  };
  EXPECT_TRUE(described(15).starts_with("GGUF Q4_K_M, ")) << described(15);
  EXPECT_TRUE(described(21).starts_with("GGUF Q2_K_S, ")) << described(21);
  EXPECT_TRUE(described(25).starts_with("GGUF IQ4_NL, ")) << described(25);
  EXPECT_TRUE(described(30).starts_with("GGUF IQ4_XS, ")) << described(30);
  EXPECT_TRUE(described(38).starts_with("GGUF MXFP4_MOE, ")) << described(38);
  EXPECT_TRUE(described(999).starts_with("GGUF F32, ")) << "what most bytes are: " << described(999);
}

TEST(GgufModel, ArchitecturesDifferByTheirRow) {
  TinyGguf tiny;
  auto model = open_tiny(tiny);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ((*model)->config.rope.pairs, RopePairs::kInterleaved);
  EXPECT_TRUE((*model)->config.add_bos);
  EXPECT_EQ((*model)->config.bos_token, "<s>");
  EXPECT_EQ((*model)->config.V, 40);  // rows, though the vocabulary has 29 tokens
  tiny.arch = "qwen2";
  tiny.qkv_bias = true;
  model = open_tiny(tiny);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ((*model)->config.rope.pairs, RopePairs::kHalves);
  EXPECT_TRUE((*model)->weights.layers[0].v.bias);
  tiny.arch = "qwen3";
  tiny.qkv_bias = false;
  tiny.qk_norm = true;
  tiny.head = true;
  model = open_tiny(tiny);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_TRUE((*model)->weights.layers[1].k_norm);
  EXPECT_FALSE((*model)->config.tied_embeddings);
  EXPECT_NE((*model)->weights.lm_head.w.data, (*model)->weights.embedding.data);
}

TEST(GgufModel, IsNamedByItsFileWhereItSaysNoName) {
  TinyGguf tiny;
  EXPECT_EQ((*open_tiny(tiny))->config.name, "tiny");
  tiny.metadata = [](GgufBytes& b) { b.string("general.name", "Its Own"); };
  EXPECT_EQ((*open_tiny(tiny))->config.name, "Its Own");
}

TEST(GgufModel, NamesTheTensorThatIsMissingOrMisshapen) {
  const auto without = [](const std::string& missing) {
    TinyGguf tiny;
    tiny.keep = [missing](const std::string& name, auto&, auto&) { return name != missing; };
    return tiny;
  };
  for (const char* name : {"token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight", "blk.1.ffn_norm.weight",
                           "blk.1.ffn_down.weight"}) {
    expect_refused(without(name), Code::kCorrupt, std::string("tensor '") + name + "' is missing");
  }
  TinyGguf tiny = without("");
  tiny.keep = [](const std::string& name, std::vector<uint64_t>& dims, uint32_t&) {
    if (name == "blk.1.attn_k.weight") std::swap(dims[0], dims[1]);
    return true;
  };
  expect_refused(tiny, Code::kCorrupt, "tensor 'blk.1.attn_k.weight' is 256 x 128; the configuration says 128 x 256");
  tiny.keep = [](const std::string& name, std::vector<uint64_t>&, uint32_t& type) {
    if (name == "blk.0.ffn_up.weight") type = 21;
    return true;
  };
  expect_refused(tiny, Code::kUnsupported, "tensor 'blk.0.ffn_up.weight' has type IQ3_S");
  for (int type = 0; type <= static_cast<int>(kLastDType); ++type) {  // those that may be had instead
    if (static_cast<DType>(type) != DType::kI8)
      expect_refused(tiny, Code::kUnsupported, std::string(dtype_info(static_cast<DType>(type)).name));
  }
  TinyGguf qwen = without("");
  qwen.arch = "qwen2";
  expect_refused(qwen, Code::kCorrupt, "tensor 'blk.0.attn_q.bias' is missing");
  qwen.arch = "qwen3";
  expect_refused(qwen, Code::kCorrupt, "tensor 'blk.0.attn_q_norm.weight' is missing");
  TinyGguf spare = without("");  // a type that nobody needs
  spare.tensors = [](GgufBytes& out) { out.tensor("spare.weight", {256}, 16, std::string(66, 'x')); };
  EXPECT_TRUE(open_tiny(spare).ok());
}

TEST(GgufModel, NamesTheSettingThatIsWrong) {
  const struct {
    const char* part;
    Code code;
    std::function<void(GgufBytes&)> add;
  } cases[] = {
      {"expert_used_count' is missing", Code::kCorrupt, [](GgufBytes& b) { b.u32("llama.expert_count", 8); }},
      {"2 experts for each token, but there are 1", Code::kCorrupt,
       [](GgufBytes& b) { b.u32("llama.expert_count", 1).u32("llama.expert_used_count", 2); }},
      {"expert_shared_count", Code::kUnsupported,
       [](GgufBytes& b) {
         b.u32("llama.expert_count", 2).u32("llama.expert_used_count", 1).u32("llama.expert_shared_count", 1);
       }},
      {"expert_gating_func", Code::kUnsupported,
       [](GgufBytes& b) {
         b.u32("llama.expert_count", 2).u32("llama.expert_used_count", 1).u32("llama.expert_gating_func", 2);
       }},
      {"tensor 'blk.0.ffn_gate_inp.weight' is missing", Code::kCorrupt,
       [](GgufBytes& b) { b.u32("llama.expert_count", 2).u32("llama.expert_used_count", 1); }},
      {"sliding_window", Code::kCorrupt, [](GgufBytes& b) { b.f32("llama.attention.sliding_window", 8); }},
      {"sliding_window", Code::kUnsupported,
       [](GgufBytes& b) {
         b.u32("llama.attention.sliding_window", 8).u32("llama.attention.sliding_window_pattern", 2);
       }},
      {"part 1 of 3", Code::kInvalidArgument, [](GgufBytes& b) { b.u32("split.count", 3); }},
      {"'split.count'", Code::kCorrupt, [](GgufBytes& b) { b.u32("split.count", 70000); }},
      {"value heads", Code::kUnsupported, [](GgufBytes& b) { b.u32("llama.attention.value_length", 32); }},
      {"rope.freq_base", Code::kCorrupt, [](GgufBytes& b) { b.string("llama.rope.freq_base", "x"); }},
      {"rope.freq_base", Code::kCorrupt, [](GgufBytes& b) { b.f32("llama.rope.freq_base", NAN); }},
      {"even number", Code::kCorrupt, [](GgufBytes& b) { b.u32("llama.rope.dimension_count", 65); }},
      {"even number", Code::kCorrupt, [](GgufBytes& b) { b.u32("llama.rope.dimension_count", 128); }},
      {"'spiral'", Code::kUnsupported, [](GgufBytes& b) { b.string("llama.rope.scaling.type", "spiral"); }},
      {"layer_norm_rms_epsilon", Code::kCorrupt,
       [](GgufBytes& b) { b.f32("llama.attention.layer_norm_rms_epsilon", -1); }},
      {"chat_template", Code::kCorrupt, [](GgufBytes& b) { b.u32("tokenizer.chat_template", 3); }},
      {"eot_token_id", Code::kCorrupt, [](GgufBytes& b) { b.u32("tokenizer.ggml.eot_token_id", 29); }},
      {"'general.name' must be a text, not a text that is not UTF-8", Code::kCorrupt,
       [](GgufBytes& b) { b.string("general.name", "\xc3"); }},
      {"add_bos_token", Code::kCorrupt, [](GgufBytes& b) { b.u32("tokenizer.ggml.add_bos_token", 1); }},
  };
  for (const auto& c : cases) {
    TinyGguf tiny;
    tiny.metadata = c.add;
    expect_refused(tiny, c.code, c.part);
  }
  for (const char* key :
       {"embedding_length", "attention.head_count", "feed_forward_length", "block_count", "context_length"}) {
    TinyGguf tiny;
    tiny.keep_key = [key](const std::string& name) { return name != key; };
    expect_refused(tiny, Code::kCorrupt, std::string("'llama.") + key + "' is missing");
  }
  TinyGguf tiny;
  tiny.arch = "mamba";
  expect_refused(tiny, Code::kUnsupported, "architecture 'mamba'");
  tiny.arch = "llama";
  tiny.V = 20;
  expect_refused(tiny, Code::kCorrupt, "the tokenizer has 29 tokens, the embedding 20 rows");
  tiny = {};
  tiny.G = 3;
  expect_refused(tiny, Code::kCorrupt, "no multiple of 3 KV heads");
}

TEST(GgufModel, HonoursRopeFactorsAndSettingsPerLayer) {
  TinyGguf tiny;
  const auto plain = open_tiny(tiny);
  std::string factors;
  for (int i = 0; i < 32; ++i) factors += GgufBytes::raw(1.0f + static_cast<float>(i));
  tiny.tensors = [&](GgufBytes& out) { out.tensor("rope_freqs.weight", {32}, 0, factors); };
  tiny.keep_key = [](const std::string& key) { return key != "attention.head_count_kv"; };
  tiny.metadata = [](GgufBytes& b) { b.numbers<int32_t>("llama.attention.head_count_kv", GgufType::kI32, {2, 2}); };
  const auto model = open_tiny(tiny);
  ASSERT_TRUE(plain.ok());
  ASSERT_TRUE(model.ok()) << model.error().message;
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_DOUBLE_EQ((*model)->config.rope.inv_freq[i] * (1 + static_cast<double>(i)),
                     (*plain)->config.rope.inv_freq[i]);
  }
  EXPECT_EQ((*model)->config.G, 2);
  EXPECT_NE((*model)->fingerprint, (*plain)->fingerprint);
  tiny.metadata = [](GgufBytes& b) { b.numbers<int32_t>("llama.attention.head_count_kv", GgufType::kI32, {2, 1}); };
  expect_refused(tiny, Code::kCorrupt, "array of different values");
  tiny.metadata = [](GgufBytes& b) { b.u32("llama.attention.head_count_kv", 2); };
  factors.resize(16);
  tiny.tensors = [&](GgufBytes& out) { out.tensor("rope_freqs.weight", {4}, 0, factors); };
  expect_refused(tiny, Code::kCorrupt, "frequency factor");
}

TEST(GgufModel, MayHaveATemplateForTools) {
  TinyGguf tiny;
  tiny.metadata = [](GgufBytes& b) { b.string("tokenizer.chat_template", "D"); };
  EXPECT_EQ((*open_tiny(tiny))->tools_template, "");
  tiny.metadata = [](GgufBytes& b) {
    b.string("tokenizer.chat_template", "D").string("tokenizer.chat_template.tool_use", "T");
  };
  const auto model = open_tiny(tiny);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ((*model)->chat_template, "D");
  EXPECT_EQ((*model)->tools_template, "T");
}

TEST(GgufModel, OneWindowForAllLayers) {
  TinyGguf tiny;
  const auto plain = open_tiny(tiny);
  tiny.metadata = [](GgufBytes& b) { b.u32("llama.attention.sliding_window", 8); };
  const auto model = open_tiny(tiny);
  ASSERT_TRUE(plain.ok() && model.ok());
  EXPECT_EQ((*plain)->config.window_at(1), -1);
  EXPECT_EQ((*model)->config.window, std::vector<int>({8, 8}));
  EXPECT_NE((*model)->fingerprint, (*plain)->fingerprint);
  tiny.arch = "qwen2";
  tiny.qkv_bias = true;
  tiny.metadata = [](GgufBytes& b) { b.u32("qwen2.attention.sliding_window", 8); };
  expect_refused(tiny, Code::kUnsupported, "sliding_window");
}

TinyGguf tiny_gemma3(std::function<void(GgufBytes&)> metadata) {
  TinyGguf tiny;
  tiny.arch = "gemma3";
  tiny.L = 7;
  tiny.qk_norm = tiny.post_norms = true;
  tiny.metadata = std::move(metadata);
  return tiny;
}

TEST(GgufModel, Gemma3HasLocalLayersWithARopeOfTheirOwn) {
  const auto model = open_tiny(tiny_gemma3([](GgufBytes& b) {
    b.u32("gemma3.attention.sliding_window", 8).f32("gemma3.rope.freq_base", 1e6);
    b.string("gemma3.rope.scaling.type", "linear").f32("gemma3.rope.scaling.factor", 8);
  }));
  ASSERT_TRUE(model.ok()) << model.error().message;
  const ModelConfig& c = (*model)->config;
  EXPECT_EQ(c.window, std::vector<int>({8, 8, 8, 8, 8, -1, 8}));
  EXPECT_EQ(c.local_layers, std::vector<uint8_t>({1, 1, 1, 1, 1, 0, 1}));
  EXPECT_EQ(&c.ropes().at(5), &c.rope);
  EXPECT_EQ(&c.ropes().at(6), &c.local_rope);
  EXPECT_NEAR(c.rope.inv_freq[1], std::pow(1e6, -1.0 / 32) / 8, 1e-12);
  EXPECT_NEAR(c.local_rope.inv_freq[1], std::pow(1e4, -1.0 / 32), 1e-12);
  EXPECT_EQ(c.gate, Gate::kGeluTanh);
  EXPECT_FALSE(c.norms_plus_one);  // the file's weights have it
  EXPECT_EQ(c.embedding_scale, 16);
  EXPECT_EQ(c.attention_scale, 0.125f);
  EXPECT_TRUE((*model)->weights.layers[6].post_ffn_norm);

  const auto other = open_tiny(tiny_gemma3([](GgufBytes& b) {
    b.u32("gemma3.attention.sliding_window", 8).u32("gemma3.attention.sliding_window_pattern", 2);
    b.f32("gemma3.rope.freq_base_swa", 500).f32("gemma3.final_logit_softcapping", 30);
  }));
  ASSERT_TRUE(other.ok()) << other.error().message;
  EXPECT_EQ((*other)->config.local_layers, std::vector<uint8_t>({1, 0, 1, 0, 1, 0, 1}));
  EXPECT_EQ((*other)->config.local_rope.theta, 500);
  EXPECT_EQ((*other)->config.final_softcap, 30);
  EXPECT_NE((*other)->fingerprint, (*model)->fingerprint);

  const auto global = open_tiny(tiny_gemma3([](GgufBytes&) {}));  // no window: no layer is local
  ASSERT_TRUE(global.ok()) << global.error().message;
  EXPECT_TRUE((*global)->config.window.empty() && (*global)->config.local_layers.empty());
  expect_refused(tiny_gemma3([](GgufBytes& b) { b.f32("gemma3.attn_logit_softcapping", 50); }), Code::kUnsupported,
                 "attn_logit_softcapping");
  TinyGguf without = tiny_gemma3([](GgufBytes&) {});
  without.post_norms = false;
  expect_refused(without, Code::kCorrupt, "post_attention_norm");
}

TEST(GgufModel, Phi3IsFusedAndItsFactorsAreTensors) {
  for (const auto& type : {kTinyTypes[0], kTinyTypes[8]}) {  // F32 and Q4_K: parts begin at whole rows
    TinyGguf tiny;
    tiny.arch = "phi3";
    tiny.type = type.id, tiny.dtype = type.dtype;
    tiny.fused = tiny.head = true;
    std::string factors(32 * 4, '\0');
    for (int i = 0; i < 32; ++i) {
      const float x = 2;
      std::memcpy(factors.data() + 4 * i, &x, 4);
    }
    tiny.metadata = [](GgufBytes& b) {
      b.u32("phi3.attention.sliding_window", 9).u32("phi3.rope.scaling.original_context_length", 16);
      b.f32("phi3.rope.scaling.attn_factor", 1.25f);
    };
    tiny.tensors = [&](GgufBytes& out) {
      out.tensor("rope_factors_short.weight", {32}, 0, factors).tensor("rope_factors_long.weight", {32}, 0, factors);
    };
    const auto model = open_tiny(tiny);
    ASSERT_TRUE(model.ok()) << model.error().message;
    const ModelConfig& c = (*model)->config;
    EXPECT_EQ(c.window, std::vector<int>({9, 9}));
    EXPECT_TRUE(c.rope.length_dependent);
    EXPECT_EQ(c.long_above, 16);
    EXPECT_EQ(c.context, 64);
    EXPECT_EQ(c.rope.magnitude, 1.25);
    const LayerWeights& layer = (*model)->weights.layers[1];
    EXPECT_EQ(layer.q.w.rows, 256);
    EXPECT_EQ(layer.v.w.rows, 128);
    EXPECT_EQ(layer.k.w.data, layer.q.w.data + 256 * layer.q.w.row_bytes());
    EXPECT_EQ(layer.v.w.data, layer.k.w.data + 128 * layer.q.w.row_bytes());
    EXPECT_EQ(layer.up.w.data, layer.gate.w.data + 256 * layer.gate.w.row_bytes());
  }
  TinyGguf tiny;  // one part without the other: the message names what is missing
  tiny.keep = [](const std::string& name, auto&, auto&) { return name != "blk.1.ffn_gate.weight"; };
  expect_refused(tiny, Code::kCorrupt, "tensor 'blk.1.ffn_gate.weight' is missing");
}

TEST(GgufModel, YarnEqualsHuggingFaces) {
  TinyGguf tiny;
  tiny.metadata = [](GgufBytes& b) {
    b.string("llama.rope.scaling.type", "yarn")
        .f32("llama.rope.scaling.factor", 4)
        .u32("llama.rope.scaling.original_context_length", 16);
  };
  const auto gguf = open_tiny(tiny);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  const auto hf =
      read_hf_config({{"model_type", "llama"},
                      {"hidden_size", 256},
                      {"num_attention_heads", 4},
                      {"intermediate_size", 1},
                      {"num_hidden_layers", 1},
                      {"vocab_size", 1},
                      {"max_position_embeddings", 64},
                      {"rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 16}}}},
                     "c");
  ASSERT_TRUE(hf.ok()) << hf.error().message;
  EXPECT_EQ((*gguf)->config.rope.inv_freq, hf->config.rope.inv_freq);
  EXPECT_EQ((*gguf)->config.rope.magnitude, hf->config.rope.magnitude);
  EXPECT_GT(hf->config.rope.magnitude, 1.1);
}

// A file without a kind of scaling means the linear one, as in llama.cpp; what the kind does not use is refused.
TEST(GgufModel, NoScaleOfRopeIsDropped) {
  TinyGguf tiny;
  const auto plain = open_tiny(tiny);
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    tiny.metadata = [key](GgufBytes& b) { b.f32(key, 4); };
    const auto scaled = open_tiny(tiny);
    ASSERT_TRUE(scaled.ok()) << scaled.error().message;
    for (size_t i = 0; i < 32; ++i)
      EXPECT_DOUBLE_EQ((*scaled)->config.rope.inv_freq[i] * 4, (*plain)->config.rope.inv_freq[i]) << key;
  }
  for (const float none : {0.0f, 1.0f}) {  // the format's ways to write it
    tiny.metadata = [none](GgufBytes& b) { b.f32("llama.rope.scaling.factor", none); };
    EXPECT_EQ((*open_tiny(tiny))->config.rope.inv_freq, (*plain)->config.rope.inv_freq);
  }
  tiny.metadata = [](GgufBytes& b) { b.string("llama.rope.scaling.type", "none").f32("llama.rope.scaling.factor", 4); };
  expect_refused(tiny, Code::kUnsupported, "'rope.scaling.factor' is 4, which RoPE of the kind 'none' does not use");
  for (const char* kind : {"none", "linear"}) {
    tiny.metadata = [kind](GgufBytes& b) {
      b.string("llama.rope.scaling.type", kind).f32("llama.rope.scaling.attn_factor", 1.5f);
    };
    expect_refused(tiny, Code::kUnsupported, "'rope.scaling.attn_factor' is 1.5");
  }
}

TEST(Fingerprint, NamesContentsAndConfig) {
  TinyGguf tiny;
  const std::string base = (*open_tiny(tiny))->fingerprint;
  EXPECT_EQ(base.size(), 32u);
  EXPECT_EQ(base, (*open_tiny(tiny))->fingerprint);
  const TempFolder folder;
  std::string bytes = tiny.build();
  bytes[bytes.size() - 5] ^= 1;  // the last tensor's last kilobyte
  EXPECT_NE(base, (*open_model(folder.write("changed.gguf", bytes)))->fingerprint);
  tiny.metadata = [](GgufBytes& b) { b.f32("llama.rope.freq_base", 20000); };
  EXPECT_NE(base, (*open_tiny(tiny))->fingerprint);
}

}  // namespace
}  // namespace kvilt
