#include "forward/pack_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/checksum.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "tensor/view.h"

namespace kvilt {
namespace {

static_assert(std::endian::native == std::endian::little, "the numbers of the file are little-endian");

constexpr char kMagic[8] = {'k', 'v', 'i', 'l', 't', 'p', 'a', 'k'};
constexpr uint32_t kVersion = 1;
constexpr size_t kBlock = size_t{4} << 20;  // of the data, one checksum each; also what is written at once
constexpr size_t kAlign = 64;
constexpr uint32_t kMaxEntries = 1 << 20;

struct Header {
  char magic[8];
  uint32_t version, entries;
  uint64_t file_bytes, data_begin;
  uint8_t key[16];
  uint64_t blocks;
  uint64_t checksum;  // of the bytes before data_begin, this number taken as 0
};
struct Entry {
  uint32_t file, dtype;
  uint64_t offset, rows, cols;  // of the source
  uint64_t begin, bytes;        // from data_begin
};
static_assert(sizeof(Header) == 64 && sizeof(Entry) == 48);

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
size_t index_bytes(size_t entries, size_t blocks) {
  return aligned(sizeof(Header) + entries * sizeof(Entry) + blocks * sizeof(uint64_t));
}
size_t blocks_of(size_t data_bytes) { return (data_bytes + kBlock - 1) / kBlock; }

// Bytes before the data, their checksum in place.
uint64_t index_checksum(std::span<const std::byte> index) {
  std::vector<std::byte> copy(index.begin(), index.end());
  std::memset(copy.data() + offsetof(Header, checksum), 0, sizeof(uint64_t));
  return checksum(copy);
}

Error damaged(const std::string& path, const char* what) { return error(Code::kCorrupt, "{}: {}", path, what); }

// The header, if file and header agree. Then the index [0, data_begin) is inside the file.
Result<Header> read_header(std::span<const std::byte> file, const std::string& path, const Digest& key) {
  Header h;
  if (file.size() < sizeof h) return damaged(path, "shorter than its header");
  std::memcpy(&h, file.data(), sizeof h);
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0) return damaged(path, "not a file of packed weights");
  if (h.version != kVersion) return damaged(path, "of another version");
  if (std::memcmp(h.key, key.data(), key.size()) != 0) return damaged(path, "of other weights");
  if (h.file_bytes != file.size()) return damaged(path, "cut short or longer than it says");
  if (h.entries > kMaxEntries || h.blocks > file.size() / kBlock + 1 ||
      h.data_begin != index_bytes(h.entries, h.blocks) || h.data_begin > file.size() ||
      h.blocks != blocks_of(file.size() - h.data_begin)) {
    return damaged(path, "its sizes contradict each other");
  }
  if (index_checksum(file.first(h.data_begin)) != h.checksum) return damaged(path, "its index is damaged");
  return h;
}

Result<std::vector<PackEntry>> read_entries(std::span<const std::byte> file, const Header& h, const std::string& path) {
  const std::span<const std::byte> data = file.subspan(h.data_begin);
  std::vector<PackEntry> out;
  for (uint32_t i = 0; i < h.entries; ++i) {
    Entry e;
    std::memcpy(&e, file.data() + sizeof h + i * sizeof e, sizeof e);
    if (e.dtype > static_cast<uint32_t>(kLastDType) || e.rows > INT64_MAX || e.cols > INT64_MAX ||
        e.begin % kAlign != 0 || e.begin > data.size() || e.bytes > data.size() - e.begin) {
      return damaged(path, "an entry lies outside of it");
    }
    const PackSource source{e.file, static_cast<DType>(e.dtype), e.offset, static_cast<int64_t>(e.rows),
                            static_cast<int64_t>(e.cols)};
    if (!out.empty() && !(out.back().source < source)) return damaged(path, "its entries are not in order");
    out.push_back({source, data.subspan(e.begin, e.bytes)});
  }
  return out;
}

std::span<const std::byte> block(std::span<const std::byte> data, size_t i) {
  return data.subspan(i * kBlock, std::min(kBlock, data.size() - i * kBlock));
}

// True if every block of `data` has its checksum. With `copy`, data is copied there first, and the copy is checked.
bool check_blocks(std::span<const std::byte> data, const std::byte* sums, std::byte* copy, ThreadPool& pool) {
  std::atomic<bool> good = true;
  pool.parallel_for(static_cast<int64_t>(blocks_of(data.size())), [&](int64_t i, int) {
    std::span<const std::byte> part = block(data, static_cast<size_t>(i));
#ifdef MADV_POPULATE_READ
    if (!copy) {  // one call instead of a fault per 64 KB where pages are small
      const auto at = reinterpret_cast<uintptr_t>(part.data()), page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
      ::madvise(reinterpret_cast<void*>(at / page * page), part.size() + at % page, MADV_POPULATE_READ);
    }
#endif
    if (copy) {
      std::byte* to = copy + static_cast<size_t>(i) * kBlock;
      std::memcpy(to, part.data(), part.size());
      part = {to, part.size()};
    }
    uint64_t wanted;
    std::memcpy(&wanted, sums + static_cast<size_t>(i) * sizeof wanted, sizeof wanted);
    if (checksum(part) != wanted) good.store(false, std::memory_order_relaxed);
  });
  return good;
}

}  // namespace

