#include "kv/session_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>

#include "base/check.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/keyed_hash.h"

namespace kvilt {
namespace {

static_assert(std::endian::native == std::endian::little, "the numbers of the file are little-endian");

constexpr char kMagic[8] = {'k', 'v', 'i', 'l', 't', '-', 'k', 'v'};
constexpr uint32_t kVersion = 1;
constexpr uint32_t kMaxPositions = 1 << 24;
constexpr uint64_t kMaxIndexRuns = 1 << 22;
constexpr int32_t kOwn = -1;  // source of a run that stands as stored

struct Header {
  char magic[8];
  uint32_t version, kv_type, L, G, E, positions, placements, zero;
  uint64_t index_runs;
  uint8_t model[16];
};
static_assert(sizeof(Header) == 64);

// Tokens [pos, pos + count) stand `shift` behind where their keys were rotated.
struct Piece {
  int32_t pos, count, shift;
};
// What stands at a layer, whatever its heads keep of it: by a piece's number, or kOwn.
struct IndexRun {
  int32_t pos, count, source;
};
static_assert(sizeof(Piece) == 12 && sizeof(IndexRun) == 12 && sizeof(HeadKeep) == 8);

uint32_t type_number(DType type) {
  return type == DType::kF32 ? 0 : type == DType::kF16 ? 1 : type == DType::kBF16 ? 2 : 3;
}

Digest model_digest(const std::string& model) {
  return KeyedHash(HashSecret::fixed(0), "kvilt session").add(model).finish();
}

// The positions that the row at `next` sees of what stands before it.
Runs kept(const HeadKeep& keep, int32_t next) {
  if (keep.all()) return normalize({{0, next}});
  return normalize({{0, std::min(keep.sink, next)}, {std::max(0, next - keep.window), next}});
}

KeyMask mask_of(const HeadKeep& keep) { return {.sink = keep.sink, .window = keep.window}; }

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// ---- Out ------------------------------------------------------------------------------------------------------------

class Export {
 public:
  Export(const PageTable& table, std::span<const int32_t> tokens, ByteSink sink)
      : table_(table), tokens_(tokens), next_(static_cast<int32_t>(tokens.size())), sink_(sink) {}

  Result<SessionBytes> run(const std::string& model) {
    const KvShape& shape = table_.shape();
    find_index();
    Header h{};
    std::memcpy(h.magic, kMagic, sizeof kMagic);
    h.version = kVersion;
    h.kv_type = type_number(shape.dtype);
    h.L = static_cast<uint32_t>(shape.L), h.G = static_cast<uint32_t>(shape.G), h.E = static_cast<uint32_t>(shape.E);
    h.positions = static_cast<uint32_t>(next_);
    h.placements = static_cast<uint32_t>(pieces_.size());
    const Digest digest = model_digest(model);
    std::memcpy(h.model, digest.data(), digest.size());
    std::vector<std::byte> index;
    for (const auto& runs : index_) append(index, static_cast<uint32_t>(runs.size()));
    for (const auto& runs : index_) {
      h.index_runs += runs.size();
      for (const IndexRun& run : runs) append(index, run);
    }
    std::vector<std::byte> header, meta;
    append(header, h);
    for (const int32_t token : tokens_) append(meta, token);
    for (const Piece& piece : pieces_) append(meta, piece);
    for (int i = 0; i < shape.L * shape.G; ++i) append(meta, table_.keeps(i / shape.G, i % shape.G));
    for (const auto& frame : {header, meta, index}) KVILT_TRY(send(frame));
    for (int layer = 0; layer < shape.L; ++layer) {
      for (int head = 0; head < shape.G; ++head) KVILT_TRY(send(rows_of(layer, head)));
    }
    return bytes_;
  }

 private:
  template <class T>
  static void append(std::vector<std::byte>& out, const T& value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    out.insert(out.end(), from, from + sizeof value);
  }

  Status send(std::span<const std::byte> frame) {
    const uint64_t sum = checksum(frame);
    KVILT_TRY(sink_(frame));
    KVILT_TRY(sink_(std::as_bytes(std::span(&sum, 1))));
    bytes_.moved += static_cast<int64_t>(frame.size() + sizeof sum);
    return {};
  }

