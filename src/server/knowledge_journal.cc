#include "server/knowledge_journal.h"

#include <fcntl.h>
#include <sodium.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/hex.h"
#include "base/json_size.h"

namespace kvilt::server {
namespace {

namespace fs = std::filesystem;
constexpr const char* kEnding = ".knowledge";
constexpr std::string_view kAside = ".new";  // behind the name of a file that is written anew
constexpr const char* kFormat = "kvilt knowledge base";
constexpr int kOldest = 1;  // a version that can be read: its lines are void by their documents' ids
constexpr int kOwnerOnly = 0600;
constexpr auto kBlanks = [] {
  std::array<char, size_t{16} << 10> blanks{};
  blanks.fill(' ');
  return blanks;
}();

// Names are the clients' words: no path is made of them.
std::string file_name(const KnowledgeJournal::Owner& owner, const std::optional<HashSecret>& key) {
  return (key ? KnowledgeSeal::name_of(*key, owner.tenant, owner.name) : name_of(owner.tenant, owner.name)) + kEnding;
}

Status sync_folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const Error why = system_error(folder);
  if (fd >= 0) ::close(fd);
  if (!synced) return why;
  return {};
}

Result<std::string> read_all(int file, const std::string& path) {
  struct stat info;
  if (::fstat(file, &info) != 0) return system_error(path);
  std::string out(static_cast<size_t>(info.st_size), '\0');
  for (size_t done = 0; done < out.size();) {
    const ssize_t n = ::pread(file, out.data() + done, out.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n == 0 ? error(Code::kIo, "{}: it became shorter while it was read", path) : system_error(path);
    done += static_cast<size_t>(n);
  }
  return out;
}

// Copies of deeply nested values, and their texts, are made by recursion.
Result<Json> parse_object(std::string_view line) {
  constexpr JsonLimits kOurs{.depth = 8, .values = SIZE_MAX};  // a line may make any number of others void
  if (auto why = oversized_json(line, kOurs, "this")) return Error{Code::kCorrupt, std::move(*why)};
  Json json = Json::parse(line.begin(), line.end(), nullptr, false);
  if (json.is_discarded()) return error(Code::kCorrupt, "this is not JSON");
  if (!json.is_object()) return error(Code::kCorrupt, "this is no object");
  return json;
}

// What a crash leaves while a base is made: nothing, or the beginning of its first line. Anything else is damage.
bool is_unborn(std::string_view text) {
  constexpr size_t kLongest = 4096;  // of a first line: names of tenants and bases are short
  const std::string any = dump({{"format", kFormat}, {"version", 0}});
  const std::string_view fixed = std::string_view(any).substr(0, any.find('0'));
  return text.size() < kLongest && text.substr(0, fixed.size()) == fixed.substr(0, text.size());
}

Status read_owner(const Json& head, KnowledgeJournal::Owner& owner) {
  const Json tenant = head.value("tenant", Json()), name = head.value("name", Json());
  const Json created = head.value("created", Json());
  if (!tenant.is_string() || !name.is_string() || !created.is_number_integer())
    return error(Code::kCorrupt, "the first line lacks tenant, name or created");
  owner = {tenant.get<std::string>(), name.get<std::string>(), created.get<int64_t>()};
  return {};
}

void warn_of_rest(const Error& why) {
  spdlog::warn("{}: texts that were deleted or replaced are still in it; the next change, or start, tries again",
               why.message);
}

// With one more member, which says where the lines begin that are void now.
std::string with_voids(std::string json, const std::vector<KnowledgeJournal::Place>& voids) {
  if (voids.empty()) return json;
  json.pop_back();  // the object's end
  json += json == "{" ? "\"void\":[" : ",\"void\":[";
  for (const KnowledgeJournal::Place& place : voids) json += (json.back() == '[' ? "" : ",") + std::to_string(place.at);
  return json + "]}";
}

}  // namespace

// A line as it was read.
struct KnowledgeJournal::Read {
  Place place;
  Json json;
  Status status;  // an error: it says nothing
  bool is_blank = false, is_void = false;
  bool says_something() const { return !is_blank && !is_void && status.ok(); }
};

std::string name_of(std::string_view first, std::string_view second) {
  const std::string both = std::string(first) + '\0' + std::string(second);
  std::array<unsigned char, 16> hash;
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(both.data()), both.size(),
                     nullptr, 0);
  return hex_text(hash);
}

FolderLock::~FolderLock() {
  if (file_ >= 0) ::close(file_);
}

