// Limit cases on every architecture, bit for bit, each with a setting that must differ: windows, experts, local layers
// and norms must not break what tests/limits_test.cc shows in full on one model.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "kernels/dispatch.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

constexpr uint32_t kVocab = 288;  // of every fixture

std::vector<int32_t> text(int n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int32_t& id : out) id = static_cast<int32_t>(rng() % kVocab);
  return out;
}

// Longer than any fixture's window. The piece before the question, a, is shorter: after a longer one, a window of 40
// would hide from three layers' last rows all that a's new neighbours change.
const std::vector<int32_t> head = text(9, 1), a = text(38, 2), b = text(90, 3), question = text(9, 4);
const std::vector<int32_t> known = join({head, a, b}), asked = join({head, b, a, question});

class Architectures : public testing::TestWithParam<std::tuple<std::string, std::string_view>> {
 protected:
  static std::unique_ptr<Engine> engine(int chunk = 512, const char* placement = "zero-copy", int threads = 2,
                                        const char* kv_type = "auto") {
    EngineOptions options{.model = std::get<0>(GetParam()),
                          .backend = std::string(std::get<1>(GetParam())),
                          .threads = threads,
                          .kv_type = *parse_kv_type(kv_type),
                          .chunk_tokens = chunk};
    options.placement = *parse_placement(placement);
    options.kv_bytes = int64_t{16} << 20;
    return open_for_test(options);
  }
  static Request request(const std::vector<int32_t>& ids, const char* policy = "full", Params params = {}) {
    return unpublished(ids, policy, std::move(params), 5);
  }
};

TEST_P(Architectures, ChunkedIsWholeAndBatchedIsAlone) {
  auto whole = engine(), chunked = engine(13, "zero-copy", 1);
  const Outcome full = ask_ok(*whole, request(asked)), other = ask_ok(*whole, request(known));
  expect_equal(ask_ok(*chunked, request(asked)), full);
  EXPECT_NE(full.completion.logits.first, other.completion.logits.first);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(chunked->submit(request(i % 2 == 0 ? asked : known), sinks.back()).ok());
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    const Outcome& want = i % 2 == 0 ? full : other;
    EXPECT_EQ(sinks[i]->wait().logits.first, want.completion.logits.first);
    EXPECT_EQ(sinks[i]->ids, want.ids);
  }
}

TEST_P(Architectures, AnExactPrefixIsExact) {
  auto one = engine();
  if (!one->info().reuse) GTEST_SKIP() << "LongRope shows it below";
  const Outcome full = ask_ok(*one, request(join({known, question})));
  warm(*one, known);
  const Outcome hit = ask_ok(*one, request(join({known, question}), "prefix"));
  EXPECT_EQ(hit.usage().prefix, static_cast<int>(known.size()));
  expect_equal(hit, full);
}

TEST_P(Architectures, RecomputingAllIsFullAndNaiveIsNot) {
  auto one = engine(50);
  if (!one->info().reuse) GTEST_SKIP() << one->info().reuse_refused;
  warm(*one, known);
  const Outcome full = ask_ok(*one, request(asked)), naive = ask_ok(*one, request(asked, "naive"));
  EXPECT_EQ(naive.usage().reused, static_cast<int>(a.size() + b.size()));
  EXPECT_GT(max_abs_difference(naive.completion.logits.first, full.completion.logits.first), 1e-3) << "power";
  for (const char* phase1 : {"all", "catchup"}) {
    for (const char* l_star : {"0", "2"}) {
      if (l_star[0] == '2' && one->info().layers < 3)
        continue;  // layer 1, the last one, would have been computed in full
      const Outcome all = ask_ok(*one, request(asked, "sparsex", {{"k", "1"}, {"phase1", phase1}, {"l_star", l_star}}));
      EXPECT_EQ(all.usage().recomputed, all.usage().reused);
      expect_equal(all, full);
      const Outcome few =
          ask_ok(*one, request(asked, "sparsex", {{"k", "0.05"}, {"b", "1"}, {"phase1", phase1}, {"l_star", l_star}}));
      EXPECT_LT(few.usage().recomputed, few.usage().reused / 2);
      EXPECT_NE(few.completion.logits.first, full.completion.logits.first) << "power";
    }
  }
  expect_equal(ask_ok(*one, request(asked, "sparsex", {{"k", "0"}, {"b", "0"}, {"l_star", "0"}})), naive);
}

