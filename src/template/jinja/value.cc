// template/jinja/value.cc: see value.h. Printing is in print.cc.
#include "template/jinja/value.h"

#include <cmath>

#include "template/jinja/objects.h"

namespace kvilt::jinja {
namespace {

int nest(int depth, const Value& child) {
  const int nested = std::max(depth, nesting_of(child) + 1);
  if (nested > kMaxValueDepth) fail("lists and dicts are nested more than {} deep", kMaxValueDepth);
  return nested;
}

// A shared value whose bytes are given back to the meter when it dies.
template <class T>
std::shared_ptr<const T> share(Meter& meter, T value, size_t bytes) {
  bytes += sizeof(T) + 64;
  auto owned = std::make_unique<T>(std::move(value));
  meter.hold(bytes);
  T* raw = owned.release();
  return std::shared_ptr<const T>(raw, [&meter, bytes](const T* p) {
    delete p;
    meter.release(bytes);
  });
}

bool hashable(const Value& value) {
  if (value.is_dict()) return false;
  if (!value.is_list()) return true;
  return value.list().flavor != Flavor::kList;
}

}  // namespace

Value Value::undefined(std::string why) {
  Value value;
  value.data = Undefined{std::make_shared<const std::string>(std::move(why))};
  return value;
}

Value Value::whole(uint64_t number) {
  if (number <= static_cast<uint64_t>(INT64_MAX)) return Value(static_cast<int64_t>(number));
  Value value;
  value.data = number;
  return value;
}

const std::string& why_undefined(const Value& value) { return *std::get<Undefined>(value.data).why; }

int nesting_of(const Value& value) {
  if (value.is_list()) return value.list().depth;
  if (value.is_dict()) return value.dict().depth;
  return value.is(Kind::kObject) ? value.object()->depth() : 0;
}

Value make_text(Meter& meter, Text text) {
  const size_t bytes = text.bytes.size() + text.spans.size() * sizeof(Span);
  meter.bytes_touched(bytes);
  return Value(share(meter, std::move(text), bytes));
}

Value make_trusted(Meter& meter, std::string_view bytes) { return make_text(meter, Text::trusted(bytes)); }

Value make_list(Meter& meter, std::vector<Value> items, Flavor flavor) {
  List list;
  for (const Value& item : items) list.depth = nest(list.depth, item);
  meter.step(items.size() / 4 + 1);
  const size_t bytes = items.size() * sizeof(Value);
  list.items = std::move(items);
  list.flavor = flavor;
  return Value(share(meter, std::move(list), bytes));
}

Value make_pair(Meter& meter, Value first, Value second) {
  std::vector<Value> items;
  items.reserve(2);
  items.push_back(std::move(first));
  items.push_back(std::move(second));
  return make_list(meter, std::move(items), Flavor::kTuple);
}

void DictBuilder::set(Value key, Value value) {
  if (!hashable(key)) fail("unhashable type: '{}'", type_name(key));
  if (key.is_undefined()) fail("{}", why_undefined(key));
  for (auto& [known, old] : dict_.items) {
    meter_.step();
    if (equals(meter_, known, key)) {
      dict_.depth = nest(dict_.depth, value);
      old = std::move(value);
      return;
    }
  }
  append_new(std::move(key), std::move(value));
}

void DictBuilder::append_new(Value key, Value value) {
  dict_.depth = nest(nest(dict_.depth, value), key);
  meter_.step();
  dict_.items.emplace_back(std::move(key), std::move(value));
}

Value DictBuilder::take() {
  const size_t bytes = dict_.items.size() * sizeof(dict_.items[0]);
  return Value(share(meter_, std::move(dict_), bytes));
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kLarge:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kText:
      return value.text().markup ? "Markup" : "str";
    case Kind::kDict:
      return "dict";
    case Kind::kObject:
      return value.object()->type_name();
    case Kind::kList:
      break;
  }
  switch (value.list().flavor) {
    case Flavor::kList:
      return "list";
    case Flavor::kTuple:
      return "tuple";
    case Flavor::kGenerator:
      return "generator";
    case Flavor::kItems:
      return "dict_items";
    case Flavor::kKeys:
      return "dict_keys";
    case Flavor::kValues:
      return "dict_values";
    case Flavor::kRange:
      return "range";
  }
  return "object";
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return std::get<bool>(value.data);
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.number() != 0;
    case Kind::kText:
      return !value.text().bytes.empty();
    case Kind::kList:
      return value.list().flavor == Flavor::kGenerator || !value.list().items.empty();
    case Kind::kDict:
      return !value.dict().items.empty();
    case Kind::kObject:
    case Kind::kLarge:
      return true;
  }
  return true;
}

