#include "model/gguf_parts.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "model/fields.h"

namespace kvilt {
namespace {

constexpr int kMaxParts = 1000;
constexpr size_t kDigits = 5;

struct PartName {
  std::string stem;  // before "-00001-of-00003.gguf"
  int number = 0, count = 0;
};

std::optional<int> five_digits(std::string_view text) {
  int value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = 10 * value + (c - '0');
  }
  return value;
}

std::optional<PartName> part_name(std::string_view path) {
  constexpr std::string_view kOf = "-of-", kEnd = ".gguf";
  constexpr size_t kTail = 1 + kDigits + kOf.size() + kDigits + kEnd.size();
  if (path.size() <= kTail || !path.ends_with(kEnd)) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kTail);
  if (tail[0] != '-' || tail.substr(1 + kDigits, kOf.size()) != kOf) return std::nullopt;
  const auto number = five_digits(tail.substr(1, kDigits));
  const auto count = five_digits(tail.substr(1 + kDigits + kOf.size(), kDigits));
  if (!number || !count || *number < 1 || *number > *count) return std::nullopt;
  return PartName{std::string(path.substr(0, path.size() - kTail)), *number, *count};
}

std::string path_of(const PartName& name, int number) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", name.stem, number, name.count);
}

struct Split {
  int64_t count = 1, number = 1, tensors = -1;  // tensors: of all parts; -1: not said
};

Result<Split> split_of(const GgufFile& gguf, const std::string& where) {
  Fields fields(gguf, "split.", where);
  Split out;
  out.count = fields.integer_or("count", 1, 0, kMaxParts);
  out.number = fields.integer_or("no", 0, 0, kMaxParts) + 1;
  out.tensors = fields.integer_or("tensors.count", -1, -1, INT32_MAX);
  KVILT_TRY(fields.status());
  return out;
}

// Maps one more file. Returns what it holds.
Result<GgufFile> map_part(const std::string& path, GgufParts& out) {
  KVILT_ASSIGN(MappedFile mapped, MappedFile::open(path));
  out.files->push_back(std::move(mapped));
  return parse_gguf(out.files->back().bytes(), path);
}

Status add_part(const PartName& name, int number, GgufParts& out) {
  const std::string path = path_of(name, number);
  Result<GgufFile> part = map_part(path, out);
  if (!part.ok()) {
    if (part.error().code != Code::kNotFound) return part.error();
    return error(Code::kNotFound, "{}: this part of the model, one of {}, is missing", path, name.count);
  }
  KVILT_ASSIGN(const Split split, split_of(*part, path));
  if (split.count != name.count || split.number != number)
    return error(Code::kCorrupt, "{}: it says that it is part {} of {}; its name says {} of {}", path, split.number,
                 split.count, number, name.count);
  for (const auto& [tensor, stored] : part->tensors.all()) {
    if (!out.gguf.tensors.add(stored))
      return error(Code::kCorrupt, "{}: tensor '{}' is in an earlier part already", path, printable(tensor));
  }
  if (number == 1) out.gguf.metadata = std::move(part->metadata);
  return {};
}

}  // namespace

size_t GgufParts::bytes() const {
  size_t sum = 0;
  for (const MappedFile& file : *files) sum += file.bytes().size();
  return sum;
}

Result<GgufParts> open_gguf_parts(const std::string& path) {
  GgufParts one{std::make_shared<std::vector<MappedFile>>(), {}};
  KVILT_ASSIGN(one.gguf, map_part(path, one));
  KVILT_ASSIGN(const Split split, split_of(one.gguf, path));
  if (split.count <= 1) return one;
  const auto name = part_name(path);
  if (!name)
    return error(Code::kInvalidArgument,
                 "{}: part {} of {} of a split model, whose parts must be named NAME-00001-of-{:05}.gguf and so on",
                 path, split.number, split.count, split.count);
  GgufParts out{std::make_shared<std::vector<MappedFile>>(), {}};
  for (int number = 1; number <= name->count && number <= kMaxParts; ++number) KVILT_TRY(add_part(*name, number, out));
  if (split.tensors >= 0 && std::cmp_not_equal(out.gguf.tensors.all().size(), split.tensors))
    return error(Code::kCorrupt, "{}: the parts have {} tensors; the model has {}", path, out.gguf.tensors.all().size(),
                 split.tensors);
  return out;
}

std::string first_part(const std::string& path) {
  const auto name = part_name(path);
  return name ? path_of(*name, 1) : path;
}

int part_count(const std::string& path) {
  const auto name = part_name(path);
  return name ? name->count : 1;
}

}  // namespace kvilt
