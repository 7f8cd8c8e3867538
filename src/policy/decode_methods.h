// policy/decode_methods.h: methods by which the rows of an answer see few of the prompt's keys, by name. Any of them goes
// with any policy but those whose answer sees less by themselves: parameter `decode` of a request.
//
// To add one: a line in decode_methods.cc, its test in decode_methods_test.cc, its section in docs/papers.md. One that
// a DecodeRule cannot say is a new field there (plan/decode_rule.h).
// Not here: the choice itself (plan/decode_rule.cc), who looks (forward/key_chooser.h).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/decode_rule.h"

namespace kvilt {

class PolicyParams;

// The rule that the parameters `decode` and `decode_...` ask for; none: the rows of the answer see all.
std::optional<DecodeRule> take_decode_rule(PolicyParams& params);
std::vector<std::string> decode_method_names();
// Whether a policy's parameter is of these: what the prompt leaves in the cache does not depend on them.
inline bool is_decode_param(const std::string& name) { return name.starts_with("decode"); }
// The parameters that are of these, and those that are not.
std::map<std::string, std::string> params_of(const std::map<std::string, std::string>& params, bool decode);

}  // namespace kvilt