Result<PackFile> PackFile::open(const std::string& path, const Digest& key, ThreadPool& pool) {
  KVILT_ASSIGN(MappedFile opened, MappedFile::open(path, MapUse::kWhole));
  auto file = std::make_shared<const MappedFile>(std::move(opened));
  KVILT_ASSIGN(const Header h, read_header(file->bytes(), path, key));
  PackFile out;
  KVILT_ASSIGN(out.entries_, read_entries(file->bytes(), h, path));
  const std::span<const std::byte> data = file->bytes().subspan(h.data_begin);
  const std::byte* sums = file->bytes().data() + sizeof h + h.entries * sizeof(Entry);
  if (!check_blocks(data, sums, nullptr, pool)) return damaged(path, "its contents are damaged");
  out.memory_ = file;
  // Small pages read a quarter slower, at every step: then one copy into huge ones pays within 50 tokens.
  if (data.size() > kBlock && file->huge_bytes() < data.size() / 2) {
    auto copy = std::make_shared<const Buffer>(data.size());
    if (!check_blocks(data, sums, copy->as<std::byte>(), pool)) return damaged(path, "its contents changed");
    for (PackEntry& e : out.entries_)
      e.image = {copy->as<std::byte>() + (e.image.data() - data.data()), e.image.size()};
    out.memory_ = copy;
    out.mapped_ = false;
  }
  return out;
}

const PackEntry* PackFile::find(const PackSource& source) const {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), source,
                                   [](const PackEntry& e, const PackSource& s) { return e.source < s; });
  return at != entries_.end() && at->source == source ? &*at : nullptr;
}

namespace {

// Collects bytes and writes them kBlock at a time: the page cache then takes large pages.
class Writer {
 public:
  explicit Writer(int fd) : fd_(fd) { buffer_.reserve(kBlock); }
  bool add(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const size_t n = std::min(bytes.size(), kBlock - buffer_.size());
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
      bytes = bytes.subspan(n);
      if (buffer_.size() == kBlock && !flush()) return false;
    }
    return true;
  }
  bool flush() {
    size_t done = 0;
    while (done < buffer_.size()) {
      const ssize_t n = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      done += static_cast<size_t>(n);
    }
    buffer_.clear();
    return true;
  }

 private:
  const int fd_;
  std::vector<std::byte> buffer_;
};

constexpr std::byte kZeros[kAlign] = {};

// The data: every image, padded to kAlign. Calls take(bytes) for its parts in order; stops when that says false.
template <class Take>
bool stream(std::span<const PackEntry> entries, Take take) {
  for (const PackEntry& e : entries) {
    if (!take(e.image) || !take({kZeros, aligned(e.image.size()) - e.image.size()})) return false;
  }
  return true;
}

