// tests/probe_prompts.h: prompts of random tokens for the probe model, for tests that compare runs with each other.
#pragma once

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <random>
#include <vector>

#include "engine_harness.h"

namespace kvilt {

inline constexpr const char* kModel = "tests/data/models/probe-1M";

inline std::vector<int32_t> tokens(int n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int32_t& id : out) id = static_cast<int32_t>(3 + rng() % 900);
  return out;
}

inline std::vector<int32_t> join(std::initializer_list<std::vector<int32_t>> parts) {
  std::vector<int32_t> out;
  for (const auto& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

// head | a | b are stored somewhere; asked in that order, and in another.
class StoredPrompts : public testing::Test {
 protected:
  // An engine that stores nothing.
  static std::unique_ptr<Engine> alone() {
    return open_for_test({.model = kModel, .threads = 2, .kv_type = KvType::kF32});
  }
  static Outcome ask_prefix(Engine& engine, const std::vector<int32_t>& prompt) {
    return ask_with(engine, prompt, "prefix");
  }
  // A key of 64 equal digits, as its owner alone may have it.
  static void write_key(const std::string& file, char digit) {
    std::ofstream(file) << std::string(64, digit);
    std::filesystem::permissions(file, std::filesystem::perms(0600));
  }
  Request of(const char* tenant, const char* salt, const char* name_space) const {
    Request request = request_of(asked, "prefix", 4);
    request.publish = false;
    request.tenant = tenant;
    request.cache_salt = salt;
    request.namespaces = {name_space};
    return request;
  }

  const std::vector<int32_t> head = tokens(40, 1), a = tokens(300, 2), b = tokens(400, 3), question = tokens(30, 4);
  const std::vector<int32_t> known = join({head, a, b}), asked = join({head, a, b, question}),
                             moved = join({question, b, a, head, question});
};

// head | A | B | C are known in this order; what is asked has them in another. The parameter is a backend.
class KnownPieces : public testing::TestWithParam<std::string> {
 protected:
  KnownPieces(int tokens_of_a, int tokens_of_b, int tokens_of_c)
      : a(tokens(tokens_of_a, 2)), b(tokens(tokens_of_b, 3)), c(tokens(tokens_of_c, 4)) {}

  std::unique_ptr<Engine> engine(int chunk = 512, const std::string& placement = "zero-copy",
                                 const std::string& kv_type = "auto") const {
    EngineOptions options{
        .model = kModel, .backend = GetParam(), .kv_type = *parse_kv_type(kv_type), .chunk_tokens = chunk};
    options.placement = *parse_placement(placement);
    auto out = open_for_test(options);
    warm(*out, join({head, a, b, c}));
    return out;
  }
  Outcome run(Engine& engine, const std::string& policy, Params params = {}) const {
    return ask_with(engine, asked, policy, std::move(params));
  }

  const std::vector<int32_t> head = tokens(9, 1), a, b, c, question = tokens(21, 5);
  std::vector<int32_t> asked;
};

}  // namespace kvilt
