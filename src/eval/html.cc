#include "eval/html.h"

namespace kvilt {

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string filled(std::string_view page, const std::map<std::string_view, std::string>& values) {
  std::string out;
  for (size_t open; (open = page.find("{{")) != page.npos;) {
    const size_t close = page.find("}}", open);
    out += page.substr(0, open);
    out += values.at(page.substr(open + 2, close - open - 2));
    page.remove_prefix(close + 2);
  }
  return out.append(page);
}

}  // namespace kvilt