TEST_P(Architectures, CopiedIsZeroCopyToRounding) {
  auto zero = engine(512, "zero-copy", 2, "f32"), copy = engine(512, "copy", 2, "f32");
  if (!zero->info().reuse) GTEST_SKIP() << zero->info().reuse_refused;
  for (Engine* each : {zero.get(), copy.get()}) warm(*each, known);
  const Outcome x = ask_ok(*zero, request(asked, "naive")), y = ask_ok(*copy, request(asked, "naive"));
  EXPECT_EQ(x.usage().reused, y.usage().reused);
  EXPECT_LT(max_abs_difference(x.completion.logits.first, y.completion.logits.first), 1e-3);
}

struct Setting {
  const char* policy;
  Params params;
};
// What keeps blocks, or computes halos, anchors and probes again, on two backends: their kernels are those of above.
class Keepers : public Architectures {};

// With all of them it is full or naive. Blocks are of 8, of which a has 5 and b 12.
TEST_P(Keepers, OfAllAreFullOrNaive) {
  auto one = engine(50);
  if (!one->info().reuse) GTEST_SKIP() << one->info().reuse_refused;
  warm(*one, known);
  const Outcome full = ask_ok(*one, request(asked)), naive = ask_ok(*one, request(asked, "naive"));
  const auto samkv = [](const char* keep, const char* recompute) {
    return Params{{"block", "8"}, {"stable_begin", "0"}, {"keep", keep}, {"recompute", recompute}};
  };
  const std::vector<Setting> all{{"samkv", samkv("1", "all")},
                                 {"samkv", samkv("0.999", "all")},
                                 {"crossquery", {{"halo", "45"}}},
                                 {"crossquery", {{"regime", "b"}, {"l_cut", "0"}}},
                                 {"agentkvshift", {{"r", "1"}}},
                                 {"relaxkv", {{"r", "1"}}},
                                 {"relaxkv", {{"r", "1"}, {"reads", "anchors"}}}};
  const std::vector<Setting> none{{"samkv", samkv("1", "none")},
                                  {"samkv", samkv("0.999", "none")},
                                  {"crossquery", {{"halo", "0"}}},
                                  {"crossquery", {{"regime", "b"}, {"l_cut", "8"}}},
                                  {"multi-infllm", {}},
                                  {"multi-infllm", {{"local", "16"}, {"block", "8"}, {"topk", "99"}}},
                                  {"relaxkv", {{"r", "0"}}}};
  for (const auto& [settings, want] : {std::pair(&all, &full), std::pair(&none, &naive)}) {
    for (const Setting& s : *settings) {
      SCOPED_TRACE(testing::Message() << s.policy << " " << testing::PrintToString(s.params));
      const Outcome out = ask_ok(*one, request(asked, s.policy, s.params));
      EXPECT_EQ(out.usage().recomputed, want == &full ? out.usage().reused : 0);
      expect_equal(out, *want);
    }
  }
  expect_equal(ask_ok(*one, request(asked, "agentkvshift", {{"r", "0"}})),
               ask_ok(*one, request(asked, "cacheblend", {{"r", "0"}})));
}

// With few of them: numbers, the same whatever the chunk, and others than full's.
TEST_P(Keepers, OfFewAreNeither) {
  auto whole = engine(), chunked = engine(13);
  if (!whole->info().reuse) GTEST_SKIP() << whole->info().reuse_refused;
  for (Engine* each : {whole.get(), chunked.get()}) {
    Request request = request_of(known, "crossquery", 0);
    request.policy.params = {{"regime", "b"}, {"l_cut", "4"}};
    ask_ok(*each, std::move(request));
  }
  const Outcome full = ask_ok(*whole, request(asked));
  const Params blocks{{"block", "8"}, {"stable_begin", "0"}, {"keep", "0.5"}};
  Params fused = blocks, far{{"init", "8"}, {"local", "16"}, {"block", "8"}, {"topk", "3"}};
  fused["fate"] = "fuse";
  const Params near = far;
  far["angle"] = "single";
  for (const Setting& s : std::vector<Setting>{{"samkv", blocks},
                                               {"samkv", fused},
                                               {"multi-infllm", near},
                                               {"multi-infllm", far},
                                               {"crossquery", {{"halo", "4"}}},
                                               {"crossquery", {{"halo", "4"}, {"store", "int8"}}},
                                               {"crossquery", {{"regime", "b"}, {"l_cut", "4"}}},
                                               {"agentkvshift", {{"r", "0.2"}}},
                                               {"relaxkv", {{"r", "0.2"}}}}) {
    SCOPED_TRACE(testing::Message() << s.policy << " " << testing::PrintToString(s.params));
    const Outcome out = ask_ok(*whole, request(asked, s.policy, s.params));
    EXPECT_EQ(out.usage().reused, static_cast<int>(a.size() + b.size()));
    for (const float logit : out.completion.logits.first) ASSERT_TRUE(std::isfinite(logit));
    expect_equal(ask_ok(*chunked, request(asked, s.policy, s.params)), out);
    // Its layers 0 and 1 run in full.
    const bool has_more = std::string_view(s.policy) != "agentkvshift" || whole->info().layers > 2;
    has_more ? expect_differ(out, full) : expect_equal(out, full);
  }
}

