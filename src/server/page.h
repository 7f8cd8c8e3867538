// server/page.h: the static page at /: what runs, the counters, and a box to try it. Plain HTML, no build step.
#pragma once

#include <string>

namespace kvilt::server {

const std::string& page_html();

}  // namespace kvilt::server