bool equals(Meter& meter, const Value& a, const Value& b) {
  meter.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kText:
      meter.step(a.text().bytes.size() / 64);
      return a.text().bytes == b.text().bytes;
    case Kind::kList: {
      const List &x = a.list(), &y = b.list();
      if (&x == &y) return true;
      if (x.flavor != y.flavor || x.flavor == Flavor::kGenerator || x.items.size() != y.items.size()) return false;
      for (size_t i = 0; i < x.items.size(); ++i)
        if (!equals(meter, x.items[i], y.items[i])) return false;
      return true;
    }
    case Kind::kDict: {
      const Dict &x = a.dict(), &y = b.dict();
      if (&x == &y) return true;
      if (x.items.size() != y.items.size()) return false;
      for (const auto& [key, value] : x.items) {
        const Value* other = find_key(meter, y, key);
        if (!other || !equals(meter, value, *other)) return false;
      }
      return true;
    }
    case Kind::kObject:
      return a.object() == b.object();
    default:
      return true;  // None == None; Jinja: undefined == undefined
  }
}

int compare(Meter& meter, const Value& a, const Value& b, std::string_view op) {
  meter.step();
  const auto sign = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2; };
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return sign(a.integer(), b.integer());
    return sign(a.number(), b.number());
  }
  if (a.is_text() && b.is_text()) {  // UTF-8 sorts as its code points do
    meter.step(std::min(a.text().bytes.size(), b.text().bytes.size()) / 64);
    return sign(a.text().bytes.compare(b.text().bytes), 0);
  }
  const auto ordered = [](const Value& v) {
    return v.is_list() && (v.list().flavor == Flavor::kList || v.list().flavor == Flavor::kTuple);
  };
  if (ordered(a) && ordered(b) && a.list().flavor == b.list().flavor) {
    const auto &x = a.list().items, &y = b.list().items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i)
      if (!equals(meter, x[i], y[i])) return compare(meter, x[i], y[i], op);
    return sign(x.size(), y.size());
  }
  for (const Value* v : {&a, &b})
    if (v->is_undefined()) fail("{}", why_undefined(*v));
  fail("'{}' not supported between instances of '{}' and '{}'", op, type_name(a), type_name(b));
}

bool contains(Meter& meter, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kText:
      if (!item.is_text()) {
        if (item.is_undefined()) fail("{}", why_undefined(item));
        fail("'in <string>' requires string as left operand, not {}", type_name(item));
      }
      meter.step(container.text().bytes.size() / 16 + 1);
      return find_bytes(container.text().bytes, item.text().bytes, 0) != std::string_view::npos;
    case Kind::kList:
      for (const Value& element : container.list().items)
        if (equals(meter, element, item)) return true;
      return false;
    case Kind::kDict:
      if (!hashable(item)) fail("unhashable type: '{}'", type_name(item));
      return find_key(meter, container.dict(), item) != nullptr;
    default:
      fail("argument of type '{}' is not iterable", type_name(container));
  }
}

std::optional<size_t> length_of(Meter& meter, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kText:
      meter.step(value.text().bytes.size() / 64);
      return count_chars(value.text().bytes);
    case Kind::kList:
      if (value.list().flavor == Flavor::kGenerator) return std::nullopt;
      return value.list().items.size();
    case Kind::kDict:
      return value.dict().items.size();
    case Kind::kObject:
      if (const auto* loop = dynamic_cast<const Loop*>(value.object().get())) return loop->items->items.size();
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

const Value* find_key(Meter& meter, const Dict& dict, const Value& key) {
  if (key.is_text()) return find_key(meter, dict, key.text().bytes);
  for (const auto& [known, value] : dict.items)
    if (equals(meter, known, key)) return &value;
  return nullptr;
}

const Value* find_key(Meter& meter, const Dict& dict, std::string_view key) {
  meter.step(dict.items.size() / 8 + key.size() / 64);
  for (const auto& [known, value] : dict.items)
    if (known.is_text() && known.text().bytes == key) return &value;
  return nullptr;
}

std::string shorten(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  return std::string(text.substr(0, bytes)) + "...";
}

ListPtr iterate_shared(Meter& meter, const Value& value) {
  if (!value.is_list()) return std::get<ListPtr>(make_list(meter, iterate(meter, value)).data);
  const List& list = value.list();
  if (list.flavor == Flavor::kGenerator && std::exchange(list.consumed, true))
    return std::get<ListPtr>(make_list(meter, {}).data);
  return std::get<ListPtr>(value.data);
}

std::vector<Value> iterate(Meter& meter, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return {};
    case Kind::kText: {
      const Text& text = value.text();
      meter.step(text.bytes.size() * 4);
      meter.can_hold(text.bytes.size() * 128);
      std::vector<Value> chars;
      for (size_t at = 0; at < text.bytes.size();) {
        const size_t next = next_char(text.bytes, at);
        TextBuilder one;
        one.append(text, at, next);
        chars.push_back(make_text(meter, one.take()));
        at = next;
      }
      return chars;
    }
    case Kind::kList: {
      const List& list = value.list();
      meter.step(list.items.size() / 4);
      meter.can_hold(list.items.size() * sizeof(Value));
      if (list.flavor == Flavor::kGenerator && std::exchange(list.consumed, true)) return {};
      return list.items;
    }
    case Kind::kDict: {
      meter.step(value.dict().items.size() / 4);
      std::vector<Value> keys;
      keys.reserve(value.dict().items.size());
      for (const auto& item : value.dict().items) keys.push_back(item.first);
      return keys;
    }
    default:
      fail("'{}' object is not iterable", type_name(value));
  }
}

}  // namespace kvilt::jinja
