#include "grammar/budget.h"

#include "grammar/xgrammar_hooks.h"

namespace kvilt {
namespace {

constexpr uint32_t kCallsALook = 1024;  // of the clock

thread_local Budget* budget_now = nullptr;

}  // namespace

Budget::Budget(double seconds, int64_t size) : time_(seconds), left_(size), outer_(budget_now) { budget_now = this; }

Budget::~Budget() { budget_now = outer_; }

void Budget::grow() {
  if (--left_ < 0) throw OverBudget(OverBudget::What::kSize);
  work();
}

void Budget::work() {
  if (++calls_ % kCallsALook == 0 && time_.passed()) throw OverBudget(OverBudget::What::kTime);
}

}  // namespace kvilt

void kvilt_grammar_grows() {
  if (kvilt::budget_now) kvilt::budget_now->grow();
}

void kvilt_grammar_works() {
  if (kvilt::budget_now) kvilt::budget_now->work();
}
