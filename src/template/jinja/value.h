// template/jinja/value.h: the values of a chat template, with Python's rules for truth, equality, order and printing.
// Role:       what expressions yield; everything but namespaces and loop state is immutable (transformers' sandbox).
// Invariants: containers nest at most kMaxValueDepth deep, so destroying, printing and comparing are safe recursions; a
//             metered value dies before its Meter.
// Cost:       a Value is 24 bytes plus its tag; copies share what they point to. Work that may visit shared parts many
//             times (equality, printing) is charged to the meter.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "template/jinja/meter.h"
#include "template/jinja/text.h"

namespace kvilt::jinja {

class Value;
struct List;
struct Dict;
struct Object;
using TextPtr = std::shared_ptr<const Text>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using ObjectPtr = std::shared_ptr<Object>;

struct Undefined {
  std::shared_ptr<const std::string> why;  // Jinja's words, e.g. "'tools' is undefined"
};
struct None {};

// In the order of the alternatives of Value::data.
// kLarge: an integer above int64's, as JSON may have it: it is printed as it came, and counts as a float does.
enum class Kind { kUndefined, kNone, kBool, kInt, kFloat, kText, kList, kDict, kObject, kLarge };

class Value {
 public:
  Value() : data(None{}) {}
  Value(bool b) : data(b) {}
  Value(int64_t i) : data(i) {}
  Value(double d) : data(d) {}
  Value(TextPtr text) : data(std::move(text)) {}
  Value(ListPtr list) : data(std::move(list)) {}
  Value(DictPtr dict) : data(std::move(dict)) {}
  Value(ObjectPtr object) : data(std::move(object)) {}
  template <class T, class = std::enable_if_t<std::is_base_of_v<Object, T>>>
  Value(std::shared_ptr<T> object) : data(ObjectPtr(std::move(object))) {}
  Value(const char*) = delete;  // would become a bool

  static Value undefined(std::string why);
  static Value whole(uint64_t number);  // kInt where it fits

  Kind kind() const { return static_cast<Kind>(data.index()); }
  bool is(Kind k) const { return kind() == k; }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_none() const { return is(Kind::kNone); }
  bool is_text() const { return is(Kind::kText); }
  bool is_list() const { return is(Kind::kList); }
  bool is_dict() const { return is(Kind::kDict); }
  bool is_integral() const { return is(Kind::kInt) || is(Kind::kBool); }  // Python: bool is an int
  bool is_number() const { return is_integral() || is(Kind::kFloat) || is(Kind::kLarge); }

  // REQUIRES: the matching kind.
  const Text& text() const { return *std::get<TextPtr>(data); }
  const List& list() const { return *std::get<ListPtr>(data); }
  const Dict& dict() const { return *std::get<DictPtr>(data); }
  const ObjectPtr& object() const { return std::get<ObjectPtr>(data); }
  int64_t integer() const { return is(Kind::kBool) ? std::get<bool>(data) : std::get<int64_t>(data); }
  uint64_t large() const { return std::get<uint64_t>(data); }
  double number() const {
    if (is(Kind::kLarge)) return static_cast<double>(large());
    return is(Kind::kFloat) ? std::get<double>(data) : static_cast<double>(integer());
  }

  std::variant<Undefined, None, bool, int64_t, double, TextPtr, ListPtr, DictPtr, ObjectPtr, uint64_t> data;
};

// kGenerator: what map, select and the like give: iterable once, without a length.
// kItems, kKeys, kValues: views of a dict.
enum class Flavor : uint8_t { kList, kTuple, kGenerator, kItems, kKeys, kValues, kRange };
inline bool is_view(Flavor f) { return f == Flavor::kItems || f == Flavor::kKeys || f == Flavor::kValues; }

struct List {
  std::vector<Value> items;
  Flavor flavor = Flavor::kList;
  int depth = 1;
  mutable bool consumed = false;  // generators
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion
  int depth = 1;
};

// Things with identity: namespaces, macros, functions, bound methods, loops.
struct Object {
  virtual ~Object() = default;
  virtual std::string_view type_name() const = 0;
  virtual bool callable() const { return false; }
  // Nesting of the values that die with it; the interpreter takes other objects apart one by one.
  virtual int depth() const { return 0; }
};

// --- making values; all charged to the meter ---
Value make_text(Meter& meter, Text text);
Value make_trusted(Meter& meter, std::string_view bytes);
Value make_list(Meter& meter, std::vector<Value> items, Flavor flavor = Flavor::kList);
int nesting_of(const Value& value);
Value make_pair(Meter& meter, Value first, Value second);  // a tuple

class DictBuilder {
 public:
  explicit DictBuilder(Meter& meter) : meter_(meter) {}
  void set(Value key, Value value);         // replaces; fails for keys that Python cannot hash
  void append_new(Value key, Value value);  // REQUIRES: a text key that is not there yet
  Value take();

 private:
  Meter& meter_;
  Dict dict_;
};

// --- Python's rules ---
std::string_view type_name(const Value& value);  // "str", "NoneType", ...
bool truthy(const Value& value);
bool equals(Meter& meter, const Value& a, const Value& b);
int compare(Meter& meter, const Value& a, const Value& b, std::string_view op);  // <0, 0, >0; 2: unordered (NaN)
bool contains(Meter& meter, const Value& container, const Value& item);
std::optional<size_t> length_of(Meter& meter, const Value& value);  // none when Python's len() would fail
const Value* find_key(Meter& meter, const Dict& dict, const Value& key);
const Value* find_key(Meter& meter, const Dict& dict, std::string_view key);
std::vector<Value> iterate(Meter& meter, const Value& value);  // fails for what cannot be iterated
ListPtr iterate_shared(Meter& meter, const Value& value);      // likewise; no copy of a list
const std::string& why_undefined(const Value& value);
std::string shorten(std::string_view text, size_t bytes = 200);  // for messages: names and keys may be of any length

// str(): texts as they are, None as "None", lists as Python prints them. repr(): texts in quotes.
void append_str(Meter& meter, const Value& value, TextBuilder& out);
void append_repr(Meter& meter, const Value& value, TextBuilder& out);
Value to_text(Meter& meter, const Value& value);  // str() as a value; a text is shared, not copied
std::string float_repr(double value);

}  // namespace kvilt::jinja
