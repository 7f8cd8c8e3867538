#include "forward/pack_cache.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/error.h"
#include "base/hex.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".pack";
constexpr size_t kTemporary = 7;            // ".XXXXXX" after the suffix while it is written
constexpr size_t kSpare = size_t{1} << 30;  // of the disk, left free

// Names the weight file, however it may change: a word for people, and a hash of its path.
std::string stem(const SourceFile& first, const std::string& layout) {
  std::string word = fs::path(first.path).stem().string().substr(0, 64);
  for (char& c : word) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') c = '_';
  }
  const Digest path = KeyedHash(HashSecret::fixed(0), "kvilt.pack.path").add(first.path).finish();
  return fmt::format("{}-{}-{}-", word, hex_text(std::span(path).first(4)), layout);
}

// What the packed bytes depend on: the files as they are now, and the layout.
Digest key_of(const ModelFile& model, const PackLayout& layout) {
  KeyedHash hash(HashSecret::fixed(0), "kvilt.pack");
  hash.add(layout.name).add(std::to_string(layout.version)).add(model.fingerprint);
  for (const SourceFile& file : model.sources) {
    hash.add(std::to_string(file.bytes.size())).add(std::to_string(file.modified_ns));
  }
  return hash.finish();
}

}  // namespace

PackCache::PackCache(std::string folder, const ModelFile& model, const Backend& backend, ThreadPool& pool)
    : model_(model), backend_(backend), pool_(pool), folder_(std::move(folder)) {
  const PackLayout layout = backend.layout();
  if (layout.name.empty() || model.sources.empty()) folder_.clear();
  if (folder_.empty()) return;
  key_ = key_of(model, layout);
  prefix_ = stem(model.sources.front(), std::string(layout.name));
  name_ = prefix_ + hex_text(std::span(key_).first(8)) + std::string(kSuffix);
  auto opened = PackFile::open((fs::path(folder_) / name_).string(), key_, pool);
  if (opened.ok()) {
    file_.emplace(std::move(opened).value());
  } else if (opened.error().code != Code::kNotFound) {
    spdlog::warn("packed weights are made again: {}", opened.error().message);
  }
}

std::optional<PackSource> PackCache::source_of(const WeightView& w) const {
  if (w.activations != Activations::kAuto) return {};  // perhaps widened: several times the file
  for (size_t i = 0; i < model_.sources.size(); ++i) {
    const std::span<const std::byte> bytes = model_.sources[i].bytes;
    if (w.data < bytes.data() || w.data >= bytes.data() + bytes.size()) continue;
    return PackSource{static_cast<uint32_t>(i), w.dtype, static_cast<uint64_t>(w.data - bytes.data()), w.rows, w.cols};
  }
  return {};  // made in memory: packed at every start, as above
}

std::unique_ptr<PackedWeight> PackCache::get(const WeightView& w) {
  std::optional<PackSource> source;
  if (!folder_.empty()) source = source_of(w);
  const PackEntry* entry = file_ && source ? file_->find(*source) : nullptr;
  std::unique_ptr<PackedWeight> weight;
  if (entry) weight = backend_.adopt(w, entry->image, file_->memory());
  if (weight) {
    ++adopted_;
  } else {
    weight = backend_.pack(w, pool_);
    if (source) ++packed_;
  }
  if (source && !weight->image.empty()) entries_.push_back({*source, weight->image});
  return weight;
}

void PackCache::keep() {
  if (folder_.empty() || packed_ == 0) return;
  const auto before = [](const PackEntry& a, const PackEntry& b) { return a.source < b.source; };
  std::ranges::sort(entries_, before);
  const auto same = [](const PackEntry& a, const PackEntry& b) { return a.source == b.source; };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
  size_t bytes = 0;
  for (const PackEntry& entry : entries_) bytes += entry.image.size();

  std::error_code failed;
  fs::create_directories(folder_, failed);
  sweep();
  const fs::space_info space = fs::space(folder_, failed);
  if (failed || space.available < bytes + kSpare) {
    spdlog::warn(
        "packed weights are not kept: {}: {}", folder_,
        failed ? failed.message() : fmt::format("{} MiB and {} spare are not free", bytes >> 20, kSpare >> 20));
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  const std::string path = (fs::path(folder_) / name_).string();
  if (const Status written = PackFile::write(path, key_, std::move(entries_), pool_); !written.ok()) {
    spdlog::warn("packed weights are not kept: {}", written.error().message);
    return;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  spdlog::info("packed weights kept for the next start: {} ({} MiB, {:.1f} s)", path, bytes >> 20, took.count());
}

// Deletes what earlier versions of these files left, and temporary files that no writer holds.
void PackCache::sweep() const {
  std::error_code failed;
  for (const auto& item : fs::directory_iterator(folder_, failed)) {
    const std::string name = item.path().filename().string();
    if (name.rfind(prefix_, 0) != 0) continue;
    const std::string rest = name.substr(prefix_.size());
    const size_t whole = 2 * 8 + kSuffix.size();
    if (rest.size() == whole && rest.ends_with(kSuffix) && name != name_) fs::remove(item.path(), failed);
    if (rest.size() != whole + kTemporary) continue;
    const int fd = ::open(item.path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlink(item.path().c_str());
    ::close(fd);
  }
}

}  // namespace kvilt
