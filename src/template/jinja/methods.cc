// template/jinja/methods.cc: methods of strings, dicts, lists, loops and cyclers. Only those that change nothing:
// transformers' sandbox forbids the others (list.append, dict.update) too.
#include <algorithm>

#include "template/jinja/interpreter.h"

namespace kvilt::jinja {
namespace {

using In = Interpreter&;
using Self = const Value&;
using Args = const Bound&;

Value strip(In in, Self s, Args a) { return make_text(in.meter(), strip_text(in.meter(), s.text(), a[0], true, true)); }
Value lstrip(In in, Self s, Args a) {
  return make_text(in.meter(), strip_text(in.meter(), s.text(), a[0], true, false));
}
Value rstrip(In in, Self s, Args a) {
  return make_text(in.meter(), strip_text(in.meter(), s.text(), a[0], false, true));
}
Value upper(In in, Self s, Args) { return make_text(in.meter(), map_chars(in.meter(), s.text(), to_upper)); }
Value lower(In in, Self s, Args) { return make_text(in.meter(), map_chars(in.meter(), s.text(), to_lower)); }
Value title(In in, Self s, Args) { return make_text(in.meter(), title_text(in.meter(), s.text(), true)); }
Value capitalize(In in, Self s, Args) { return make_text(in.meter(), capitalize_text(in.meter(), s.text())); }

Value replace(In in, Self s, Args a) {
  const int64_t count = a[2] ? int_argument(*a[2], "count") : -1;
  return make_text(in.meter(), replace_text(in.meter(), s.text(), text_argument(*a[0], "replace() argument 1"),
                                            text_argument(*a[1], "replace() argument 2"), count));
}

Value piece(In in, const Text& text, size_t begin, size_t end) {
  TextBuilder out;
  out.append(text, begin, end);
  return make_text(in.meter(), out.take());
}

int64_t max_split(const Value* value) {
  const int64_t count = value ? int_argument(*value, "maxsplit") : -1;
  return count < 0 ? std::numeric_limits<int64_t>::max() : count;
}

Value split_at_spaces(In in, const Text& text, int64_t most, bool from_right) {
  const std::string_view bytes = text.bytes;
  std::vector<std::pair<size_t, size_t>> words;  // in the order in which splits are counted
  size_t begin = 0, end = bytes.size();
  const auto trim_front = [&] {
    while (begin < end && is_space(char_at(bytes, begin))) begin = next_char(bytes, begin);
  };
  const auto trim_back = [&] {
    while (end > begin && is_space(char_at(bytes, prev_char(bytes, end)))) end = prev_char(bytes, end);
  };
  while (true) {
    in.meter().step();
    from_right ? trim_back() : trim_front();
    if (begin >= end) break;
    if (most-- == 0) {  // the rest, unsplit
      words.emplace_back(begin, end);
      break;
    }
    size_t at = from_right ? end : begin;
    if (from_right) {
      while (at > begin && !is_space(char_at(bytes, prev_char(bytes, at)))) at = prev_char(bytes, at);
      words.emplace_back(at, end);
      end = at;
    } else {
      while (at < end && !is_space(char_at(bytes, at))) at = next_char(bytes, at);
      words.emplace_back(begin, at);
      begin = at;
    }
  }
  if (from_right) std::ranges::reverse(words);
  std::vector<Value> parts;
  for (const auto& [from, to] : words) parts.push_back(piece(in, text, from, to));
  return make_list(in.meter(), std::move(parts));
}

Value split(In in, Self s, Args a) {
  const Text& text = s.text();
  in.meter().step(text.bytes.size() / 16 + 1);
  int64_t most = max_split(a[1]);
  if (!a[0] || a[0]->is_none()) return split_at_spaces(in, text, most, false);
  const std::string& separator = text_argument(*a[0], "separator").bytes;
  if (separator.empty()) fail("empty separator");
  std::vector<Value> parts;
  size_t at = 0;
  for (; most > 0; --most) {
    const size_t hit = find_bytes(text.bytes, separator, at);
    if (hit == std::string_view::npos) break;
    parts.push_back(piece(in, text, at, hit));
    at = hit + separator.size();
  }
  parts.push_back(piece(in, text, at, text.bytes.size()));
  return make_list(in.meter(), std::move(parts));
}

// Last occurrence of `what` in bytes[0, end); charged for the worst case.
size_t find_last(In in, std::string_view bytes, std::string_view what, size_t end) {
  in.meter().step(end / 64 * (what.size() / 16 + 1) + 1);
  return bytes.substr(0, end).rfind(what);
}

Value rsplit(In in, Self s, Args a) {
  const Text& text = s.text();
  int64_t most = max_split(a[1]);
  if (!a[0] || a[0]->is_none()) return split_at_spaces(in, text, most, true);
  const std::string& separator = text_argument(*a[0], "separator").bytes;
  if (separator.empty()) fail("empty separator");
  std::vector<Value> parts;
  size_t end = text.bytes.size();
  for (; most > 0; --most) {
    const size_t hit = find_last(in, text.bytes, separator, end);
    if (hit == std::string_view::npos) break;
    parts.push_back(piece(in, text, hit + separator.size(), end));
    end = hit;
  }
  parts.push_back(piece(in, text, 0, end));
  return make_list(in.meter(), {parts.rbegin(), parts.rend()});
}

Value cut_in_three(In in, const Text& text, size_t hit, size_t size, bool rest_first) {
  std::vector<Value> parts;
  const size_t end = text.bytes.size();
  const bool found = hit != std::string_view::npos;
  parts.push_back(piece(in, text, 0, found ? hit : rest_first ? end : 0));
  parts.push_back(found ? piece(in, text, hit, hit + size) : make_trusted(in.meter(), ""));
  parts.push_back(found ? piece(in, text, hit + size, end) : piece(in, text, rest_first ? end : 0, end));
  return make_list(in.meter(), std::move(parts), Flavor::kTuple);
}

Value partition(In in, Self s, Args a) {
  const std::string& separator = text_argument(*a[0], "separator").bytes;
  if (separator.empty()) fail("empty separator");
  in.meter().step(s.text().bytes.size() / 16 + 1);
  return cut_in_three(in, s.text(), find_bytes(s.text().bytes, separator, 0), separator.size(), true);
}

Value rpartition(In in, Self s, Args a) {
  const std::string& separator = text_argument(*a[0], "separator").bytes;
  if (separator.empty()) fail("empty separator");
  const size_t hit = find_last(in, s.text().bytes, separator, s.text().bytes.size());
  return cut_in_three(in, s.text(), hit, separator.size(), false);
}

Value splitlines(In in, Self s, Args a) {
  const Text& text = s.text();
  in.meter().step(text.bytes.size() / 16 + 1);
  const bool keep = a[0] && truthy(*a[0]);
  std::vector<Value> lines;
  for (size_t begin = 0; begin < text.bytes.size();) {
    size_t end = std::min(text.bytes.find_first_of("\n\r\v\f\x1c\x1d\x1e", begin), text.bytes.size());
    const size_t stop = end;
    if (end < text.bytes.size()) end += text.bytes.compare(end, 2, "\r\n") == 0 ? 2 : 1;
    lines.push_back(piece(in, text, begin, keep ? end : stop));
    begin = end;
  }
  return make_list(in.meter(), std::move(lines));
}

// startswith and endswith take one string or a tuple of them.
Value any_affix(In in, Self s, Args a, std::string_view name, bool (*matches)(std::string_view, std::string_view)) {
  std::string_view bytes = s.text().bytes;
  const int64_t size = static_cast<int64_t>(a[1] || a[2] ? count_chars(bytes) : 0);
  const auto index = [&](const Value* value, int64_t otherwise) {
    if (!value || value->is_none()) return otherwise;
    const int64_t i = int_argument(*value, "index");
    return i < 0 ? std::max<int64_t>(0, i + size) : i;
  };
  if (a[1] || a[2]) {
    const int64_t from = index(a[1], 0), to = std::min(index(a[2], size), size);
    if (from > size || from > to) return Value(false);
    const size_t begin = char_offset(bytes, static_cast<size_t>(from));
    bytes = bytes.substr(begin, char_offset(bytes, static_cast<size_t>(to)) - begin);
  }
  if (a[0]->is_list() && a[0]->list().flavor == Flavor::kTuple) {
    for (const Value& affix : a[0]->list().items) {
      const std::string& one = text_argument(affix, name).bytes;
      in.meter().bytes_touched(std::min(one.size(), bytes.size()));
      if (matches(bytes, one)) return Value(true);
    }
    return Value(false);
  }
  in.meter().bytes_touched(bytes.size());
  return Value(matches(bytes, text_argument(*a[0], name).bytes));
}

Value startswith(In in, Self s, Args a) {
  return any_affix(in, s, a, "startswith first arg",
                   [](std::string_view b, std::string_view p) { return b.starts_with(p); });
}
Value endswith(In in, Self s, Args a) {
  return any_affix(in, s, a, "endswith first arg",
                   [](std::string_view b, std::string_view p) { return b.ends_with(p); });
}

Value found_at(std::string_view bytes, size_t hit) {
  if (hit == std::string_view::npos) return Value(int64_t{-1});
  return Value(static_cast<int64_t>(count_chars(bytes.substr(0, hit))));
}

// bytes[begin, end) of the optional start and stop arguments, in code points.
std::pair<size_t, size_t> window(std::string_view bytes, const Value* start, const Value* stop) {
  const int64_t size = static_cast<int64_t>(count_chars(bytes));
  const auto offset = [&](const Value* value, int64_t otherwise) {
    int64_t i = value && !value->is_none() ? int_argument(*value, "index") : otherwise;
    if (i < 0) i = std::max<int64_t>(0, i + size);
    return char_offset(bytes, static_cast<size_t>(std::min(i, size)));
  };
  const size_t begin = offset(start, 0);
  return {begin, std::max(begin, offset(stop, size))};
}

Value find(In in, Self s, Args a) {
  const std::string_view bytes = s.text().bytes;
  in.meter().step(bytes.size() / 16 + 1);
  const auto [begin, end] = window(bytes, a[1], a[2]);
  return found_at(bytes, find_bytes(bytes.substr(0, end), text_argument(*a[0], "substring").bytes, begin));
}

Value rfind(In in, Self s, Args a) {
  const std::string_view bytes = s.text().bytes;
  const auto [begin, end] = window(bytes, a[1], a[2]);
  const size_t hit = find_last(in, bytes, text_argument(*a[0], "substring").bytes, end);
  return found_at(bytes, hit != std::string_view::npos && hit < begin ? std::string_view::npos : hit);
}

Value index_of(In in, Self s, Args a) {
  Value at = find(in, s, a);
  if (at.integer() < 0) fail("substring not found");
  return at;
}

Value count(In in, Self s, Args a) {
  const std::string_view bytes = s.text().bytes;
  const std::string& what = text_argument(*a[0], "substring").bytes;
  in.meter().step(bytes.size() / 16 + 1);
  if (what.empty()) return Value(static_cast<int64_t>(count_chars(bytes)) + 1);
  int64_t hits = 0;
  for (size_t at = 0; (at = find_bytes(bytes, what, at)) != std::string_view::npos; at += what.size()) ++hits;
  return Value(hits);
}

Value join(In in, Self s, Args a) {
  const std::vector<Value> items = iterate(in.meter(), *a[0]);
  for (size_t i = 0; i < items.size(); ++i)
    if (!items[i].is_text()) fail("sequence item {}: expected str instance, {} found", i, type_name(items[i]));
  return make_text(in.meter(), join_texts(in.meter(), items, s.text()));
}

Value removeprefix(In in, Self s, Args a) {
  const std::string& prefix = text_argument(*a[0], "prefix").bytes;
  const bool there = s.text().bytes.starts_with(prefix);
  return piece(in, s.text(), there ? prefix.size() : 0, s.text().bytes.size());
}

Value removesuffix(In in, Self s, Args a) {
  const std::string& suffix = text_argument(*a[0], "suffix").bytes;
  const bool there = s.text().bytes.ends_with(suffix);
  return piece(in, s.text(), 0, s.text().bytes.size() - (there ? suffix.size() : 0));
}

Value pad(In in, Self s, Args a, bool left, bool right) {
  const int64_t width = int_argument(*a[0], "width");
  in.meter().step(s.text().bytes.size() / 64);
  const Text fill = a[1] ? text_argument(*a[1], "fillchar") : Text::trusted(" ");
  if (count_chars(fill.bytes) != 1) fail("The fill character must be exactly one character long");
  const int64_t missing = width - static_cast<int64_t>(count_chars(s.text().bytes));
  TextBuilder out;
  const auto spread = [&](int64_t times) {
    if (times > 0) in.meter().can_hold(static_cast<size_t>(times) * 4);
    if (times > 0) in.meter().step(static_cast<uint64_t>(times));
    for (int64_t i = 0; i < times; ++i) out.append(fill);
  };
  const int64_t front = !left ? 0 : !right ? missing : missing / 2 + (missing & width & 1);
  spread(front);
  out.append(s.text());
  if (right) spread(missing - front);
  return make_text(in.meter(), out.take());
}
Value center(In in, Self s, Args a) { return pad(in, s, a, true, true); }
Value ljust(In in, Self s, Args a) { return pad(in, s, a, false, true); }
Value rjust(In in, Self s, Args a) { return pad(in, s, a, true, false); }

template <bool (*kHolds)(char32_t)>
Value all_chars(In in, Self s, Args) {
  const std::string_view bytes = s.text().bytes;
  in.meter().bytes_touched(bytes.size() * 8);
  for (size_t at = 0; at < bytes.size(); at = next_char(bytes, at))
    if (!kHolds(char_at(bytes, at))) return Value(false);
  return Value(!bytes.empty());
}
bool is_decimal(char32_t c) { return c >= '0' && c <= '9'; }
bool is_alnum(char32_t c) { return is_decimal(c) || is_alpha(c); }

template <bool kUpper>
Value is_case(In in, Self s, Args) {
  const std::string_view bytes = s.text().bytes;
  in.meter().bytes_touched(bytes.size() * 8);
  bool cased = false;
  for (size_t at = 0; at < bytes.size(); at = next_char(bytes, at)) {
    const char32_t c = char_at(bytes, at);
    const bool up = to_lower(c) != c, low = to_upper(c) != c;
    if (kUpper ? low : up) return Value(false);
    cased |= up || low;
  }
  return Value(cased);
}

Value format(In in, Self s, Args a) { return make_text(in.meter(), brace_format(in.meter(), s.text(), *a.raw)); }

constexpr Builtin kTextMethods[] = {
    {"strip", "chars", strip},
    {"split", "sep maxsplit", split},
    {"lstrip", "chars", lstrip},
    {"rstrip", "chars", rstrip},
    {"startswith", "prefix! start end", startswith},
    {"endswith", "suffix! start end", endswith},
    {"replace", "old! new! count", replace},
    {"upper", "", upper},
    {"lower", "", lower},
    {"casefold", "", lower},
    {"title", "", title},
    {"capitalize", "", capitalize},
    {"join", "iterable!", join},
    {"find", "sub! start end", find},
    {"rfind", "sub! start end", rfind},
    {"index", "sub! start end", index_of},
    {"count", "sub!", count},
    {"rsplit", "sep maxsplit", rsplit},
    {"partition", "sep!", partition},
    {"rpartition", "sep!", rpartition},
    {"splitlines", "keepends", splitlines},
    {"removeprefix", "prefix!", removeprefix},
    {"removesuffix", "suffix!", removesuffix},
    {"center", "width! fillchar", center},
    {"ljust", "width! fillchar", ljust},
    {"rjust", "width! fillchar", rjust},
    {"isspace", "", all_chars<is_space>},
    {"isdigit", "", all_chars<is_decimal>},
    {"isdecimal", "", all_chars<is_decimal>},
    {"isnumeric", "", all_chars<is_decimal>},
    {"isalpha", "", all_chars<is_alpha>},
    {"isalnum", "", all_chars<is_alnum>},
    {"isupper", "", is_case<true>},
    {"islower", "", is_case<false>},
    {"format", "*", format},
};

Value dict_get(In in, Self s, Args a) {
  const Value* found = find_key(in.meter(), s.dict(), *a[0]);
  return found ? *found : a[1] ? *a[1] : Value();
}

Value dict_items(In in, Self s, Args) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : s.dict().items) pairs.push_back(make_pair(in.meter(), key, value));
  return make_list(in.meter(), std::move(pairs), Flavor::kItems);
}

