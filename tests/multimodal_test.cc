// A multimodal gemma's folder answers as the folder of its text model alone, bit for bit.
#include "model/multimodal_for_test.h"

#include <gtest/gtest.h>

#include "engine_harness.h"

namespace kvilt {
namespace {

class Multimodal : public testing::TestWithParam<const char*> {};

TEST_P(Multimodal, AnswersAsItsTextModel) {
  const auto answer = [](const std::string& model) {
    auto engine = open_for_test({.model = model});
    std::vector<int32_t> ids;  // longer than the window
    for (int i = 0; i < 60; ++i) ids.push_back((i * 37 + 11) % 250);
    return engine ? ask_ok(*engine, request_of(ids, "full", 12)) : Outcome();
  };
  const Outcome text = answer(std::string("tests/data/fixtures/") + GetParam());
  ASSERT_EQ(text.ids.size(), 12u);
  const MultimodalFolder whole(GetParam()), older(GetParam(), {.older_names = true, .tower_byte = true}),
      other(GetParam(), {.text_byte = true});
  for (const MultimodalFolder* folder : {&whole, &older}) {
    const Outcome out = answer(folder->path());
    EXPECT_EQ(out.completion.logits.first, text.completion.logits.first);
    EXPECT_EQ(out.ids, text.ids);
  }
  EXPECT_NE(answer(other.path()).completion.logits.first, text.completion.logits.first) << "power: one weight differs";
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Multimodal, testing::Values("gemma3", "gemma4", "gemma4-inputs"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace kvilt
