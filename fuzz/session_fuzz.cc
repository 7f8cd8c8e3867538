// The bytes of a session, from a file, a client or a prefill server: whatever they say, reading ends with a session or an
// error, and gives all pages back. What is received is what was read; what the check lets pass is imported, in no more
// pages than it says; and what was imported leaves again as a session.
// The input has neither checksums nor the model's digest, and zeros follow its end: the fuzzer shall reach what is behind
// them. Damaged sums are refused in kv/session_file_test.cc.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/checksum.h"
#include "base/error.h"
#include "kv/rows_for_test.h"
#include "kv/session_file.h"
#include "kv/session_reader.h"

namespace kvilt {
namespace {

constexpr const char* kModel = "a model";
constexpr int64_t kPages = 400;
constexpr size_t kMostBytes = size_t{1} << 18;  // that follow the input

// No frame has 8 bytes in this shape, so whoever asks for 8 asks for a checksum.
class Source {
 public:
  explicit Source(std::span<const std::byte> input) : input_(input) {}
  Status operator()(std::span<std::byte> part) {
    uint64_t sum = checksum(frame_);
    if (part.size() == sizeof sum) {
      std::memcpy(part.data(), &sum, sizeof sum);
      frame_.clear();
      return {};
    }
    const size_t here = std::min(part.size(), input_.size());
    given_ += part.size() - here;
    if (given_ > kMostBytes) return corrupt_session("cut short");
    std::ranges::fill(part, std::byte{0});
    std::copy_n(input_.begin(), here, part.begin());
    input_ = input_.subspan(here);
    if (std::exchange(first_, false) && part.size() == sizeof(SessionHeader)) {
      const SessionHeader ours = session_header(kShape, kModel);
      std::memcpy(part.data() + offsetof(SessionHeader, model), ours.model, sizeof ours.model);
    }
    frame_.insert(frame_.end(), part.begin(), part.end());
    return {};
  }

 private:
  std::span<const std::byte> input_;
  std::vector<std::byte> frame_;
  size_t given_ = 0;
  bool first_ = true;
};

void run(std::span<const std::byte> input) {
  static PageStore store = PageStore::create(kShape, kPages * kShape.page_bytes()).value();
  static const RopeConfig rope = small_rope();
  Source source(input);
  const auto received = receive_session(source);
  if (!received.ok()) return;
  CHECK(received->sizes.moved == std::ssize(received->bytes) && received->sizes.kv <= received->sizes.dense);
  const auto summary = check_session(received->bytes, kShape, kModel);
  auto session = import_session(store, rope, kModel, std::span<const std::byte>(received->bytes));
  CHECK(!session.ok() || summary.ok());
  if (summary.ok() && summary->pages <= kPages) CHECK(session.ok());
  if (session.ok()) {
    const auto follow = static_cast<int32_t>(session->follow.size());
    std::vector<int32_t> tokens = session->tokens;
    tokens.insert(tokens.end(), session->follow.begin(), session->follow.end());
    std::vector<std::byte> out;
    const auto keep = [&](std::span<const std::byte> part) -> Status {
      out.insert(out.end(), part.begin(), part.end());
      return {};
    };
    CHECK(export_session(*session->table, tokens, kModel, keep, follow).ok());
    const auto again = check_session(out, kShape, kModel);
    CHECK(again.ok() && again->tokens == tokens && again->positions == summary->positions);
    if (store.free_pages() >= 2 * kShape.L * kShape.G) session->table->add_next(summary->positions);
  }
  session = Result<KvSession>(KvSession{});
  CHECK(store.free_pages() == kPages);
}

}  // namespace
}  // namespace kvilt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvilt::run(std::as_bytes(std::span(data, size)));
  return 0;
}
