#include "kv/session_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "base/check.h"
#include "base/checksum.h"
#include "base/error.h"
#include "kv/session_reader.h"

namespace kvilt {
namespace {

KeyMask mask_of(const HeadKeep& keep) { return {.sink = keep.sink, .window = keep.window}; }

// ---- Out ------------------------------------------------------------------------------------------------------------

class Export {
 public:
  Export(const PageTable& table, std::span<const int32_t> tokens, int32_t follow, ByteSink sink)
      : table_(table), tokens_(tokens), next_(static_cast<int32_t>(tokens.size()) - follow), sink_(sink) {}

  Result<SessionBytes> run(const std::string& model) {
    const KvShape& shape = table_.shape();
    find_index();
    SessionHeader h = session_header(shape, model);
    h.positions = static_cast<uint32_t>(next_);
    h.pieces = static_cast<uint32_t>(pieces_.size());
    h.follow = static_cast<uint32_t>(tokens_.size()) - h.positions;
    std::vector<std::byte> index;
    for (const auto& runs : index_) append(index, static_cast<uint32_t>(runs.size()));
    for (const auto& runs : index_) {
      h.index_runs += runs.size();
      for (const SessionRun& run : runs) append(index, run);
    }
    std::vector<std::byte> header, meta;
    append(header, h);
    for (const int32_t token : tokens_) append(meta, token);
    for (const SessionPiece& piece : pieces_) append(meta, piece);
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

  // The number of the piece that holds the span; kOwn where the span is not rotated (no shift, or one that is ignored).
  int32_t source_of(const KvSpan& span, std::map<int32_t, int32_t>& piece_of) {
    if (!span.rotation) return SessionRun::kOwn;
    const auto placements = table_.placements();
    const auto after = std::ranges::upper_bound(placements, span.pos, {}, &Placement::pos);
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
      std::ranges::sort(runs, {}, &SessionRun::pos);
      bytes_.dense += int64_t{next_} * shape.G * 2 * shape.row_bytes();
    }
    // Pieces are numbered in the order of their positions.
    std::vector<int32_t> number(pieces_.size());
    int32_t n = 0;
    for (const auto& [pos, piece] : piece_of) number[piece] = n++;
    for (auto& runs : index_) {
      for (SessionRun& run : runs) run.source = run.source == SessionRun::kOwn ? SessionRun::kOwn : number[run.source];
    }
    std::ranges::sort(pieces_, {}, &SessionPiece::pos);
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
  std::vector<SessionPiece> pieces_;
  std::vector<std::vector<SessionRun>> index_;  // by layer
  std::vector<std::byte> rows_;
  SessionBytes bytes_;
};

// ---- In -------------------------------------------------------------------------------------------------------------

class Import {
 public:
  Import(PageStore& store, LayerRopes ropes, ByteSource source)
      : store_(store), in_(source), session_{{}, {}, std::make_unique<PageTable>(store, ropes)} {}

  Result<KvSession> run(const std::string& model) {
    const SessionHeader expected = session_header(store_.shape(), model);
    KVILT_TRY(in_.read_head(&expected));
    next_ = in_.positions();
    session_.tokens.assign(in_.tokens().begin(), in_.tokens().begin() + next_);
    session_.follow.assign(in_.tokens().begin() + next_, in_.tokens().end());
    KVILT_TRY(place_pieces());
    KVILT_TRY(hold_own());
    for (int layer = 0; layer < in_.L(); ++layer) {
      for (int head = 0; head < in_.G(); ++head) KVILT_TRY(read_rows(layer, head));
    }
    session_.table->keep(in_.keeps(), 0);
    session_.table->passed({0, store_.shape().layers()}, next_);
    return std::move(session_);
  }

 private:
  Error full(int64_t missing) const {
    return error(Code::kExhausted, "session: {} tokens need {} more free KV pages of {}", next_, missing,
                 store_.pages());
  }

