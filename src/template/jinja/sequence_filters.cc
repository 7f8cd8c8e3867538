// template/jinja/sequence_filters.cc: filters over lists, dicts and what can be iterated.
// A generator in Jinja is a list of flavor kGenerator here: iterable once, without a length.
#include <algorithm>

#include "template/jinja/filter_tables.h"
#include "template/jinja/interpreter.h"

namespace kvilt::jinja {
namespace {

using In = Interpreter&;
using Self = const Value&;
using Args = const Bound&;

Value generator(In in, std::vector<Value> items) { return make_list(in.meter(), std::move(items), Flavor::kGenerator); }

bool flag(const Value* value) { return value && truthy(*value); }

// The keys that sort, unique, min and max compare: the attributes ("a" or "a,b"); texts in lower case unless asked.
Value sort_key(In in, Self item, const Value* attribute, bool case_sensitive) {
  const auto folded = [&](Value key) {
    if (!key.is_text() || case_sensitive) return key;
    return make_text(in.meter(), map_chars(in.meter(), key.text(), to_lower));
  };
  if (!attribute || attribute->is_none()) return folded(item);
  if (!attribute->is_text() || attribute->text().bytes.find(',') == std::string::npos)
    return folded(in.attribute_path(item, *attribute));
  std::vector<Value> keys;
  const std::string& all = attribute->text().bytes;
  for (size_t begin = 0; begin <= all.size();) {
    const size_t end = std::min(all.find(',', begin), all.size());
    keys.push_back(folded(in.attribute_path(item, make_trusted(in.meter(), all.substr(begin, end - begin)))));
    begin = end + 1;
  }
  return make_list(in.meter(), std::move(keys), Flavor::kTuple);
}

Value list(In in, Self s, Args) { return make_list(in.meter(), iterate(in.meter(), s)); }

Value items(In in, Self s, Args) {
  if (s.is_undefined()) return generator(in, {});
  if (!s.is_dict()) fail("Can only get item pairs from a mapping.");
  std::vector<Value> pairs;
  for (const auto& [key, value] : s.dict().items) pairs.push_back(make_pair(in.meter(), key, value));
  return generator(in, std::move(pairs));
}

Value join(In in, Self s, Args a) {
  std::vector<Value> items = iterate(in.meter(), s);
  if (a[1] && !a[1]->is_none())
    for (Value& item : items) item = in.attribute_path(item, *a[1]);
  const Value separator = a[0] ? to_text(in.meter(), *a[0]) : make_trusted(in.meter(), "");
  return make_text(in.meter(), join_texts(in.meter(), items, separator.text()));
}

Value first(In in, Self s, Args) {
  const std::vector<Value> items = iterate(in.meter(), s);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last(In in, Self s, Args) {
  if (s.is_list() && s.list().flavor == Flavor::kGenerator) fail("'generator' object is not reversible");
  const std::vector<Value> items = iterate(in.meter(), s);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value reverse(In in, Self s, Args) {
  if (s.is_text()) return slice(in.meter(), s, Value(), Value(), Value(int64_t{-1}));
  std::vector<Value> items = iterate(in.meter(), s);
  std::ranges::reverse(items);
  return generator(in, std::move(items));
}

std::vector<Value> sorted(In in, std::vector<Value> items, const Value* attribute, bool case_sensitive, bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) keyed.emplace_back(sort_key(in, item, attribute, case_sensitive), std::move(item));
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
    return compare(in.meter(), reverse ? y.first : x.first, reverse ? x.first : y.first, "<") == -1;
  });
  for (size_t i = 0; i < keyed.size(); ++i) items[i] = std::move(keyed[i].second);
  return items;
}

Value sort(In in, Self s, Args a) {
  return make_list(in.meter(), sorted(in, iterate(in.meter(), s), a[2], flag(a[1]), flag(a[0])));
}

Value dictsort(In in, Self s, Args a) {
  if (!s.is_dict()) fail("'{}' object has no attribute 'items'", type_name(s));
  std::vector<Value> pairs;
  for (const auto& [key, value] : s.dict().items) pairs.push_back(make_pair(in.meter(), key, value));
  const std::string by = a[1] ? text_argument(*a[1], "by").bytes : "key";
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  const Value position(int64_t{by == "value"});
  return make_list(in.meter(), sorted(in, std::move(pairs), &position, flag(a[0]), flag(a[2])));
}

Value unique(In in, Self s, Args a) {
  std::vector<Value> seen, kept;
  for (Value& item : iterate(in.meter(), s)) {
    Value key = sort_key(in, item, a[1], flag(a[0]));
    const auto same = [&](const Value& known) { return equals(in.meter(), known, key); };
    if (std::ranges::any_of(seen, same)) continue;
    seen.push_back(std::move(key));
    kept.push_back(std::move(item));
  }
  return generator(in, std::move(kept));
}

Value extreme(In in, Self s, Args a, int wanted) {
  const std::vector<Value> items = iterate(in.meter(), s);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  Value best_key = sort_key(in, items[0], a[1], flag(a[0]));
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = sort_key(in, items[i], a[1], flag(a[0]));
    if (compare(in.meter(), key, best_key, wanted < 0 ? "<" : ">") != wanted) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}
Value min(In in, Self s, Args a) { return extreme(in, s, a, -1); }
Value max(In in, Self s, Args a) { return extreme(in, s, a, 1); }

Value sum(In in, Self s, Args a) {
  Value total = a[1] ? *a[1] : Value(int64_t{0});
  for (const Value& item : iterate(in.meter(), s)) {
    const Value addend = a[0] && !a[0]->is_none() ? in.attribute_path(item, *a[0]) : item;
    if (total.is_text()) fail("sum() can't sum strings");
    total = binary_operator(in.meter(), "+", total, addend);
  }
  return total;
}

Value batch(In in, Self s, Args a) {
  const int64_t size = int_argument(*a[0], "linecount");
  if (size < 1) fail("batch needs a line count of at least 1");
  std::vector<Value> lines, line;
  for (Value& item : iterate(in.meter(), s)) {
    line.push_back(std::move(item));
    if (static_cast<int64_t>(line.size()) < size) continue;
    lines.push_back(make_list(in.meter(), std::exchange(line, {})));
  }
  if (!line.empty()) {
    if (a[1] && !a[1]->is_none()) {
      in.meter().can_hold(static_cast<size_t>(size) * sizeof(Value));
      while (static_cast<int64_t>(line.size()) < size) line.push_back(*a[1]);
    }
    lines.push_back(make_list(in.meter(), std::move(line)));
  }
  return generator(in, std::move(lines));
}

Value slices(In in, Self s, Args a) {
  const int64_t count = int_argument(*a[0], "slices");
  if (count < 1 || count > 100'000) fail("slice needs a count between 1 and 100000");
  const std::vector<Value> items = iterate(in.meter(), s);
  const size_t n = static_cast<size_t>(count), base = items.size() / n, longer = items.size() % n;
  std::vector<Value> columns;
  size_t at = 0;
  for (size_t i = 0; i < n; ++i) {
    const size_t size = base + (i < longer);
    std::vector<Value> column(items.begin() + static_cast<std::ptrdiff_t>(at),
                              items.begin() + static_cast<std::ptrdiff_t>(at + size));
    at += size;
    if (a[1] && !a[1]->is_none() && i >= longer) column.push_back(*a[1]);
    columns.push_back(make_list(in.meter(), std::move(column)));
  }
  return generator(in, std::move(columns));
}

Value groupby(In in, Self s, Args a) {
  const bool case_sensitive = flag(a[2]);
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : iterate(in.meter(), s)) {
    Value key = in.attribute_path(item, *a[0], a[1]);
    keyed.emplace_back(std::move(key), std::move(item));
  }
  const auto fold = [&](Self key) { return sort_key(in, key, nullptr, case_sensitive); };
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
    return compare(in.meter(), fold(x.first), fold(y.first), "<") == -1;
  });
  std::vector<Value> groups, members;
  for (size_t i = 0; i < keyed.size();) {
    Value name = keyed[i].first;
    const Value first = fold(name);
    do {  // at least one: NaN equals nothing, itself included
      members.push_back(keyed[i++].second);
    } while (i < keyed.size() && equals(in.meter(), fold(keyed[i].first), first));
    groups.push_back(make_pair(in.meter(), std::move(name), make_list(in.meter(), std::exchange(members, {}))));
  }
  return make_list(in.meter(), std::move(groups));
}

