// eval/html.h: the little that pages of figures need.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace kvilt {

// Text as it may stand in an element or a quoted attribute.
std::string escape(const std::string& text);

// The page with a value in place of each {{name}}; a value is not looked into. REQUIRES: every name has a value.
std::string filled(std::string_view page, const std::map<std::string_view, std::string>& values);

}  // namespace kvilt
