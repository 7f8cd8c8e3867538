// grammar/warning.h: what xgrammar has warned of on this thread since the last call.
#pragma once

#include <string>

namespace kvilt {

std::string take_grammar_warning();  // the first one; empty: none

}  // namespace kvilt