// Checksums of the data's blocks. A block may hold parts of several images, so it is put together first.
std::vector<uint64_t> block_sums(std::span<const PackEntry> entries, std::span<const uint64_t> begins,
                                 size_t data_bytes, ThreadPool& pool) {
  std::vector<uint64_t> sums(blocks_of(data_bytes));
  pool.parallel_for(static_cast<int64_t>(sums.size()), [&](int64_t i, int) {
    const size_t from = static_cast<size_t>(i) * kBlock, end = std::min(data_bytes, from + kBlock);
    std::vector<std::byte> bytes(end - from);
    size_t e = static_cast<size_t>(std::upper_bound(begins.begin(), begins.end(), from) - begins.begin()) - 1;
    for (; e < entries.size() && begins[e] < end; ++e) {
      const std::span<const std::byte> image = entries[e].image;
      const size_t first = std::max(from, static_cast<size_t>(begins[e]));
      const size_t last = std::min(end, static_cast<size_t>(begins[e]) + image.size());
      if (first < last) std::memcpy(bytes.data() + (first - from), image.data() + (first - begins[e]), last - first);
    }
    sums[i] = checksum(bytes);
  });
  return sums;
}

std::vector<std::byte> make_index(const Digest& key, std::span<const PackEntry> entries, ThreadPool& pool) {
  std::vector<uint64_t> begins;
  size_t data_bytes = 0;
  for (const PackEntry& e : entries) {
    begins.push_back(data_bytes);
    data_bytes += aligned(e.image.size());
  }
  const std::vector<uint64_t> sums = block_sums(entries, begins, data_bytes, pool);
  std::vector<std::byte> index(index_bytes(entries.size(), sums.size()));
  Header h = {};
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  h.version = kVersion;
  h.entries = static_cast<uint32_t>(entries.size());
  h.data_begin = index.size();
  h.file_bytes = index.size() + data_bytes;
  h.blocks = sums.size();
  std::memcpy(h.key, key.data(), key.size());
  std::memcpy(index.data(), &h, sizeof h);
  for (size_t i = 0; i < entries.size(); ++i) {
    const PackSource& s = entries[i].source;
    const Entry e = {s.file,
                     static_cast<uint32_t>(s.dtype),
                     s.offset,
                     static_cast<uint64_t>(s.rows),
                     static_cast<uint64_t>(s.cols),
                     begins[i],
                     entries[i].image.size()};
    std::memcpy(index.data() + sizeof h + i * sizeof e, &e, sizeof e);
  }
  std::memcpy(index.data() + sizeof h + entries.size() * sizeof(Entry), sums.data(), sums.size() * sizeof(uint64_t));
  h.checksum = index_checksum(index);
  std::memcpy(index.data() + offsetof(Header, checksum), &h.checksum, sizeof h.checksum);
  return index;
}

}  // namespace

Status PackFile::write(const std::string& path, const Digest& key, std::vector<PackEntry> entries, ThreadPool& pool) {
  std::ranges::sort(entries, {}, &PackEntry::source);
  const std::vector<std::byte> index = make_index(key, entries, pool);
  std::string temporary = path + ".XXXXXX";
  const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return error(Code::kIo, "{}: cannot create: {}", temporary, std::strerror(errno));
  ::flock(fd, LOCK_EX | LOCK_NB);  // a temporary file without a lock is nobody's (pack_cache.cc)
  Writer writer(fd);
  const bool written = writer.add(index) &&
                       stream(entries, [&](std::span<const std::byte> part) { return writer.add(part); }) &&
                       writer.flush();
  const bool renamed = written && ::rename(temporary.c_str(), path.c_str()) == 0;
  const int why = errno;
  if (!renamed) ::unlink(temporary.c_str());
  ::close(fd);
  if (!renamed) return error(Code::kIo, "{}: cannot write: {}", path, std::strerror(why));
  return {};
}

}  // namespace kvilt
