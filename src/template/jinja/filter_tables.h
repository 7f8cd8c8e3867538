// template/jinja/filter_tables.h: the second file of filters; only find_filter sees it.
#pragma once

#include <span>

#include "template/jinja/builtins.h"

namespace kvilt::jinja {

std::span<const Builtin> sequence_filters();

}  // namespace kvilt::jinja
