// The text by which later requests find what a policy left: settings that count, and no others.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "policy/policy.h"

namespace kvilt {
namespace {

// What a prompt leaves is shared by requests whose settings differ in nothing that counts.
TEST(PolicyIdentity, WhatHasNoEffectIsNotInIt) {
  using Params = std::map<std::string, std::string>;
  const auto identity = [](const std::string& name, const Params& params) {
    const auto made = make_policy(name, params);
    EXPECT_TRUE(made.ok()) << made.error().message;
    return made.ok() ? (*made)->identity() : std::string();
  };
  const std::pair<std::string, Params> ignore[] = {
      {"ashape", {{"window", "9"}}},
      {"xattention", {}},
      {"minference", {}},
      {"minference", {{"pattern", "blocks"}}},
      {"flexprefill", {}},
      {"loopserve", {{"sample", "last"}}},
      {"redknot", {{"global", "all"}}},
      {"redknot", {{"global", "all"}, {"ffn_mass", "0.5"}}},
  };
  const std::pair<std::string, Params> draw[] = {
      {"loopserve", {}},
      {"loopserve", {{"rule", "random"}}},
      {"random", {}},
      {"redknot", {{"global", "random"}}},
      {"redknot", {{"global", "all"}, {"ffn_mass", "0.5"}, {"ffn_by", "random"}}},
  };
  const auto with = [](Params params, const char* name, const char* value) {
    params[name] = value;
    return params;
  };
  for (const auto& [name, params] : ignore)
    EXPECT_EQ(identity(name, with(params, "seed", "7")), identity(name, params)) << name;
  for (const auto& [name, params] : draw)
    EXPECT_NE(identity(name, with(params, "seed", "7")), identity(name, params)) << "power: " << name;
  EXPECT_EQ(identity("mend", {{"budget", "0.30"}, {"gain", "true"}}), identity("mend", {{"r", ".3"}, {"gain", "yes"}}));
  EXPECT_NE(identity("mend", {{"r", "0.3"}}), identity("mend", {{"r", "0.2"}}));
  EXPECT_NE(identity("mend", {{"gain", "no"}}), identity("mend", {{"gain", "yes"}}));
  EXPECT_NE(identity("mend", {}), identity("epic", {}));
  EXPECT_NE(identity("mend", {{"carry", "mean"}}), identity("mend", {{"carry", "nearest"}}));
  EXPECT_EQ(identity("mend", {{"decode", "snapkv"}}), identity("mend", {})) << "the answer's are not the prompt's";
}

}  // namespace
}  // namespace kvilt