  // Places every piece as a segment of its own, with pages for what the heads keep of it; the rows come later.
  Status place_pieces() {
    const KvShape& shape = store_.shape();
    // By their source, each's in order: were all looked through for each piece, made-up bytes would cost the square.
    std::vector<std::vector<SessionRun>> runs(static_cast<size_t>(shape.L));
    for (int layer = 0; layer < shape.L; ++layer) {
      runs[layer].assign(in_.index(layer).begin(), in_.index(layer).end());
      std::ranges::stable_sort(runs[layer], {}, &SessionRun::source);
    }
    for (size_t i = 0; i < in_.pieces().size(); ++i) {
      const SessionPiece& piece = in_.pieces()[i];
      std::vector<SlotMap> maps;
      std::vector<uint16_t> map_of;
      auto pages = std::make_unique<PageList>(store_);
      for (int layer = 0; layer < shape.L; ++layer) {
        SlotMap map;
        const auto source = static_cast<int32_t>(i);
        auto at = std::ranges::lower_bound(runs[layer], source, {}, &SessionRun::source);
        for (; at != runs[layer].end() && at->source == source; ++at) {
          map.runs.push_back({at->pos - piece.shift, at->count, map.slots});
          map.slots += at->count;
        }
        if (maps.empty() || maps.back().runs != map.runs) maps.push_back(std::move(map));
        map_of.push_back(static_cast<uint16_t>(maps.size() - 1));
        KVILT_TRY(hold_piece(maps.back(), layer, piece.shift, *pages));
      }
      const Run positions{piece.pos - piece.shift, piece.pos - piece.shift + piece.count};
      const auto segment = std::make_shared<const KvSegment>(positions, std::move(maps), std::move(map_of), *pages);
      piece_pages_.push_back(std::move(pages));
      session_.table->place({segment, 0, piece.count, piece.pos});
      piece_segments_.push_back(segment);
    }
    return {};
  }

