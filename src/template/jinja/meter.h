// template/jinja/meter.h: what one parse or render may spend, and how the interpreter reports a failure.
// Role:       templates come with model files and are not trusted. Every evaluation step, byte held and level of
//             nesting is charged here, so that a render ends in bounded time and memory.
// Invariants: release() gives back exactly what hold() took; a Fault never leaves chat_template.cc.
// Threads:    one Meter per render.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "kvilt/result.h"

namespace kvilt::jinja {

struct Position {
  int32_t line = 0, column = 0;  // from 1; line 0: not known yet
};

// Thrown inside the interpreter; chat_template.cc makes an Error of it.
struct Fault {
  Code code = Code::kInvalidArgument;
  std::string message;
  Position at;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Fault{Code::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...), {}};
}

struct Limits {
  uint64_t steps = 20'000'000;          // about two seconds of one core
  size_t live_bytes = size_t{1} << 28;  // text, lists and dicts alive at once
  size_t output_bytes = size_t{1} << 26;
  int depth = 400;  // nested evaluations, macro calls included: bounds the C++ stack
};
inline constexpr int kMaxParseDepth = 150;     // levels of a template's syntax tree
inline constexpr int kMaxValueDepth = 100;     // lists in dicts in lists ...
inline constexpr size_t kMaxVariables = 2000;  // of one scope or namespace, which are searched linearly
inline constexpr size_t kMaxTemplateBytes = size_t{4} << 20;

class Meter {
 public:
  explicit Meter(const Limits& limits) : limits_(limits), steps_(limits.steps) {}
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  void step(uint64_t count = 1) {
    if (count > steps_) fail("the chat template runs too long");
    steps_ -= count;
  }
  void bytes_touched(size_t count) { step(count / 256 + 1); }  // copying that much takes about as long as a step
  // A long conversation may take more steps than a short one: each value of the input grants some.
  void grant(uint64_t steps) { steps_ += steps; }
  void hold(size_t bytes) {
    if (bytes > limits_.live_bytes - live_) fail("the chat template needs more than {} bytes", limits_.live_bytes);
    live_ += bytes;
  }
  void release(size_t bytes) { live_ -= bytes; }
  // Called before a value of that size is made, to fail before the allocation.
  void can_hold(size_t bytes) const {
    if (bytes > limits_.live_bytes - live_) fail("the chat template needs more than {} bytes", limits_.live_bytes);
  }
  void enter() {
    if (++depth_ > limits_.depth) {
      --depth_;
      fail("the chat template nests calls and expressions too deeply");
    }
  }
  void leave() { --depth_; }
  const Limits& limits() const { return limits_; }

 private:
  const Limits limits_;
  uint64_t steps_;
  size_t live_ = 0;
  int depth_ = 0;
};

class Nesting {
 public:
  explicit Nesting(Meter& meter) : meter_(meter) { meter_.enter(); }
  ~Nesting() { meter_.leave(); }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  Meter& meter_;
};

}  // namespace kvilt::jinja
