// kernels/dispatch.h: picks the backend for this machine. dispatch.cc has the one table of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kvilt/result.h"

namespace kvilt {

// name: "auto", or one of backend_names(). Environment KVILT_BACKEND overrides "auto".
// Errors: kInvalidArgument (no such backend; the message lists them), kUnsupported (this machine cannot run it).
Result<const Backend*> find_backend(std::string_view name);

// Which instructions serve a weight of this type under Activations::kAuto (for any number of rows: there is one kernel
// for each), and attention over heads of E elements kept as `kv`, in words for people.
std::string_view kernel_of(const Backend& backend, DType weight);
std::string_view attention_of(const Backend& backend, DType kv, int E);

// Names of this build's backends that this machine can run, best first; the last is "reference". For error messages,
// help texts and tests.
std::vector<std::string_view> backend_names();

}  // namespace kvilt
