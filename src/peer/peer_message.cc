#include "peer/peer_message.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace kvilt {
namespace {

enum class Kind : uint32_t { kHello = 1, kAsk = 2, kRows = 3, kEnd = 4, kCancel = 5, kPart = 6 };

struct Writer {
  std::vector<std::byte> out;
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put(std::as_bytes(std::span(&value, 1)));
  }
  void put(std::span<const std::byte> bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); }
};

struct Reader {
  std::span<const std::byte> left;
  bool good = true;
  template <class T>
  T take() {
    T out{};
    take(std::as_writable_bytes(std::span(&out, 1)));
    return out;
  }
  void take(std::span<std::byte> out) {
    good = good && left.size() >= out.size();
    if (!good || out.empty()) return;
    std::memcpy(out.data(), left.data(), out.size());
    left = left.subspan(out.size());
  }
};

void write(Writer& w, const PeerHello& m) {
  w.put(Kind::kHello);
  w.put(m.token_bytes);
  w.put(m.maker);
}

void write(Writer& w, const PeerAsk& m) {
  w.out.reserve(most_bytes_of_ask(std::ssize(m.tokens)));
  w.put(Kind::kAsk);
  w.put(m.from);
  w.put(m.id);
  w.put(m.domain);
  w.put(static_cast<uint32_t>(bytes_of_method(m.method)));
  for (const std::string& word : m.method) {
    w.put(static_cast<uint32_t>(word.size()));
    w.put(std::as_bytes(std::span(word)));
  }
  w.put(std::as_bytes(std::span(m.tokens)));
}

void write(Writer& w, const PeerRows& m) {
  w.out.reserve(24 + m.values.size());
  w.put(Kind::kRows);
  w.put(m.pos);
  w.put(m.id);
  w.put(m.count);
  w.put(uint32_t{0});
  w.put(std::span(m.values));
}

void write(Writer& w, const PeerEnd& m) {
  w.put(Kind::kEnd);
  w.put(static_cast<uint32_t>(m.how));
  w.put(m.id);
}

void write(Writer& w, const PeerCancel& m) {
  w.put(Kind::kCancel);
  w.put(uint32_t{0});
  w.put(m.id);
}

void write(Writer& w, const PeerPart& m) {
  w.out.reserve(32 + m.bytes.size());
  w.put(Kind::kPart);
  w.put(uint32_t{0});
  w.put(m.id);
  w.put(m.offset);
  w.put(m.size);
  w.put(std::span(m.bytes));
}

PeerMessage read_hello(Reader& r) {
  PeerHello m;
  m.token_bytes = r.take<uint32_t>();
  m.maker = r.take<Digest>();
  return m;
}

// A name, then pairs.
std::vector<std::string> read_method(Reader& r) {
  std::vector<std::string> out;
  const auto bytes = r.take<uint32_t>();
  r.good = r.good && bytes <= PeerAsk::kMostMethodBytes && bytes <= r.left.size();
  if (!r.good) return out;
  Reader words{r.left.first(bytes)};
  while (words.good && !words.left.empty()) {
    const auto size = words.take<uint32_t>();
    words.good = words.good && size <= words.left.size();
    if (words.good) words.take(std::as_writable_bytes(std::span(out.emplace_back(size, '\0'))));
  }
  r.good = words.good && (out.empty() || out.size() % 2 == 1);
  r.left = r.left.subspan(bytes);
  return out;
}

PeerMessage read_ask(Reader& r) {
  PeerAsk m;
  m.from = r.take<int32_t>();
  m.id = r.take<uint64_t>();
  m.domain = r.take<Digest>();
  m.method = read_method(r);
  m.tokens.resize(r.left.size() / sizeof(int32_t));
  r.take(std::as_writable_bytes(std::span(m.tokens)));
  r.good = r.good && !m.tokens.empty() && m.from >= 0 && m.from < std::ssize(m.tokens);
  r.good = r.good && (m.method.empty() || m.from == 0);  // a session is whole
  return m;
}

PeerMessage read_rows(Reader& r) {
  PeerRows m;
  m.pos = r.take<int32_t>();
  m.id = r.take<uint64_t>();
  m.count = r.take<int32_t>();
  r.good = r.take<uint32_t>() == 0 && r.good && m.pos >= 0 && m.count > 0 && m.count <= PeerRows::kMostTokens;
  m.values.assign(r.left.begin(), r.left.end());
  r.left = {};
  return m;
}

PeerMessage read_end(Reader& r) {
  const auto how = r.take<uint32_t>();
  PeerEnd m{r.take<uint64_t>(), static_cast<PeerEnding>(how)};
  r.good = r.good && how <= static_cast<uint32_t>(PeerEnding::kRefused);
  return m;
}

PeerMessage read_cancel(Reader& r) {
  const bool zero = r.take<uint32_t>() == 0;
  PeerCancel m{r.take<uint64_t>()};
  r.good = r.good && zero;
  return m;
}

PeerMessage read_part(Reader& r) {
  const bool zero = r.take<uint32_t>() == 0;
  PeerPart m;
  m.id = r.take<uint64_t>();
  m.offset = r.take<int64_t>();
  m.size = r.take<int64_t>();
  const int64_t left = std::ssize(r.left);
  r.good = r.good && zero && left > 0 && left <= int64_t{PeerPart::kMostBytes} && m.offset >= 0 && m.size >= left &&
           m.offset <= m.size - left;
  m.bytes.assign(r.left.begin(), r.left.end());
  r.left = {};
  return m;
}

}  // namespace

size_t bytes_of_method(const std::vector<std::string>& method) {
  size_t out = 0;
  for (const std::string& word : method) out += sizeof(uint32_t) + word.size();
  return out;
}

std::vector<std::byte> bytes_of_message(const PeerMessage& message) {
  Writer w;
  std::visit([&](const auto& m) { write(w, m); }, message);
  return std::move(w.out);
}

Result<PeerMessage> parse_message(std::span<const std::byte> bytes) {
  Reader r{bytes};
  const auto parse = [&](Kind kind) -> PeerMessage {
    switch (kind) {
      case Kind::kHello:
        return read_hello(r);
      case Kind::kAsk:
        return read_ask(r);
      case Kind::kRows:
        return read_rows(r);
      case Kind::kEnd:
        return read_end(r);
      case Kind::kCancel:
        return read_cancel(r);
      case Kind::kPart:
        return read_part(r);
    }
    r.good = false;
    return {};
  };
  PeerMessage out = parse(r.take<Kind>());
  if (!r.good || !r.left.empty()) return error(Code::kCorrupt, "it sends a message that is none");
  return out;
}

size_t most_bytes_of_kv(uint32_t token_bytes) {
  return std::max(24 + size_t{PeerRows::kMostTokens} * token_bytes, 32 + PeerPart::kMostBytes);
}
size_t most_bytes_of_ask(int64_t tokens) {
  return 36 + PeerAsk::kMostMethodBytes + static_cast<size_t>(tokens) * sizeof(int32_t);
}

}  // namespace kvilt