Status FolderLock::take(const std::string& folder) {
  std::error_code failed;
  const bool made = fs::create_directories(folder, failed);
  if (failed) return error(Code::kIo, "{}: the folder cannot be made: {}", folder, failed.message());
  if (made) fs::permissions(folder, fs::perms::owner_all, failed);
  const std::string path = folder + "/lock";
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kOwnerOnly);
  if (file_ < 0) return system_error(path);
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0)
    return error(Code::kIo, "{}: another process uses this folder; give each server one of its own", folder);
  return {};
}

std::vector<std::string> KnowledgeJournal::files(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    const fs::path& path = entry.path();
    if (path.extension() == kEnding) out.push_back(path.string());
    if (path.extension() == kAside && path.stem().extension() == kEnding) ::unlink(path.c_str());
  }
  std::ranges::sort(out);
  return out;
}

Result<std::unique_ptr<KnowledgeJournal>> KnowledgeJournal::create(const std::string& folder, const Owner& owner,
                                                                   const Disk& disk) {
  const std::string path = folder + "/" + file_name(owner, disk.key);
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kOwnerOnly);
  if (file < 0) return system_error(path);
  std::unique_ptr<KnowledgeJournal> out(new KnowledgeJournal(path, file, disk));
  Status written = out->write_head(owner);
  if (written.ok()) written = out->sync();
  if (written.ok()) written = out->sync_folder();
  if (!written.ok()) {
    (void)out->forget();
    return written.error();
  }
  return out;
}

Result<std::unique_ptr<KnowledgeJournal>> KnowledgeJournal::open(const std::string& path, Owner& owner,
                                                                 const Line& line, const Disk& disk) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return system_error(path);
  std::unique_ptr<KnowledgeJournal> out(new KnowledgeJournal(path, file, disk));
  // Blanks whose sync failed are blank in memory alone, and Linux takes these pages for written: they are read from disk.
  (void)out->sync();
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  std::vector<Read> lines;
  {
    KVILT_ASSIGN(const std::string text, read_all(file, path));
    if (text.find('\n') == std::string::npos) {
      if (!is_unborn(text))
        return error(Code::kCorrupt, "{}: its first line has no end (move the file away to start without it)", path);
      spdlog::warn("{}: a crash ended the making of this knowledge base; the file is deleted", path);
      KVILT_TRY(out->forget());
      return std::unique_ptr<KnowledgeJournal>();
    }
    KVILT_ASSIGN(lines, out->read_lines(text, owner));
    if (std::cmp_less(out->size_, text.size()) && ::ftruncate(file, static_cast<off_t>(out->size_)) != 0)
      return system_error(path);
  }
  KVILT_TRY(out->find_voids(lines));
  KVILT_TRY(out->pass_on(lines, line));
  return out;
}

// What may be cut off is whatever begins with this line: what is before it was acknowledged.
Error KnowledgeJournal::damage(size_t number, int64_t at, const Error& why) const {
  constexpr const char* kAway = "move the file away to start without it";
  if (at == 0) return error(why.code, "{}:{}: {} ({})", path_, number, why.message, kAway);
  return error(why.code,
               "{}:{}: {} (the line begins at byte {}; {}, or keep what is before this line and lose it and all that "
               "follows: truncate -s {} {})",
               path_, number, why.message, at, kAway, at, path_);
}

// All that have an end.
Result<std::vector<KnowledgeJournal::Read>> KnowledgeJournal::read_lines(std::string_view text, Owner& owner) {
  size_t at = text.find('\n') + 1;
  if (const Status head = read_head(text.substr(0, at - 1), owner); !head.ok()) {
    const bool key = head.error().code == Code::kInvalidArgument;  // it says itself what to do
    return key ? error(head.error().code, "{}: {}", path_, head.error().message) : damage(1, 0, head.error());
  }
  std::vector<Read> out;
  for (size_t end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string_view line = text.substr(at, end - at);
    Read& read = out.emplace_back();
    read.place = {static_cast<int64_t>(at), static_cast<int64_t>(line.size())};
    read.is_blank = !line.empty() && line.find_first_not_of(' ') == std::string_view::npos;
    if (read.is_blank) continue;
    auto json = read_object(line, read.place.at);
    if (!json.ok()) {
      read.status = json.error();
    } else {
      read.json = std::move(json.value());
    }
  }
  size_ = static_cast<int64_t>(at);
  return out;
}