  std::vector<KvSpan> spans_of(int layer, int head) const {
    std::vector<KvSpan> spans;
    table_.resolve(layer, head, {next_, next_ + 1}, mask_of(table_.keeps(layer, head)), spans);
    return spans;
  }

  // The number of the piece that holds pos; placements without a shift, or whose shift is ignored, are own.
  int32_t source_of(const KvSpan& span, std::map<int32_t, int32_t>& piece_of) {
    if (!span.rotation) return kOwn;
    const auto placements = table_.placements();
    const auto after = std::upper_bound(placements.begin(), placements.end(), span.pos,
                                        [](int32_t pos, const Placement& placement) { return pos < placement.pos; });
    CHECK(after != placements.begin());
    const Placement& placement = *std::prev(after);
    const auto [it, fresh] = piece_of.try_emplace(placement.pos, static_cast<int32_t>(pieces_.size()));
    if (fresh) pieces_.push_back({placement.pos, placement.count, placement.shift()});
    return it->second;
  }

  void find_index() {
    const KvShape& shape = table_.shape();
    std::map<int32_t, int32_t> piece_of;
    for (int layer = 0; layer < shape.L; ++layer) {
      std::map<int32_t, Runs> by_source;
      for (int head = 0; head < shape.G; ++head) {
        for (const KvSpan& span : spans_of(layer, head))
          by_source[source_of(span, piece_of)].push_back({span.pos, span.pos + span.count});
      }
      auto& runs = index_.emplace_back();
      for (auto& [source, list] : by_source) {
        for (const Run& run : normalize(std::move(list))) runs.push_back({run.begin, run.size(), source});
      }
      std::sort(runs.begin(), runs.end(), [](const IndexRun& a, const IndexRun& b) { return a.pos < b.pos; });
      bytes_.dense += int64_t{next_} * shape.G * 2 * shape.row_bytes();
    }
    // Numbered in the order of positions.
    std::vector<int32_t> number(pieces_.size());
    int32_t n = 0;
    for (const auto& [pos, piece] : piece_of) number[static_cast<size_t>(piece)] = n++;
    for (auto& runs : index_) {
      for (IndexRun& run : runs) run.source = run.source == kOwn ? kOwn : number[static_cast<size_t>(run.source)];
    }
    std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) { return a.pos < b.pos; });
  }

  const std::vector<std::byte>& rows_of(int layer, int head) {
    const int64_t row = table_.shape().row_bytes();
    const std::vector<KvSpan> spans = spans_of(layer, head);
    rows_.clear();
    for (const auto part : {&KvSpan::k, &KvSpan::v}) {
      for (const KvSpan& span : spans) {
        const auto* from = static_cast<const std::byte*>(span.*part);
        rows_.insert(rows_.end(), from, from + span.count * row);
      }
    }
    bytes_.kv += static_cast<int64_t>(rows_.size());
    return rows_;
  }

  const PageTable& table_;
  const std::span<const int32_t> tokens_;
  const int32_t next_;
  const ByteSink sink_;
  std::vector<Piece> pieces_;
  std::vector<std::vector<IndexRun>> index_;  // by layer
  std::vector<std::byte> rows_;
  SessionBytes bytes_;
};

// ---- In -------------------------------------------------------------------------------------------------------------

Error corrupt(const char* what) { return error(Code::kCorrupt, "session: {}", what); }

class Import {
 public:
  Import(PageStore& store, LayerRopes ropes, ByteSource source)
      : store_(store), source_(source), session_(make(store, ropes)) {}

  Result<KvSession> run(const std::string& model) {
    KVILT_TRY(read_header(model));
    KVILT_TRY(read_meta());
    KVILT_TRY(read_index());
    KVILT_TRY(place_pieces());
    KVILT_TRY(hold_own());
    for (int layer = 0; layer < store_.shape().L; ++layer) {
      for (int head = 0; head < store_.shape().G; ++head) KVILT_TRY(read_rows(layer, head));
    }
    session_.table->keep(keeps_, 0);
    session_.table->passed({0, store_.shape().L}, next_);
    return std::move(session_);
  }

