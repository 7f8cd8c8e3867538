// A body that holds many documents: its Content-Type, a line break, then the body.
#include <string_view>

#include "base/check.h"
#include "server/body_parts.h"

using namespace kvilt::server;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view sent(reinterpret_cast<const char*>(data), size);
  const size_t line = sent.find('\n');
  if (line == std::string_view::npos) return 0;
  const std::string_view type = sent.substr(0, line), body = sent.substr(line + 1);
  if (!BodyParts::kind_of(type)) return 0;
  auto parts = BodyParts::open(type, body);
  const char* last = body.data();
  size_t number = 0;
  while (parts.ok()) {
    const auto part = parts.value().next();
    if (!part) break;
    CHECK(part->number > number);
    number = part->number;
    if (part->content.empty()) continue;
    // Each is of the body, behind the one before it.
    CHECK(part->content.data() >= last && part->content.data() + part->content.size() <= body.data() + body.size());
    last = part->content.data() + part->content.size();
  }
  return 0;
}