  Status hold_piece(const SlotMap& map, int layer, int32_t shift, PageList& pages) {
    const KvShape& shape = store_.shape();
    for (int head = 0; head < shape.G; ++head) {
      for (const Run& seen : kept_positions(in_.keep(layer, head), next_)) {
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
    for (int layer = 0; layer < in_.L(); ++layer) {
      Runs own;
      for (const SessionRun& run : in_.index(layer)) {
        if (run.source == SessionRun::kOwn) own.push_back({run.pos, run.pos + run.count});
      }
      own = normalize(std::move(own));
      if (sets.empty() || sets.back() != own) sets.push_back(std::move(own));
      write.push_back(static_cast<uint16_t>(sets.size() - 1));
    }
    table.keep(in_.keeps(), 0);
    if (const int64_t need = table.pages_for(sets, write); need > store_.free_pages())
      return full(need - store_.free_pages());
    table.add(sets, write);
    if (const int64_t need = table.pages_for_kept(next_); need > store_.free_pages())
      return full(need - store_.free_pages());
    table.hold_kept(next_);
    return {};
  }

  // Reads the rows that a head keeps into the pages that were held for them.
  Status read_rows(int layer, int head) {
    KVILT_ASSIGN(const SessionReader::Rows rows, in_.read_rows(layer, head));
    const std::byte *k = rows.k, *v = rows.v;
    for (const SessionRun& part : rows.parts) {
      for (int32_t pos = part.pos; pos < part.pos + part.count; ++pos, k += rows.row_bytes, v += rows.row_bytes) {
        if (part.source == SessionRun::kOwn) {
          session_.table->restore(layer, head, pos, k, v);
          continue;
        }
        const auto piece = static_cast<size_t>(part.source);
        const KvSegment& segment = *piece_segments_[piece];
        const int32_t slot = segment.map(layer).slot_of(pos - in_.pieces()[piece].shift);
        std::memcpy(piece_pages_[piece]->k(layer, head, slot), k, rows.row_bytes);
        std::memcpy(piece_pages_[piece]->v(layer, head, slot), v, rows.row_bytes);
      }
    }
    return {};
  }

  PageStore& store_;
  SessionReader in_;
  KvSession session_;
  int32_t next_ = 0;
  std::vector<std::unique_ptr<PageList>> piece_pages_;
  std::vector<std::shared_ptr<const KvSegment>> piece_segments_;
};

// An upper bound of the pages that an import holds at once.
int64_t pages_of(const SessionReader& in, const KvShape& shape) {
  const auto in_pages = [P = shape.P](int64_t positions) { return positions <= 0 ? 0 : (positions + P - 2) / P + 1; };
  int64_t pages = 0;
  for (int layer = 0; layer < shape.L; ++layer) {
    for (int head = 0; head < shape.G; ++head) {
      const HeadKeep& keep = in.keep(layer, head);
      const Runs kept = kept_positions(keep, in.positions());
      int64_t own = 0, parts = 0;
      for (const SessionRun& run : in.index(layer)) {
        if (run.source == SessionRun::kOwn) own += run.count;
        for (const Run& part : intersect(Runs{{run.pos, run.pos + run.count}}, kept))
          (run.source == SessionRun::kOwn ? parts : pages) += in_pages(part.size());
      }
      const int64_t reserved = keep.all() ? INT64_MAX : in_pages(keep.sink) + in_pages(int64_t{keep.window} + 1);
      pages += std::min((own + shape.P - 1) / shape.P, std::max(parts, reserved));
    }
  }
  return pages;
}

}  // namespace

Result<SessionBytes> export_session(const PageTable& table, std::span<const int32_t> tokens, const std::string& model,
                                    ByteSink sink, int32_t follow) {
  CHECK(follow >= 0 && tokens.size() > static_cast<size_t>(follow) && tokens.size() <= SessionReader::kMaxPositions);
  return Export(table, tokens, follow, sink).run(model);
}

Result<KvSession> import_session(PageStore& store, LayerRopes ropes, const std::string& model, ByteSource source) {
  return Import(store, ropes, source).run(model);
}

Result<KvSession> import_session(PageStore& store, LayerRopes ropes, const std::string& model,
                                 std::span<const std::byte> bytes) {
  FromMemory source{bytes};
  return import_session(store, ropes, model, source);
}

Result<SessionSummary> check_session(std::span<const std::byte> bytes, const KvShape& shape, const std::string& model) {
  FromMemory source{bytes};
  SessionReader in(source);
  const SessionHeader expected = session_header(shape, model);
  KVILT_TRY(in.read_head(&expected));
  for (int i = 0; i < in.L() * in.G(); ++i) KVILT_TRY(in.read_rows(i / in.G(), i % in.G()));
  if (!source.bytes.empty()) return corrupt_session("longer than it says");
  return SessionSummary{in.tokens(), in.positions(), in.keeps(), pages_of(in, shape)};
}

Result<ReceivedSession> receive_session(ByteSource source) {
  ReceivedSession out;
  const auto keep = [&](std::span<std::byte> part) -> Status {
    KVILT_TRY(source(part));
    out.bytes.insert(out.bytes.end(), part.begin(), part.end());
    return {};
  };
  SessionReader in(keep);
  KVILT_TRY(in.read_head(nullptr));
  for (int i = 0; i < in.L() * in.G(); ++i) {
    KVILT_ASSIGN(const SessionReader::Rows rows, in.read_rows(i / in.G(), i % in.G()));
    out.sizes.kv += static_cast<int64_t>(2 * rows.count * rows.row_bytes);
    out.sizes.dense += static_cast<int64_t>(2 * rows.row_bytes) * in.positions();
  }
  out.sizes.moved = static_cast<int64_t>(out.bytes.size());
  return out;
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
    if (n == 0) return corrupt_session("cut short");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

}  // namespace kvilt
