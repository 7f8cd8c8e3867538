// template/jinja/filters.cc: filters on one value (text, numbers, JSON). Those over sequences are in
// sequence_filters.cc.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "template/jinja/filter_tables.h"
#include "template/jinja/interpreter.h"

namespace kvilt::jinja {
namespace {

using In = Interpreter&;
using Self = const Value&;
using Args = const Bound&;

// Filters on text take any value and print it first, as Jinja's do.
const Text& as_text(In in, Self s, Value& keep) {
  keep = to_text(in.meter(), s);
  return keep.text();
}

Value trim(In in, Self s, Args a) {
  Value keep;
  return make_text(in.meter(), strip_text(in.meter(), as_text(in, s, keep), a[0], true, true));
}

Value upper(In in, Self s, Args) {
  Value keep;
  return make_text(in.meter(), map_chars(in.meter(), as_text(in, s, keep), to_upper));
}

Value lower(In in, Self s, Args) {
  Value keep;
  return make_text(in.meter(), map_chars(in.meter(), as_text(in, s, keep), to_lower));
}

Value title(In in, Self s, Args) {
  Value keep;
  return make_text(in.meter(), title_text(in.meter(), as_text(in, s, keep), false));
}

Value capitalize(In in, Self s, Args) {
  Value keep;
  return make_text(in.meter(), capitalize_text(in.meter(), as_text(in, s, keep)));
}

Value string(In in, Self s, Args) { return to_text(in.meter(), s); }

Value safe(In in, Self s, Args) {
  Value keep;
  Text text = as_text(in, s, keep);
  text.markup = true;
  return make_text(in.meter(), std::move(text));
}

Value escape(In in, Self s, Args) {
  Value keep;
  const Text& text = as_text(in, s, keep);
  if (text.markup) return keep;
  Text escaped = escape_text(in.meter(), text);
  escaped.markup = true;
  return make_text(in.meter(), std::move(escaped));
}

Value replace(In in, Self s, Args a) {
  Value keep, from, to;
  const int64_t count = a[2] && !a[2]->is_none() ? int_argument(*a[2], "count") : -1;
  return make_text(in.meter(), replace_text(in.meter(), as_text(in, s, keep), as_text(in, *a[0], from),
                                            as_text(in, *a[1], to), count));
}

Value default_value(In in, Self s, Args a) {
  const bool boolean = a[1] && truthy(*a[1]);
  if (s.is_undefined() || (boolean && !truthy(s))) return a[0] ? *a[0] : make_trusted(in.meter(), "");
  return s;
}

Value length(In in, Self s, Args) {
  const std::optional<size_t> size = length_of(in.meter(), s);
  if (!size) fail("object of type '{}' has no len()", type_name(s));
  return Value(static_cast<int64_t>(*size));
}

JsonStyle json_style(In in, Args a) {
  JsonStyle style;
  style.ensure_ascii = a[0] && truthy(*a[0]);
  if (a[1] && !a[1]->is_none()) {
    style.pretty = true;
    style.item_separator = Text::trusted(",");
    if (a[1]->is_text()) {
      style.indent = a[1]->text();
    } else {
      const int64_t width = std::max<int64_t>(0, int_argument(*a[1], "indent"));
      if (width > 1000) fail("an indent of {} is too wide", width);
      style.indent = Text::trusted(std::string(static_cast<size_t>(width), ' '));
    }
  }
  if (a[2] && !a[2]->is_none()) {
    const std::vector<Value> pair = iterate(in.meter(), *a[2]);
    if (pair.size() != 2) fail("separators must be a pair of strings");
    style.item_separator = text_argument(pair[0], "separator");
    style.key_separator = text_argument(pair[1], "separator");
  }
  style.sort_keys = a[3] && truthy(*a[3]);
  return style;
}

Value tojson(In in, Self s, Args a) {
  TextBuilder out;
  append_json(in.meter(), s, json_style(in, a), out);
  return make_text(in.meter(), out.take());
}

Value indent(In in, Self s, Args a) {
  Value keep;
  const Text& text = as_text(in, s, keep);
  Text lead = Text::trusted("    ");
  if (a[0]) {
    if (a[0]->is_text()) {
      lead = a[0]->text();
    } else {
      const int64_t width = int_argument(*a[0], "width");
      if (width > 1000) fail("an indent of {} is too wide", width);
      lead = Text::trusted(std::string(static_cast<size_t>(std::max<int64_t>(0, width)), ' '));
    }
  }
  const bool first = a[1] && truthy(*a[1]), blank = a[2] && truthy(*a[2]);
  TextBuilder out;
  const std::string_view bytes = text.bytes;
  for (size_t begin = 0; begin <= bytes.size();) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    in.meter().bytes_touched(lead.bytes.size());
    in.meter().can_hold(out.size() + lead.bytes.size());
    if ((begin > 0 || first) && (blank || end > begin || (begin == 0 && first))) out.append(lead);
    out.append(text, begin, std::min(end + 1, bytes.size()));
    begin = end + 1;
  }
  return make_text(in.meter(), out.take());
}

Value to_int(In in, Self s, Args a) {
  const Value otherwise = a[0] ? *a[0] : Value(int64_t{0});
  const int64_t base = a[1] ? int_argument(*a[1], "base") : 10;
  if (s.is_integral()) return Value(s.integer());
  if (s.is(Kind::kLarge)) return s;
  double number = 0;
  if (s.is(Kind::kFloat)) {
    number = s.number();
  } else if (s.is_text()) {
    std::string_view digits = s.text().bytes;
    in.meter().step(digits.size() / 64);
    while (!digits.empty() && is_space(static_cast<unsigned char>(digits.front()))) digits.remove_prefix(1);
    while (!digits.empty() && is_space(static_cast<unsigned char>(digits.back()))) digits.remove_suffix(1);
    if (digits.size() > 1 && digits.front() == '+' && digits[1] != '-') digits.remove_prefix(1);
    if (base == 16 && (digits.starts_with("0x") || digits.starts_with("0X"))) digits.remove_prefix(2);
    int64_t value = 0;
    const char* const end = digits.data() + digits.size();
    if (base >= 2 && base <= 36) {
      const auto parsed = std::from_chars(digits.data(), end, value, static_cast<int>(base));
      if (!digits.empty() && parsed.ec == std::errc() && parsed.ptr == end) return Value(value);
    }
    const auto parsed = std::from_chars(digits.data(), end, number);
    if (digits.empty() || parsed.ec != std::errc() || parsed.ptr != end) return otherwise;
  } else {
    return otherwise;
  }
  if (!(std::abs(number) < 9.2e18)) return otherwise;
  return Value(static_cast<int64_t>(number));
}

Value to_float(In in, Self s, Args a) {
  const Value otherwise = a[0] ? *a[0] : Value(0.0);
  if (s.is_number()) return Value(s.number());
  if (!s.is_text()) return otherwise;
  std::string_view digits = s.text().bytes;
  in.meter().step(digits.size() / 64);
  while (!digits.empty() && is_space(static_cast<unsigned char>(digits.front()))) digits.remove_prefix(1);
  while (!digits.empty() && is_space(static_cast<unsigned char>(digits.back()))) digits.remove_suffix(1);
  if (digits.size() > 1 && digits.front() == '+' && digits[1] != '-') digits.remove_prefix(1);
  double number = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (digits.empty() || parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) return otherwise;
  return Value(number);
}

Value abs_value(In, Self s, Args) {
  if (s.is(Kind::kLarge)) return s;
  if (s.is(Kind::kFloat)) return Value(std::abs(s.number()));
  const int64_t value = int_argument(s, "abs() operand");
  return value < 0 ? negate(Value(value)) : Value(value);
}

Value round_value(In in, Self s, Args a) {
  if (!s.is_number()) fail("type {} doesn't define __round__ method", type_name(s));
  const int64_t precision = std::clamp<int64_t>(a[0] ? int_argument(*a[0], "precision") : 0, -300, 300);
  const std::string method = a[1] ? text_argument(*a[1], "method").bytes : "common";
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value(std::ceil(s.number() * scale) / scale);
  if (method == "floor") return Value(std::floor(s.number() * scale) / scale);
  if (method != "common") fail("method must be common, ceil or floor");
  if (s.is_integral() && precision >= 0) return Value(s.integer());
  if (s.is(Kind::kLarge) && precision >= 0) return s;
  if (precision < 0) return Value(std::nearbyint(s.number() * scale) / scale);
  // Formatting with that precision rounds the exact decimal value half to even, as Python does.
  const std::string digits = fmt::format("{:.{}f}", s.number(), precision);
  return Value(std::strtod(digits.c_str(), nullptr));
}

Value percent(In in, Self s, Args a) {
  Value keep;
  if (!a.raw->named.empty() && !a.raw->positional.empty())
    fail("can't handle positional and keyword arguments at once");
  if (a.raw->named.empty()) {
    const Value all = make_list(in.meter(), a.raw->positional, Flavor::kTuple);
    return make_text(in.meter(), percent_format(in.meter(), as_text(in, s, keep), all));
  }
  DictBuilder named(in.meter());
  for (const auto& [name, value] : a.raw->named) named.set(name_of(in.meter(), *a.raw, name), value);
  return make_text(in.meter(), percent_format(in.meter(), as_text(in, s, keep), named.take()));
}

Value center(In in, Self s, Args a) {
  CallArgs args;
  args.positional.push_back(a[0] ? *a[0] : Value(int64_t{80}));
  const Value text = to_text(in.meter(), s);
  return call_builtin(in, *find_method(text, "center"), text, args);
}

Value truncate(In in, Self s, Args a) {
  Value keep;
  const Text& text = as_text(in, s, keep);
  const int64_t limit = a[0] ? int_argument(*a[0], "length") : 255;
  const bool cut_words = a[1] && truthy(*a[1]);
  in.meter().step(text.bytes.size() / 64);
  const Text tail = a[2] ? text_argument(*a[2], "end") : Text::trusted("...");
  const int64_t leeway = a[3] && !a[3]->is_none() ? int_argument(*a[3], "leeway") : 5;
  const int64_t tail_size = static_cast<int64_t>(count_chars(tail.bytes));
  if (limit < tail_size || leeway < 0 || limit > (int64_t{1} << 40) || leeway > (int64_t{1} << 40))
    fail("truncate needs length >= the end's and leeway >= 0");
  if (static_cast<int64_t>(count_chars(text.bytes)) <= limit + leeway) return keep;
  size_t end = char_offset(text.bytes, static_cast<size_t>(limit - tail_size));
  if (!cut_words) {
    const size_t space = std::string_view(text.bytes).substr(0, end).rfind(' ');
    if (space != std::string_view::npos) end = space;
  }
  TextBuilder out;
  out.append(text, 0, end);
  out.append(tail);
  return make_text(in.meter(), out.take());
}

Value wordcount(In in, Self s, Args) {
  Value keep;
  const std::string_view bytes = as_text(in, s, keep).bytes;
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < bytes.size(); at = next_char(bytes, at)) {
    const char32_t c = char_at(bytes, at);
    const bool word = c == '_' || (c >= '0' && c <= '9') || is_alpha(c);
    words += word && !inside;
    inside = word;
  }
  in.meter().bytes_touched(bytes.size() * 8);
  return Value(words);
}