Value dict_keys(In in, Self s, Args) { return make_list(in.meter(), iterate(in.meter(), s), Flavor::kKeys); }

Value dict_values(In in, Self s, Args) {
  std::vector<Value> values;
  for (const auto& item : s.dict().items) values.push_back(item.second);
  return make_list(in.meter(), std::move(values), Flavor::kValues);
}

Value copy(In, Self s, Args) { return s; }

constexpr Builtin kDictMethods[] = {
    {"get", "key! default", dict_get}, {"items", "", dict_items}, {"keys", "", dict_keys},
    {"values", "", dict_values},       {"copy", "", copy},
};

Value list_count(In in, Self s, Args a) {
  int64_t hits = 0;
  for (const Value& item : s.list().items) hits += equals(in.meter(), item, *a[0]);
  return Value(hits);
}

Value list_index(In in, Self s, Args a) {
  for (size_t i = 0; i < s.list().items.size(); ++i)
    if (equals(in.meter(), s.list().items[i], *a[0])) return Value(static_cast<int64_t>(i));
  fail("the value is not in the {}", type_name(s));
}

constexpr Builtin kListMethods[] = {
    {"count", "value!", list_count}, {"index", "value!", list_index}, {"copy", "", copy}};

Value loop_cycle(In, Self s, Args a) {
  const auto& loop = static_cast<const Loop&>(*s.object());
  if (a.raw->positional.empty()) fail("no items for cycling given");
  return a.raw->positional[loop.index % a.raw->positional.size()];
}

