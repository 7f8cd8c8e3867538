// kvilt/result.h: Result<T> and Error, how everything that can fail from the outside says so.
// Role:       file, JSON, HTTP, flag and memory errors travel as values; no exception crosses a module.
// Invariants: a Result holds a value or an Error: a code and a message that names what is wrong and what to do.
// Not here:   our own bugs; they hit CHECK (src/base/check.h).
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace kvilt {

enum class Code {
  kInvalidArgument,  // the caller's input is wrong (HTTP 400)
  kNotFound,         // no such file, model, request (404)
  kTooLong,          // a prompt longer than the context (400)
  kExhausted,        // memory, pages or queue are full (503)
  kOverLimit,        // the caller has used up its own share (429)
  kUnsupported,      // valid, but not something this build does (400)
  kCorrupt,          // a file that contradicts itself
  kIo,               // the operating system said no
  kCancelled,        // the client went away
  kUnavailable,      // loading or shutting down (503)
  kInternal,         // should not happen, yet was survived (500)
};

struct Error {
  Code code = Code::kInternal;
  std::string message;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // REQUIRES: ok().
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // REQUIRES: !ok().
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}
  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};
using Status = Result<void>;

}  // namespace kvilt

// KVILT_TRY(expr): returns the error of a Status expression from the enclosing function.
#define KVILT_TRY(expr)                                          \
  do {                                                           \
    auto kvilt_try_result = (expr);                              \
    if (!kvilt_try_result.ok()) return kvilt_try_result.error(); \
  } while (0)

// KVILT_ASSIGN(decl, expr): `decl = value of expr`, or returns its error.
#define KVILT_CONCAT_INNER(a, b) a##b
#define KVILT_CONCAT(a, b) KVILT_CONCAT_INNER(a, b)
#define KVILT_ASSIGN(decl, expr) KVILT_ASSIGN_IMPL(KVILT_CONCAT(kvilt_result_, __LINE__), decl, expr)
#define KVILT_ASSIGN_IMPL(tmp, decl, expr) \
  auto tmp = (expr);                       \
  if (!tmp.ok()) return tmp.error();       \
  decl = std::move(tmp).value()