// Angles that depend on the length: segments are refused with the reason, and a prefix is found on its own side of the
// original context only (128 here).
TEST(LongRope, SegmentsAreRefusedAndAPrefixStaysOnItsSide) {
  const auto open = [] {
    return open_for_test({.model = "tests/data/fixtures/phi3-longrope", .kv_bytes = int64_t{16} << 20});
  };
  const auto ask_for = [](Engine& engine, const std::vector<int32_t>& ids, int answer) {
    return ask_ok(engine, request_of(ids, "prefix", answer));
  };
  auto one = open(), fresh = open();
  EXPECT_FALSE(one->info().reuse);
  const auto refused = one->submit(request_of(known, "naive", 1), std::make_shared<CollectingSink>());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("length of the prompt"), std::string::npos) << refused.error().message;

  const auto start = text(60, 7), within = join({start, text(20, 8)}), beyond = join({within, text(80, 9)});
  ask_for(*one, start, 0);
  const Outcome hit = ask_for(*one, within, 4), alone = ask_for(*fresh, within, 4);
  EXPECT_EQ(hit.usage().prefix, 60);
  EXPECT_EQ(hit.completion.logits.first, alone.completion.logits.first);
  const Outcome longer = ask_for(*one, beyond, 4), again = ask_for(*one, beyond, 4), plain = ask_for(*fresh, beyond, 4);
  for (const Outcome* out : {&longer, &again}) {
    EXPECT_EQ(out->usage().prefix, 0);
    EXPECT_EQ(out->completion.logits.first, plain.completion.logits.first);
    EXPECT_EQ(out->ids, plain.ids);
  }
  // An answer that crosses the border starts again there: from then on it is what the whole text gives.
  const auto prompt = text(120, 10);
  const Outcome crossing = ask_for(*one, prompt, 30);
  std::vector<int32_t> so_far = prompt;
  so_far.insert(so_far.end(), crossing.ids.begin(), crossing.ids.begin() + 20);
  const Outcome rest = ask_for(*fresh, so_far, 10);
  EXPECT_EQ(rest.ids, std::vector<int32_t>(crossing.ids.begin() + 20, crossing.ids.end()));
}

