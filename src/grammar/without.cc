// A build without xgrammar (-DKVILT_GRAMMAR=OFF): nothing can be compiled, and the first request that asks is told so.
#include "base/check.h"
#include "grammar/compiler.h"

namespace kvilt {
namespace {

[[noreturn]] void never() { check_failed(__FILE__, __LINE__, "create() makes no compiler"); }

}  // namespace

struct GrammarCompiler::Parts {};
struct GrammarMatcher::Parts {};

GrammarCompiler::GrammarCompiler(std::unique_ptr<Parts> parts, const GrammarLimits& limits)
    : parts_(std::move(parts)), limits_(limits) {}
GrammarCompiler::~GrammarCompiler() = default;

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::create(const Tokenizer&, std::span<const int32_t>,
                                                                 std::span<const int32_t>, int, GrammarLimits) {
  return Error{Code::kUnsupported,
               "this build cannot constrain answers; build it with -DKVILT_GRAMMAR=ON (scripts/get_xgrammar)"};
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile(const GrammarPart&) { never(); }

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar>) { never(); }
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;
GrammarMatcher::~GrammarMatcher() = default;
Status GrammarMatcher::fill(std::span<int32_t>) { never(); }
Result<bool> GrammarMatcher::accept(int32_t) { never(); }
Result<bool> GrammarMatcher::accept_text(std::string_view) { never(); }
void GrammarMatcher::rollback(int) {}
Result<std::bitset<256>> GrammarMatcher::next_bytes() { never(); }
bool GrammarMatcher::may_end() const { return false; }

}  // namespace kvilt
