// reuse_from=last: a piece is taken as the last request under the same policy left it. What is kept so is approximate,
// and must never reach a request that did not ask for it. Limit cases with power checks.
#include <gtest/gtest.h>

#include "probe_prompts.h"

namespace kvilt {
namespace {

class ReuseFrom : public testing::Test {
 protected:
  const std::vector<int32_t> head = tokens(9, 1), a = tokens(70, 2), b = tokens(53, 3), c = tokens(64, 4);
  const std::vector<int32_t> before = join({head, c, a, b, tokens(23, 6)}),
                             asked = join({head, b, c, a, tokens(21, 5)});

  std::unique_ptr<Engine> engine(const std::string& reuse_from = "first") const {
    auto out = open_for_test({.model = kModel, .reuse_from = *parse_reuse_from(reuse_from)});
    warm(*out);
    return out;
  }
  void warm(Engine& engine, const std::string& salt = "") const {
    Request request = request_of(join({head, a, b, c}), "full", 0);
    request.cache_salt = salt;
    ask_ok(engine, std::move(request));
  }
  static Outcome run(Engine& engine, std::vector<int32_t> ids, const std::string& policy, Params params = {},
                     bool publish = false, const std::string& salt = "") {
    Request request = request_of(std::move(ids), policy, 5);
    request.policy.params = std::move(params);
    request.publish = publish;
    request.cache_salt = salt;
    return ask_ok(engine, std::move(request));
  }
};

const Params kLast{{"r", "0.2"}, {"reuse_from", "last"}}, kFirst{{"r", "0.2"}};

TEST_F(ReuseFrom, TheLastContextIsUsedByTheSamePolicyAlone) {
  const auto e = engine();
  struct Setting {
    std::string policy;
    Params params;
    std::string salt;
  };
  warm(*e, "other");
  const std::vector<Setting> others = {
      {"full", {}, ""},        {"prefix", {}, ""},
      {"naive", {}, ""},       {"prophetkv", {{"r", "0.2"}, {"reuse_from", "last"}}, ""},
      {"mend", kFirst, ""},    {"mend", {{"r", "0.3"}, {"reuse_from", "last"}}, ""},
      {"mend", kLast, "other"}};
  std::vector<Outcome> clean;
  for (const Setting& s : others) clean.push_back(run(*e, asked, s.policy, s.params, false, s.salt));
  const Outcome first = run(*e, asked, "mend", kLast);
  EXPECT_EQ(first.completion.logits.first, clean[4].completion.logits.first);  // there is no last context yet

  run(*e, before, "mend", kLast, true);

  const Outcome last = run(*e, asked, "mend", kLast);
  EXPECT_NE(last.completion.logits.first, first.completion.logits.first) << "power";
  EXPECT_EQ(last.usage().reused, first.usage().reused);
  for (size_t i = 0; i < others.size(); ++i) {
    SCOPED_TRACE(others[i].policy);
    const Outcome now = run(*e, asked, others[i].policy, others[i].params, false, others[i].salt);
    EXPECT_EQ(now.completion.logits.first, clean[i].completion.logits.first);
    EXPECT_EQ(now.usage().prefix, clean[i].usage().prefix);
  }
  EXPECT_EQ(run(*e, asked, "mend", {{"r", "1"}, {"reuse_from", "last"}}).completion.logits.first,
            clean[0].completion.logits.first);
}

TEST_F(ReuseFrom, NothingIsKeptUnlessAsked) {
  const auto e = engine();
  run(*e, before, "mend", kFirst, true);
  const auto runs = e->stats().cached_segments;
  const Outcome first = run(*e, asked, "mend", kFirst);
  EXPECT_EQ(run(*e, asked, "mend", kLast).completion.logits.first, first.completion.logits.first);
  run(*e, before, "mend", kLast, false);
  EXPECT_EQ(e->stats().cached_segments, runs);
  run(*e, asked, "mend", kLast, true);  // not `before`: that is a chain by now
  EXPECT_GT(e->stats().cached_segments, runs) << "power";
}

TEST_F(ReuseFrom, TheLastOneTakesThePlaceOfTheOneBefore) {
  const auto e = engine();
  run(*e, before, "mend", kLast, true);
  const auto runs = e->stats().cached_segments, kept = e->stats().cached_tokens;
  for (int i = 0; i < 3; ++i) run(*e, before, "mend", kLast, true);
  EXPECT_EQ(e->stats().cached_segments, runs);
  EXPECT_EQ(e->stats().cached_tokens, kept);
}

TEST_F(ReuseFrom, TheEnginesOptionIsTheDefault) {
  const auto e = engine("last");
  const Outcome first = run(*e, asked, "mend", {{"r", "0.2"}, {"reuse_from", "first"}});
  run(*e, before, "mend", kFirst, true);
  EXPECT_NE(run(*e, asked, "mend", kFirst).completion.logits.first, first.completion.logits.first);
  EXPECT_EQ(run(*e, asked, "mend", {{"r", "0.2"}, {"reuse_from", "first"}}).completion.logits.first,
            first.completion.logits.first);
  const auto wrong = e->check_policy({"mend", {{"reuse_from", "middle"}}});
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("not auto, first, last or seasoned"), std::string::npos);
}

}  // namespace
}  // namespace kvilt