// A copy of the gpt-oss fixture; all sinks of a layer become `sink`, if there is one.
std::string with_sinks(const std::string& name, std::optional<int> layer, float sink) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / ("kvilt_sinks_" + std::to_string(::getpid()) + "_" + name);
  fs::create_directories(folder);
  fs::copy("tests/data/fixtures/gpt-oss", folder, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  if (!layer) return folder.string();
  std::fstream file(folder / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string header(size, ' ');
  file.read(header.data(), static_cast<std::streamsize>(size));
  const auto tensor = nlohmann::json::parse(header)["model.layers." + std::to_string(*layer) + ".self_attn.sinks"];
  const auto begin = tensor["data_offsets"][0].get<uint64_t>(), end = tensor["data_offsets"][1].get<uint64_t>();
  file.seekp(static_cast<std::streamoff>(sizeof size + size + begin));
  const uint16_t bf16 = static_cast<uint16_t>(std::bit_cast<uint32_t>(sink) >> 16);
  for (uint64_t at = begin; at < end; at += sizeof bf16) file.write(reinterpret_cast<const char*>(&bf16), sizeof bf16);
  return folder.string();
}

// Each layer's sinks reach the logits, with a window (0) and without (1), in the prefill and behind a placed piece.
TEST(GptOss, SinksOfEveryLayerCount) {
  const auto logits = [](const std::string& folder, const char* policy) {
    auto one = open_for_test({.model = folder, .kv_bytes = int64_t{16} << 20});
    if (std::string_view(policy) != "full") warm(*one, known);
    const Outcome out = ask_ok(*one, unpublished(asked, policy, {}, 5));
    std::filesystem::remove_all(folder);
    return out.completion.logits.first;
  };
  for (const char* policy : {"full", "naive"}) {
    const std::vector<float> as_is = logits(with_sinks("as_is", {}, 0), policy);
    for (const int layer : {0, 1, 3}) {
      EXPECT_GT(max_abs_difference(logits(with_sinks("large", layer, 6), policy), as_is), 3e-3) << policy << layer;
      const std::vector<float> none = logits(with_sinks("none", layer, -INFINITY), policy);
      EXPECT_NE(none, as_is) << policy << layer;
      EXPECT_EQ(none, logits(with_sinks("tiny", layer, -1e30f), policy)) << "no sink is the limit of small ones";
    }
  }
}

// Rows that see few keys have tasks of their own: with all keys they are the dense rows, sinks and all.
TEST(GptOss, SparseRowsKeepTheSinks) {
  const std::vector<int32_t> prompt = text(300, 11);
  for (const std::string_view backend : backend_names()) {
    auto one = open_for_test({.model = "tests/data/fixtures/gpt-oss",
                              .backend = std::string(backend),
                              .kv_type = KvType::kF32,
                              .kv_bytes = int64_t{16} << 20});
    const auto ask = [&](const char* policy, Params params) {
      return ask_ok(*one, unpublished(prompt, policy, std::move(params), 5));
    };
    const Outcome full = ask("full", {});
    expect_equal(ask("minference", {{"columns", "300"}, {"distances", "0"}}), full);
    expect_equal(ask("loopserve", {{"alpha", "1"}, {"pooled", "16"}}), full);
    const Params few{{"columns", "20"}, {"distances", "10"}, {"rows", "8"}};
    EXPECT_NE(ask("minference", few).completion.logits.first, full.completion.logits.first) << "power";
    // What is skipped is a half of its own, which must not count the sink again: means of one key are dense.
    const auto distance = [&](const char* pooled) {
      const Outcome out = ask("loopserve", {{"alpha", "0.2"}, {"rows", "8"}, {"pooled", pooled}});
      return max_abs_difference(out.completion.logits.first, full.completion.logits.first);
    };
    const double one_key = distance("1");
    EXPECT_LT(one_key, 1e-3) << backend;
    EXPECT_GT(distance("0"), 10 * one_key) << "power";
  }
}

// Rows that are hidden from each other, and answers' rows that choose their keys, have tasks of their own too.
TEST(GptOss, RepairedAndChoosingRowsKeepTheSinks) {
  for (const std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    auto one = open_for_test({.model = "tests/data/fixtures/gpt-oss",
                              .backend = std::string(backend),
                              .kv_type = KvType::kF32,
                              .kv_bytes = int64_t{16} << 20});
    warm(*one, known);
    const auto ask = [&](const char* policy, Params params) {
      Request request = unpublished(asked, policy, std::move(params), 24);
      request.evaluation.forced = text(24, 12);
      return ask_ok(*one, std::move(request));
    };
    const Outcome full = ask("full", {});
    expect_equal(ask("mend", {{"r", "1"}, {"stale", "unseen"}}), full);
    expect_differ(ask("mend", {{"r", "0.2"}, {"stale", "unseen"}}), full);
    for (const char* method : {"loopserve", "snapkv", "tidal", "quest", "h2o"}) {
      SCOPED_TRACE(method);
      Params way{{"decode", method}, {"decode_budget", "1000"}};
      if (std::string_view(method) == "tidal") way.insert({{"decode_dense_layers", "0"}, {"decode_select", "0"}});
      expect_equal(ask("full", way), full);
      way["decode_budget"] = "8";
      const Outcome few = ask("full", way);
      EXPECT_TRUE(few.completion.logits.all != full.completion.logits.all) << "power";
    }
  }
}

std::unique_ptr<Engine> open_gemma4(const char* fixture, std::string_view backend) {
  return open_for_test({.model = std::string("tests/data/fixtures/") + fixture,
                        .backend = std::string(backend),
                        .kv_type = KvType::kF32,
                        .kv_bytes = int64_t{16} << 20});
}

// A session holds the KV of the layers that have some, and the layers that read it go on. What each of these sees it
// does not say.
TEST(Gemma4, SessionsGoOnWhereLayersShareKv) {
  const std::vector<int32_t> prompt = text(200, 13);
  const auto here = open_gemma4("gemma4-shared", "auto"), there = open_gemma4("gemma4-shared", "auto");
  const auto exported = [&](const char* policy, Params params) {
    Request request = unpublished(prompt, policy, std::move(params), 1);
    request.export_session = true;
    return ask_ok(*here, std::move(request)).completion.session;
  };
  const Outcome whole = ask_ok(*here, unpublished(prompt, "full", {}, 12));
  Request next = unpublished(join({prompt, {whole.ids[0]}}), "", {}, 11);
  next.session = exported("full", {});
  ASSERT_TRUE(next.session);
  EXPECT_EQ(join({{whole.ids[0]}, ask_ok(*there, next).ids}), whole.ids);
  EXPECT_EQ(ask_ok(*there, next).completion.usage.prefix, 200) << "power: from the session";
  next.session = exported("redknot", {{"global", "none"}, {"window", "8"}, {"sink", "2"}});
  ASSERT_TRUE(next.session);
  const auto refused = there->submit(next, std::make_shared<CollectingSink>());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("share KV"), std::string::npos) << refused.error().message;
}

