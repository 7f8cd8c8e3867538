#include "policy/policy.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "policy/decode_methods.h"
#include "policy/policy_table.h"  // generated from the list in CMakeLists.txt

namespace kvilt {

Run PromptLayout::suffix(int32_t tail) const {
  constexpr int32_t kLongest = 256;  // rows of a probe: more of them cost more and choose no better
  const Runs runs = fresh();
  int32_t begin = prompt_len - std::max(1, tail);
  if (!runs.empty() && runs.back().end == prompt_len) begin = std::max(runs.back().begin, prompt_len - kLongest);
  if (question >= 0 && question < prompt_len) begin = std::max(question, prompt_len - kLongest);
  return {std::clamp(begin, prefix, prompt_len - 1), prompt_len};
}

const Runs& PromptLayout::annexed(AnnexKind kind) const {
  static const Runs none;
  const auto at = std::ranges::find(annexes, kind, &std::pair<AnnexKind, Runs>::first);
  return at == annexes.end() ? none : at->second;
}

Plan plan_for(const PromptLayout& layout, std::vector<Stage> stages) {
  Plan plan;
  plan.prompt_len = layout.prompt_len;
  plan.stages = std::move(stages);
  return plan;
}

const std::string* PolicyParams::take(const std::string& names, std::string& taken) {
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    known_.push_back(name);
    if (const auto it = values_.find(name); it != values_.end() && taken.empty()) {
      taken = name;
      used_[name] = it->second;
      values_.erase(it);
    }
    begin = end + 1;
  }
  return taken.empty() ? nullptr : &used_[taken];
}

double PolicyParams::number(const std::string& names, double fallback, double low, double high) {
  std::string name;
  const std::string* text = take(names, name);
  if (!text) return fallback;
  double value = 0;
  const auto [end, bad] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (bad != std::errc() || end != text->data() + text->size() || !(value >= low && value <= high)) {
    if (error_.empty())
      error_ = fmt::format("parameter '{}' is '{}', not a number from {} to {}", name, *text, low, high);
    return fallback;
  }
  settings_[names.substr(0, names.find(','))] = fmt::format("{}", value + 0.0);  // one zero
  return value;
}

int PolicyParams::integer(const std::string& names, int fallback, int low, int high) {
  const double value = number(names, fallback, low, high);
  if (value != std::floor(value)) {
    if (error_.empty()) error_ = fmt::format("parameter '{}' is {}, not a whole number", names, value);
    return fallback;
  }
  return static_cast<int>(value);
}

std::string PolicyParams::choice(const std::string& name, const std::string& fallback,
                                 const std::vector<std::string>& allowed) {
  std::string taken;
  const std::string* text = take(name, taken);
  if (!text) return fallback;
  if (std::find(allowed.begin(), allowed.end(), *text) == allowed.end()) {
    if (error_.empty())
      error_ = fmt::format("parameter '{}' is '{}', not one of {}", name, *text, fmt::join(allowed, ", "));
    return fallback;
  }
  return settings_[name] = *text;
}

bool PolicyParams::flag(const std::string& name, bool fallback) {
  const std::string word = choice(name, fallback ? "yes" : "no", {"yes", "no", "true", "false"});
  const bool yes = word == "yes" || word == "true";
  if (settings_.contains(name)) settings_[name] = yes ? "yes" : "no";
  return yes;
}

// kind: "head": of --head-map.
template <class Map>
std::shared_ptr<const Map> PolicyParams::map_of(const std::map<std::string, std::shared_ptr<const Map>>& maps,
                                                const std::string& name, const char* kind) {
  std::string taken;
  const std::string* text = take(name, taken);
  if (text) settings_[name] = *text;
  if (const auto it = maps.find(text ? *text : PolicyFiles::kDefaultMap); it != maps.end()) return it->second;
  if (text) {
    std::vector<std::string> known;
    for (const auto& [key, map] : maps) known.push_back(key);
    wrong(known.empty() ? fmt::format("there is no {} map '{}': start with --{}-map FILE", kind, *text, kind)
                        : fmt::format("there is no {} map '{}'; there are {}", kind, *text, fmt::join(known, ", ")));
  }
  return nullptr;
}

std::shared_ptr<const HeadMap> PolicyParams::head_map(const std::string& name) {
  return map_of(files_.head_maps, name, "head");
}

std::shared_ptr<const SparseMap> PolicyParams::sparse_map(const std::string& name) {
  return map_of(files_.sparse_maps, name, "sparse");
}

std::shared_ptr<const LayerMap> PolicyParams::layer_map(const std::string& name) {
  return map_of(files_.layer_maps, name, "layer");
}

void PolicyParams::wrong(const std::string& why) {
  if (error_.empty()) error_ = why;
}

std::string PolicyParams::settings() const {
  std::string out;
  for (const auto& [name, value] : settings_) out += fmt::format(":{}={}", name, value);
  return out;
}

Status PolicyParams::finish(const std::string& policy) const {
  if (!error_.empty()) return error(Code::kInvalidArgument, "policy '{}': {}", policy, error_);
  if (!values_.empty()) {
    std::string beside;  // where it depends on others whether there is such a one
    for (const auto& [name, value] : used_)
      beside += fmt::format("{}{}={}", beside.empty() ? " beside " : ", ", name, value);
    return error(
        Code::kInvalidArgument, "policy '{}' has no parameter '{}'{}{}", policy, values_.begin()->first, beside,
        known_.empty() ? std::string("; it takes none") : fmt::format("; it takes {}", fmt::join(known_, ", ")));
  }
  return {};
}

Result<std::unique_ptr<ReusePolicy>> make_policy(const std::string& name,
                                                 const std::map<std::string, std::string>& params,
                                                 const PolicyFiles& files) {
  for (const auto& [known, make] : kPolicyTable) {
    if (name != known) continue;
    PolicyParams taken(params_of(params, false), files), answer(params_of(params, true));
    auto policy = make(taken);
    KVILT_TRY(taken.finish(name));
    policy->set_identity(name + taken.settings());
    policy->set_decode_rule(take_decode_rule(answer));
    if (policy->decode_rule() && policy->answer_sees_less())
      answer.wrong("its answer sees what it kept; parameter 'decode' does not go with it");
    KVILT_TRY(answer.finish(name));
    return policy;
  }
  return error(Code::kInvalidArgument, "no policy '{}'; there are {}", name, fmt::join(policy_names(), ", "));
}

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : kPolicyTable) names.emplace_back(name);
  return names;
}

std::vector<std::string> control_policies() { return {"random", "oracle"}; }

Runs top_positions(std::span<const double> score, const Runs& candidates, int64_t n) {
  std::vector<int32_t> order = positions(candidates);
  n = std::clamp<int64_t>(n, 0, static_cast<int64_t>(order.size()));
  const auto of = [&](int32_t pos) {  // a score that is no number comes last: sorting needs an order
    return std::isnan(score[pos]) ? -HUGE_VAL : score[pos];
  };
  std::partial_sort(order.begin(), order.begin() + n, order.end(), [&](int32_t a, int32_t b) {
    const double sa = of(a), sb = of(b);
    return sa > sb || (sa == sb && a < b);
  });
  order.resize(n);
  std::ranges::sort(order);
  return runs_of(order);
}

}  // namespace kvilt