 private:
  static KvSession make(PageStore& store, LayerRopes ropes) { return {{}, std::make_unique<PageTable>(store, ropes)}; }

  // A frame of `size` bytes. Memory grows with what really comes, not with what the header promises.
  Status receive(size_t size, const char* what) {
    constexpr size_t kPart = size_t{1} << 20;
    frame_.clear();
    for (size_t done = 0; done < size; done = frame_.size()) {
      frame_.resize(std::min(size, done + kPart));
      KVILT_TRY(source_(std::span(frame_).subspan(done)));
    }
    uint64_t sum;
    KVILT_TRY(source_(std::as_writable_bytes(std::span(&sum, 1))));
    at_ = 0;
    if (checksum(frame_) != sum) return error(Code::kCorrupt, "session: its {} is damaged", what);
    return {};
  }
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, frame_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  Status read_header(const std::string& model) {
    const KvShape& shape = store_.shape();
    frame_.resize(sizeof(Header));
    KVILT_TRY(source_(frame_));
    uint64_t sum;
    KVILT_TRY(source_(std::as_writable_bytes(std::span(&sum, 1))));
    at_ = 0;
    h_ = take<Header>();
    if (std::memcmp(h_.magic, kMagic, sizeof kMagic) != 0) return corrupt("these are not the bytes of one");
    if (h_.version != kVersion) {
      return error(Code::kUnsupported, "session: of version {}; this program reads {}", h_.version, kVersion);
    }
    if (checksum(frame_) != sum) return corrupt("its header is damaged");
    const Digest digest = model_digest(model);
    if (std::memcmp(h_.model, digest.data(), digest.size()) != 0) {
      return error(Code::kUnsupported, "session: of another model; only the model that computed it can go on");
    }
    if (h_.kv_type != type_number(shape.dtype)) {
      return error(Code::kUnsupported, "session: of another KV type than the pool's; start with the same --kv-type");
    }
    if (h_.L != static_cast<uint32_t>(shape.L) || h_.G != static_cast<uint32_t>(shape.G) ||
        h_.E != static_cast<uint32_t>(shape.E)) {
      return error(Code::kUnsupported, "session: {} layers of {} KV heads of {}, but the pool has {} of {} of {}", h_.L,
                   h_.G, h_.E, shape.L, shape.G, shape.E);
    }
    if (h_.positions == 0 || h_.positions > kMaxPositions || h_.placements > h_.positions ||
        h_.index_runs > kMaxIndexRuns || h_.zero != 0) {
      return corrupt("its sizes contradict each other");
    }
    next_ = static_cast<int32_t>(h_.positions);
    return {};
  }

  Status read_meta() {
    const auto heads = static_cast<size_t>(store_.shape().L * store_.shape().G);
    KVILT_TRY(receive(h_.positions * sizeof(int32_t) + h_.placements * sizeof(Piece) + heads * sizeof(HeadKeep),
                      "list of tokens and heads"));
    for (int32_t pos = 0; pos < next_; ++pos) {
      session_.tokens.push_back(take<int32_t>());
      if (session_.tokens.back() < 0) return corrupt("a token is negative");
    }
    int64_t end = 0;
    for (uint32_t i = 0; i < h_.placements; ++i) {
      const Piece piece = pieces_.emplace_back(take<Piece>());
      if (piece.pos < end || piece.count <= 0 || int64_t{piece.pos} + piece.count > next_)
        return corrupt("its pieces overlap or lie outside of it");
      const int64_t from = int64_t{piece.pos} - piece.shift;
      if (piece.shift == 0 || from < 0 || from + piece.count > kMaxPositions) return corrupt("a piece has no origin");
      end = int64_t{piece.pos} + piece.count;
    }
    for (size_t i = 0; i < heads; ++i) {
      const HeadKeep keep = keeps_.emplace_back(take<HeadKeep>());
      if (keep.sink < 0 || keep.window < -1) return corrupt("a head keeps less than nothing");
    }
    return {};
  }