// Heads in a larger layout: rows that see few keys, heads that keep few and answers that choose theirs are dense where
// they see all, also where layers read the KV of others.
TEST(Gemma4, RowsThatSeeFewKeysSeeTheirOwn) {
  const std::vector<int32_t> prompt = text(300, 12);
  for (const char* fixture : {"gemma4", "gemma4-shared"}) {
    for (const std::string_view backend : backend_names()) {
      SCOPED_TRACE(std::string(fixture) + " " + std::string(backend));
      auto one = open_gemma4(fixture, backend);
      const auto ask = [&](const char* policy, Params params) {
        return ask_ok(*one, unpublished(prompt, policy, std::move(params), 12));
      };
      const Outcome full = ask("full", {});
      expect_equal(ask("minference", {{"columns", "300"}, {"distances", "0"}}), full);
      expect_equal(ask("ashape", {{"sink", "0"}, {"window", "400"}}), full);
      expect_equal(ask("full", {{"decode", "streamingllm"}, {"decode_budget", "400"}, {"decode_evict", "yes"}}), full);
      EXPECT_NE(ask("minference", {{"columns", "20"}, {"distances", "10"}, {"rows", "8"}}).completion.logits.first,
                full.completion.logits.first)
          << "power";
      EXPECT_NE(ask("ashape", {{"sink", "2"}, {"window", "16"}}).completion.logits.first, full.completion.logits.first)
          << "power";
      const Params few{{"decode", "snapkv"}, {"decode_budget", "40"}};
      Params evicting = few;
      evicting["decode_evict"] = "yes";
      expect_equal(ask("full", evicting), ask("full", few));
    }
  }
}

// KV is kept for the layers that have it: 3 of 6.
TEST(Gemma4, LayersThatReadOthersKvTakeNoMemory) {
  const auto pages_of = [](const char* fixture) {
    auto one = open_gemma4(fixture, "auto");
    ask_ok(*one, request_of(text(256, 13), "full", 0));
    return one->stats().kv_pages_used;
  };
  EXPECT_EQ(pages_of("gemma4-shared"), pages_of("gemma4-inputs"));  // of 6 layers, and of 3
}

std::vector<std::string> fixtures() {
  std::vector<std::string> out;
  for (const char* folder : {"tests/data/fixtures", "tests/data/fixtures-gguf"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) out.push_back(entry.path().string());
  }
  std::ranges::sort(out);
  return out;
}

std::string name_of(const testing::TestParamInfo<Architectures::ParamType>& info) {
  std::string name = std::get<0>(info.param) + "_" + std::string(std::get<1>(info.param));
  name.erase(0, std::string("tests/data/").size());
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Architectures,
                         testing::Combine(testing::ValuesIn(fixtures()), testing::ValuesIn(backend_names())), name_of);
INSTANTIATE_TEST_SUITE_P(All, Keepers,
                         testing::Combine(testing::ValuesIn(fixtures()),
                                          testing::Values<std::string_view>("reference", "auto")),
                         name_of);

}  // namespace
}  // namespace kvilt