Value loop_changed(In in, Self s, Args a) {
  auto& loop = static_cast<Loop&>(*s.object());
  Value now = make_list(in.meter(), a.raw->positional, Flavor::kTuple);
  const bool changed = !std::exchange(loop.has_changed, true) || !equals(in.meter(), loop.last_changed, now);
  loop.last_changed = std::move(now);
  return Value(changed);
}

constexpr Builtin kLoopMethods[] = {{"cycle", "*", loop_cycle}, {"changed", "*", loop_changed}};

Value cycler_next(In, Self s, Args) {
  auto& cycler = static_cast<Cycler&>(*s.object());
  const size_t at = cycler.at;
  cycler.at = (at + 1) % cycler.items.size();
  return cycler.items[at];
}

Value cycler_reset(In, Self s, Args) {
  static_cast<Cycler&>(*s.object()).at = 0;
  return Value();
}

constexpr Builtin kCyclerMethods[] = {{"next", "", cycler_next}, {"reset", "", cycler_reset}};

template <size_t N>
const Builtin* find_in(const Builtin (&table)[N], std::string_view name) {
  for (const Builtin& builtin : table)
    if (builtin.name == name) return &builtin;
  return nullptr;
}

}  // namespace

const Builtin* find_method(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::kText:
      return find_in(kTextMethods, name);
    case Kind::kDict:
      return find_in(kDictMethods, name);
    case Kind::kList:
      if (self.list().flavor == Flavor::kGenerator || is_view(self.list().flavor)) return nullptr;
      return find_in(kListMethods, name);
    case Kind::kObject:
      if (dynamic_cast<const Loop*>(self.object().get())) return find_in(kLoopMethods, name);
      if (dynamic_cast<const Cycler*>(self.object().get())) return find_in(kCyclerMethods, name);
      return nullptr;
    default:
      return nullptr;
  }
}

}  // namespace kvilt::jinja