  Status read_index() {
    const auto L = static_cast<size_t>(store_.shape().L);
    KVILT_TRY(receive(L * sizeof(uint32_t) + h_.index_runs * sizeof(IndexRun), "index"));
    std::vector<uint32_t> counts;
    uint64_t sum = 0;
    for (size_t layer = 0; layer < L; ++layer) sum += counts.emplace_back(take<uint32_t>());
    if (sum != h_.index_runs) return corrupt("its index contradicts itself");
    for (const uint32_t count : counts) {
      auto& runs = index_.emplace_back();
      int64_t end = 0;
      for (uint32_t i = 0; i < count; ++i) {
        const IndexRun run = runs.emplace_back(take<IndexRun>());
        if (run.pos < end || run.count <= 0 || int64_t{run.pos} + run.count > next_ || run.source < kOwn ||
            run.source >= static_cast<int32_t>(pieces_.size())) {
          return corrupt("its index is out of order");
        }
        end = int64_t{run.pos} + run.count;
        if (run.source == kOwn) continue;
        const Piece& piece = pieces_[static_cast<size_t>(run.source)];
        if (run.pos < piece.pos || end > int64_t{piece.pos} + piece.count) return corrupt("its index leaves a piece");
      }
    }
    return {};
  }

  Error full(int64_t missing) const {
    return error(Code::kExhausted, "session: {} tokens need {} more free KV pages of {}", next_, missing,
                 store_.pages());
  }

  // Every piece as a run of its own, with pages for what heads keep of it; the rows come later.
  Status place_pieces() {
    const KvShape& shape = store_.shape();
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      auto run = std::make_shared<KvRun>();
      const auto first = session_.tokens.begin() + piece.pos;
      run->tokens.assign(first, first + piece.count);
      run->pos = piece.pos - piece.shift;
      auto pages = std::make_shared<PageList>(store_);
      for (int layer = 0; layer < shape.L; ++layer) {
        SlotMap map;
        for (const IndexRun& at : index_[static_cast<size_t>(layer)]) {
          if (at.source != static_cast<int32_t>(i)) continue;
          map.runs.push_back({at.pos - piece.shift, at.count, map.slots});
          map.slots += at.count;
        }
        if (run->maps.empty() || run->maps.back().runs != map.runs) run->maps.push_back(std::move(map));
        run->map_of.push_back(static_cast<uint16_t>(run->maps.size() - 1));
        KVILT_TRY(hold_piece(run->maps.back(), layer, piece.shift, *pages));
      }
      run->pages = pages;
      piece_pages_.push_back(std::move(pages));
      session_.table->place({run, 0, piece.count, piece.pos});
      piece_runs_.push_back(std::move(run));
    }
    return {};
  }

  Status hold_piece(const SlotMap& map, int layer, int32_t shift, PageList& pages) {
    const KvShape& shape = store_.shape();
    for (int head = 0; head < shape.G; ++head) {
      for (const Run& seen : kept(keeps_[static_cast<size_t>(layer * shape.G + head)], next_)) {
        for (const SlotRun& at : map.within({seen.begin - shift, seen.end - shift})) {
          for (int32_t page = at.slot / shape.P; page <= (at.slot + at.count - 1) / shape.P; ++page) {
            if (pages.held(layer, head, page)) continue;
            if (store_.free_pages() == 0) return full(1);
            pages.hold(layer, head, page);
          }
        }
      }
    }
    return {};
  }

  Status hold_own() {
    PageTable& table = *session_.table;
    std::vector<Runs> sets;
    std::vector<uint16_t> write;
    for (const auto& runs : index_) {
      Runs own;
      for (const IndexRun& run : runs) {
        if (run.source == kOwn) own.push_back({run.pos, run.pos + run.count});
      }
      own = normalize(std::move(own));
      if (sets.empty() || sets.back() != own) sets.push_back(std::move(own));
      write.push_back(static_cast<uint16_t>(sets.size() - 1));
    }
    table.keep(keeps_, 0);
    if (const int64_t need = table.pages_for(sets, write); need > store_.free_pages())
      return full(need - store_.free_pages());
    table.add(sets, write);
    if (const int64_t need = table.pages_for_kept(next_); need > store_.free_pages())
      return full(need - store_.free_pages());
    table.hold_kept(next_);
    return {};
  }

  // The rows that a head keeps, into the pages that were held for them.
  Status read_rows(int layer, int head) {
    const auto row = static_cast<size_t>(store_.shape().row_bytes());
    const Runs seen = kept(keeps_[static_cast<size_t>(layer * store_.shape().G + head)], next_);
    std::vector<IndexRun> parts;
    size_t rows = 0;
    for (const IndexRun& run : index_[static_cast<size_t>(layer)]) {
      for (const Run& part : intersect(Runs{{run.pos, run.pos + run.count}}, seen)) {
        parts.push_back({part.begin, part.size(), run.source});
        rows += static_cast<size_t>(part.size());
      }
    }
    KVILT_TRY(receive(2 * rows * row, "keys and values"));
    const std::byte *k = frame_.data(), *v = frame_.data() + rows * row;
    for (const IndexRun& part : parts) {
      for (int32_t pos = part.pos; pos < part.pos + part.count; ++pos, k += row, v += row) {
        if (part.source == kOwn) {
          session_.table->restore(layer, head, pos, k, v);
          continue;
        }
        const auto piece = static_cast<size_t>(part.source);
        const KvRun& run = *piece_runs_[piece];
        const int32_t slot = run.maps[run.map_of[static_cast<size_t>(layer)]].slot_of(pos - pieces_[piece].shift);
        std::memcpy(piece_pages_[piece]->k(layer, head, slot), k, row);
        std::memcpy(piece_pages_[piece]->v(layer, head, slot), v, row);
      }
    }
    return {};
  }

  PageStore& store_;
  const ByteSource source_;
  KvSession session_;
  Header h_{};
  int32_t next_ = 0;
  std::vector<std::byte> frame_;
  size_t at_ = 0;
  std::vector<Piece> pieces_;
  std::vector<HeadKeep> keeps_;
  std::vector<std::vector<IndexRun>> index_;
  std::vector<std::shared_ptr<PageList>> piece_pages_;
  std::vector<std::shared_ptr<const KvRun>> piece_runs_;
};

