// What xgrammar says: a fatal message is an exception, and a warning (it ignores a keyword) is kept for the compiler, which
// makes an error of it. Nothing is printed.
#include <stdexcept>
#include <string>
#include <utility>

#include "grammar/warning.h"

namespace kvilt {
namespace {

thread_local std::string first_warning;

}  // namespace

std::string take_grammar_warning() { return std::exchange(first_warning, {}); }

}  // namespace kvilt

namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message) {
  throw std::runtime_error(message);
}

// Called by a destructor: it must not throw.
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning && kvilt::first_warning.empty()) kvilt::first_warning = message;
}

}  // namespace xgrammar
