// The head of an HTTP request, as the connection checks it before the library sees it.
#include <string>

#include "base/check.h"
#include "server/connection.h"

using namespace kvilt::server;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string sent(reinterpret_cast<const char*>(data), size);
  std::string head = sent + "\r\n\r\n";
  const size_t before = head.size();
  const HeadVerdict verdict = check_head(head, 1 << 20);
  CHECK(head.size() <= before);
  CHECK(verdict.status == 0 || (verdict.status >= 400 && verdict.status < 600));
  return 0;
}