Result<Json> KnowledgeJournal::read_object(std::string_view line, int64_t at) const {
  if (!seal_) return parse_object(line);
  const std::optional<std::string> text = seal_->open(line, at);
  if (!text) return error(Code::kCorrupt, "this is damaged, or was not sealed for this place with this key");
  return parse_object(*text);
}

Status KnowledgeJournal::read_head(std::string_view line, Owner& owner) {
  KVILT_ASSIGN(const Json head, parse_object(line));
  if (head.value("format", Json()) != kFormat) return error(Code::kCorrupt, "this is no knowledge base of kvilt");
  const Json version = head.value("version", Json());
  if (version != kVersion && version != kOldest)
    return error(Code::kUnsupported, "version {}; this build reads {} and {}", version.dump(), kOldest, kVersion);
  version_ = version.get<int>();
  KVILT_TRY(open_seal(head));
  if (!seal_) return read_owner(head, owner);
  const Json sealed = head.value("sealed", Json());
  auto opened = read_object(sealed.is_string() ? sealed.get<std::string>() : "", 0);
  if (!opened.ok()) {
    return error(Code::kInvalidArgument,
                 "it was written with another key, or its first line was changed: give that key (--cache-key FILE, or "
                 "KVILT_CACHE_KEY), or name another folder (--knowledge-dir); this file was not changed");
  }
  return read_owner(opened.value(), owner);
}

// The same rule as that of a cache folder (docs/design/disk.md#with-a-key).
Status KnowledgeJournal::open_seal(const Json& head) {
  const auto salt = head.find("salt");
  const bool sealed = salt != head.end() && salt->is_string();
  if (sealed && !disk_.key) {
    return error(Code::kInvalidArgument,
                 "it was written with a key: give that (--cache-key FILE, or KVILT_CACHE_KEY), or name another folder "
                 "(--knowledge-dir)");
  }
  if (!sealed && disk_.key) {
    return error(Code::kInvalidArgument,
                 "it was written without a key and can be read by whoever gets it: name another folder "
                 "(--knowledge-dir) and put the documents there, or delete this one; without --cache-key and "
                 "KVILT_CACHE_KEY it opens as before (leave out --cache-dir then too, if that is sealed, and "
                 "--cache-redis, where prompts would be stored in clear)");
  }
  if (!sealed) return {};
  seal_ = KnowledgeSeal::of(*disk_.key, salt->get<std::string>());
  return seal_ ? Status() : error(Code::kCorrupt, "the salt is not 64 hexadecimal digits");
}

// From the last line on: what a void line says may be half written over, so it makes no other void.
Status KnowledgeJournal::find_voids(std::vector<Read>& lines) const {
  const auto at_of = [](const Read& read) { return read.place.at; };
  for (size_t i = lines.size(); i-- > 0;) {
    if (!lines[i].says_something()) continue;
    const auto voids = lines[i].json.find("void");
    if (voids == lines[i].json.end()) continue;
    const std::span before(lines.data(), i);
    for (const Json& at : *voids) {
      const int64_t begin = at.is_number_integer() ? at.get<int64_t>() : -1;
      const auto named = std::ranges::lower_bound(before, begin, {}, at_of);
      if (named == before.end() || named->place.at != begin)
        return damage(i + 2, at_of(lines[i]),
                      error(Code::kCorrupt, "void: no line before this one begins at {}", at.dump()));
      named->is_void = true;
    }
  }
  return {};
}

Status KnowledgeJournal::pass_on(std::vector<Read>& lines, const Line& line) {
  for (size_t i = 0; i < lines.size(); ++i) {
    Read& read = lines[i];
    if (read.is_blank) continue;
    if (read.is_void) {
      void_.push_back(read.place);
      continue;
    }
    Status taken = std::move(read.status);
    const bool only_voids = read.json.size() == 1 && read.json.contains("void");
    if (taken.ok() && !only_voids) taken = line(read.json, read.place);
    if (!taken.ok()) return damage(i + 2, read.place.at, taken.error());
    read.json = Json();
  }
  return {};
}

KnowledgeJournal::Sync KnowledgeJournal::system_sync() {
  return [](int file) { return ::fdatasync(file); };
}

KnowledgeJournal::KnowledgeJournal(std::string path, int file, Disk disk)
    : path_(std::move(path)), disk_(std::move(disk)), file_(file) {}

KnowledgeJournal::~KnowledgeJournal() { ::close(file_); }