Error system_error(const std::string& what) { return error(Code::kIo, "{}: {}", what, std::strerror(errno)); }

struct Fd {
  int fd;
  ~Fd() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

Result<SessionBytes> export_session(const PageTable& table, std::span<const int32_t> tokens, const std::string& model,
                                    ByteSink sink) {
  CHECK(!tokens.empty() && tokens.size() <= kMaxPositions);
  return Export(table, tokens, sink).run(model);
}

Result<KvSession> import_session(PageStore& store, LayerRopes ropes, const std::string& model, ByteSource source) {
  return Import(store, ropes, source).run(model);
}

Status write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("session: cannot write");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status read_all(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::read(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("session: cannot read");
    if (n == 0) return corrupt("cut short");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Result<SessionBytes> save_session(const std::string& path, const PageTable& table, std::span<const int32_t> tokens,
                                  const std::string& model) {
  const std::string beside = path + ".part";
  Fd file{::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)};
  if (file.fd < 0) return system_error(beside);
  auto done = export_session(table, tokens, model, [&](std::span<const std::byte> b) { return write_all(file.fd, b); });
  if (!done.ok()) {
    ::unlink(beside.c_str());
    return done;
  }
  if (::rename(beside.c_str(), path.c_str()) != 0) return system_error(path);
  return done;
}

Result<KvSession> load_session(const std::string& path, PageStore& store, LayerRopes ropes, const std::string& model) {
  const Fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return error(Code::kNotFound, "{}: {}", path, std::strerror(errno));
  auto session = import_session(store, ropes, model, [&](std::span<std::byte> b) { return read_all(file.fd, b); });
  if (!session.ok()) return error(session.error().code, "{}: {}", path, session.error().message);
  std::byte more;
  if (::read(file.fd, &more, 1) != 0) return error(Code::kCorrupt, "{}: session: longer than it says", path);
  return session;
}

}  // namespace kvilt