Value urlencode(In in, Self s, Args) {
  Value keep;
  const Text& text = as_text(in, s, keep);
  in.meter().bytes_touched(text.bytes.size() * 3);
  in.meter().can_hold(text.bytes.size() * 3);
  TextBuilder out;
  out.append_mapped(text, 0, text.bytes.size(), [](std::string_view piece, std::string& to) {
    for (const char c : piece) {
      const auto byte = static_cast<unsigned char>(c);
      const bool plain =
          byte < 0x80 && (std::isalnum(byte) || std::string_view("_.-~/").find(c) != std::string_view::npos);
      to += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
    }
  });
  return make_text(in.meter(), out.take());
}

Value attr(In in, Self s, Args a) {
  const Text& name = text_argument(*a[0], "attribute name");
  if (s.is_dict()) {  // Python's getattr finds methods only, not keys
    if (find_method(s, name.bytes)) return in.attribute(s, name.bytes);
    return Value::undefined(fmt::format("'dict object' has no attribute '{}'", shorten(name.bytes)));
  }
  return in.attribute(s, name.bytes);
}

constexpr Builtin kFilters[] = {
    {"trim", "chars", trim},
    {"upper", "", upper},
    {"lower", "", lower},
    {"title", "", title},
    {"capitalize", "", capitalize},
    {"string", "", string},
    {"safe", "", safe},
    {"escape", "", escape},
    {"e", "", escape},
    {"replace", "old! new! count", replace},
    {"default", "default_value boolean", default_value},
    {"d", "default_value boolean", default_value},
    {"length", "", length},
    {"count", "", length},
    {"tojson", "ensure_ascii indent separators sort_keys", tojson},
    {"indent", "width first blank", indent},
    {"int", "default base", to_int},
    {"float", "default", to_float},
    {"abs", "", abs_value},
    {"round", "precision method", round_value},
    {"format", "*", percent},
    {"center", "width", center},
    {"truncate", "length killwords end leeway", truncate},
    {"wordcount", "", wordcount},
    {"urlencode", "", urlencode},
    {"attr", "name!", attr},
};

}  // namespace

const Builtin* find_filter(std::string_view name) {
  for (const Builtin& builtin : kFilters)
    if (builtin.name == name) return &builtin;
  for (const Builtin& builtin : sequence_filters())
    if (builtin.name == name) return &builtin;
  return nullptr;
}

}  // namespace kvilt::jinja