Result<std::vector<KnowledgeJournal::Place>> KnowledgeJournal::append(const std::vector<Change>& changes) {
  const int64_t before = size_;
  void_.reserve(void_.size() + changes.size());  // what is on disk is acknowledged: no want of memory from then on
  KVILT_ASSIGN(std::vector<Place> places, add(changes));
  if (Status synced = sync(); !synced.ok()) {
    size_ = before;
    (void)!::ftruncate(file_, static_cast<off_t>(size_));
    return synced.error();
  }
  for (const Change& change : changes) {
    if (change.voids) void_.push_back(*change.voids);
  }
  try {
    if (const Status blank = write_blanks(); !blank.ok()) warn_of_rest(blank.error());
  } catch (const std::bad_alloc&) {  // of the warning
  }
  return places;
}

void KnowledgeJournal::clean(const std::vector<Place>& voids) {
  void_.insert(void_.end(), voids.begin(), voids.end());
  if (void_.empty()) return;
  if (const auto named = append({Change{"{}"}}); !named.ok()) warn_of_rest(named.error());
}

Status KnowledgeJournal::sync() {
  if (disk_.sync(file_) != 0) return system_error(path_);
  return {};
}

Result<std::unique_ptr<KnowledgeJournal>> KnowledgeJournal::begin_again(const Owner& owner) const {
  const std::string path = path_ + std::string(kAside);
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, kOwnerOnly);
  if (file < 0) return system_error(path);
  std::unique_ptr<KnowledgeJournal> out(new KnowledgeJournal(path, file, disk_));
  if (Status head = out->write_head(owner); !head.ok()) {
    (void)out->forget();
    return head.error();
  }
  return out;
}

Result<bool> KnowledgeJournal::take_place() {
  const std::string to = path_.substr(0, path_.size() - kAside.size());
  if (::rename(path_.c_str(), to.c_str()) != 0) {
    spdlog::warn("{}: the file that was written anew could not take its place", system_error(to).message);
    (void)forget();
    return false;
  }
  path_ = to;
  KVILT_TRY(sync_folder());
  return true;
}

Result<std::vector<KnowledgeJournal::Place>> KnowledgeJournal::add(const std::vector<Change>& changes) {
  std::string lines;
  std::vector<Place> places, voids = void_;
  for (const Change& change : changes) {
    if (change.voids) voids.push_back(*change.voids);
    const int64_t at = size_ + std::ssize(lines);
    std::string line = with_voids(change.json, std::exchange(voids, {}));
    if (seal_) line = seal_->seal(line, at);
    places.push_back({at, std::ssize(line)});
    lines += line + "\n";
  }
  KVILT_TRY(add_bytes(lines));
  return places;
}

Status KnowledgeJournal::write_head(const Owner& owner) {
  Json head = {{"format", kFormat}, {"version", kVersion}};
  const Json whose = {{"tenant", owner.tenant}, {"name", owner.name}, {"created", owner.created}};
  if (disk_.key) {
    seal_ = KnowledgeSeal::fresh(*disk_.key);
    head["salt"] = seal_->salt();
    head["sealed"] = seal_->seal(dump(whose), 0);
  } else {
    head.update(whose);
  }
  return add_bytes(dump(head) + "\n");
}

Status KnowledgeJournal::add_bytes(std::string_view bytes) {
  if (Status written = write_at(bytes, size_); !written.ok()) {
    (void)!::ftruncate(file_, static_cast<off_t>(size_));  // else the next line is written over it
    return written;
  }
  size_ += static_cast<int64_t>(bytes.size());
  return {};
}

Status KnowledgeJournal::write_at(std::string_view bytes, int64_t at) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return system_error(path_);
    bytes.remove_prefix(static_cast<size_t>(n));
    at += n;
  }
  return {};
}

// Lines keep their ends, and so their number.
Status KnowledgeJournal::write_blanks() {
  if (void_.empty()) return {};
  for (const Place& place : void_) {
    for (int64_t done = 0; done < place.bytes;) {
      const int64_t now = std::min(place.bytes - done, std::ssize(kBlanks));
      KVILT_TRY(write_at({kBlanks.data(), static_cast<size_t>(now)}, place.at + done));
      done += now;
    }
  }
  KVILT_TRY(sync());
  void_.clear();
  return {};
}

Status KnowledgeJournal::forget() {
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) return system_error(path_);
  return {};
}

Status KnowledgeJournal::sync_folder() const { return sync_folder_of(path_); }

}  // namespace kvilt::server