// The arguments of a call from the i-th on, for the filter or test that map and select name.
CallArgs rest_of(const CallArgs& args, size_t from) {
  CallArgs rest;
  for (size_t i = from; i < args.positional.size(); ++i) rest.positional.push_back(args.positional[i]);
  rest.named = args.named;
  return rest;
}

const Value* named(const CallArgs& args, std::string_view name) {
  for (const auto& [known, value] : args.named)
    if (known == name) return &value;
  return nullptr;
}

Value map(In in, Self s, Args a) {
  if (!truthy(s)) return generator(in, {});  // None, too
  const CallArgs& args = *a.raw;
  std::vector<Value> mapped;
  const Value* attribute = named(args, "attribute");
  if (args.positional.empty() && !attribute) fail("map requires a filter argument");
  for (const Value& item : iterate(in.meter(), s)) {
    if (args.positional.empty()) {
      mapped.push_back(in.attribute_path(item, *attribute, named(args, "default")));
    } else {
      mapped.push_back(in.filter(text_argument(args.positional[0], "filter name").bytes, item, rest_of(args, 1)));
    }
  }
  return generator(in, std::move(mapped));
}

Value pick(In in, Self s, Args a, bool by_attribute, bool wanted) {
  if (!truthy(s)) return generator(in, {});  // None, too
  const CallArgs& args = *a.raw;
  const size_t test_at = by_attribute ? 1 : 0;
  if (by_attribute && args.positional.empty()) fail("Missing parameter for attribute name");
  std::vector<Value> kept;
  for (Value& item : iterate(in.meter(), s)) {
    const Value subject = by_attribute ? in.attribute_path(item, args.positional[0]) : item;
    bool holds = false;
    if (args.positional.size() > test_at) {
      const Text& name = text_argument(args.positional[test_at], "test name");
      holds = in.test(name.bytes, subject, rest_of(args, test_at + 1));
    } else {
      holds = truthy(subject);
    }
    if (holds == wanted) kept.push_back(std::move(item));
  }
  return generator(in, std::move(kept));
}
Value select(In in, Self s, Args a) { return pick(in, s, a, false, true); }
Value reject(In in, Self s, Args a) { return pick(in, s, a, false, false); }
Value selectattr(In in, Self s, Args a) { return pick(in, s, a, true, true); }
Value rejectattr(In in, Self s, Args a) { return pick(in, s, a, true, false); }

constexpr Builtin kSequenceFilters[] = {
    {"list", "", list},
    {"items", "", items},
    {"join", "d attribute", join},
    {"first", "", first},
    {"last", "", last},
    {"reverse", "", reverse},
    {"sort", "reverse case_sensitive attribute", sort},
    {"dictsort", "case_sensitive by reverse", dictsort},
    {"unique", "case_sensitive attribute", unique},
    {"min", "case_sensitive attribute", min},
    {"max", "case_sensitive attribute", max},
    {"sum", "attribute start", sum},
    {"batch", "linecount! fill_with", batch},
    {"slice", "slices! fill_with", slices},
    {"groupby", "attribute! default case_sensitive", groupby},
    {"map", "*", map},
    {"select", "*", select},
    {"reject", "*", reject},
    {"selectattr", "*", selectattr},
    {"rejectattr", "*", rejectattr},
};

}  // namespace

std::span<const Builtin> sequence_filters() { return kSequenceFilters; }

}  // namespace kvilt::jinja
