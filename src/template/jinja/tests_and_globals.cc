// template/jinja/tests_and_globals.cc: the tests after `is`, and the functions that every template may call.
#include "template/jinja/interpreter.h"

namespace kvilt::jinja {
namespace {

using In = Interpreter&;
using Self = const Value&;
using Args = const Bound&;

Value is_defined(In, Self s, Args) { return Value(!s.is_undefined()); }
Value is_undefined(In, Self s, Args) { return Value(s.is_undefined()); }
Value is_none(In, Self s, Args) { return Value(s.is_none()); }
Value is_boolean(In, Self s, Args) { return Value(s.is(Kind::kBool)); }
Value is_true(In, Self s, Args) { return Value(s.is(Kind::kBool) && truthy(s)); }
Value is_false(In, Self s, Args) { return Value(s.is(Kind::kBool) && !truthy(s)); }
Value is_integer(In, Self s, Args) { return Value(s.is(Kind::kInt) || s.is(Kind::kLarge)); }
Value is_float(In, Self s, Args) { return Value(s.is(Kind::kFloat)); }
Value is_number(In, Self s, Args) { return Value(s.is_number()); }
Value is_string(In, Self s, Args) { return Value(s.is_text()); }
Value is_mapping(In, Self s, Args) { return Value(s.is_dict()); }
Value is_iterable(In, Self s, Args) { return Value(s.is_undefined() || s.is_text() || s.is_list() || s.is_dict()); }
Value is_sequence(In, Self s, Args) {  // has a length and takes []; Jinja's Undefined does
  if (s.is_list()) return Value(s.list().flavor != Flavor::kGenerator && !is_view(s.list().flavor));
  return Value(s.is_undefined() || s.is_text() || s.is_dict());
}
Value is_callable(In, Self s, Args) { return Value(s.is(Kind::kObject) && s.object()->callable()); }
Value is_escaped(In, Self s, Args) { return Value(s.is_text() && s.text().markup); }
Value is_odd(In, Self s, Args) { return Value(int_argument(s, "operand of odd") % 2 != 0); }
Value is_even(In, Self s, Args) { return Value(int_argument(s, "operand of even") % 2 == 0); }
Value is_divisible(In in, Self s, Args a) {
  return Value(binary_operator(in.meter(), "%", Value(int_argument(s, "operand of divisibleby")),
                               Value(int_argument(*a[0], "divisor")))
                   .integer() == 0);
}
Value is_equal(In in, Self s, Args a) { return Value(equals(in.meter(), s, *a[0])); }
Value is_unequal(In in, Self s, Args a) { return Value(!equals(in.meter(), s, *a[0])); }
Value is_less(In in, Self s, Args a) { return Value(compare(in.meter(), s, *a[0], "<") == -1); }
Value is_greater(In in, Self s, Args a) { return Value(compare(in.meter(), s, *a[0], ">") == 1); }
Value is_at_most(In in, Self s, Args a) {
  const int order = compare(in.meter(), s, *a[0], "<=");
  return Value(order == -1 || order == 0);
}
Value is_at_least(In in, Self s, Args a) {
  const int order = compare(in.meter(), s, *a[0], ">=");
  return Value(order == 1 || order == 0);
}
Value is_in(In in, Self s, Args a) { return Value(contains(in.meter(), *a[0], s)); }
Value is_same(In in, Self s, Args a) {
  if (s.kind() != a[0]->kind()) return Value(false);
  if (s.is_list()) return Value(&s.list() == &a[0]->list());
  if (s.is_dict()) return Value(&s.dict() == &a[0]->dict());
  return Value(equals(in.meter(), s, *a[0]));
}

template <char32_t (*kOther)(char32_t), char32_t (*kSame)(char32_t)>
Value is_cased(In in, Self s, Args) {
  const Value text = to_text(in.meter(), s);
  const std::string_view bytes = text.text().bytes;
  in.meter().bytes_touched(bytes.size() * 8);
  bool cased = false;
  for (size_t at = 0; at < bytes.size(); at = next_char(bytes, at)) {
    const char32_t c = char_at(bytes, at);
    if (kSame(c) != c) return Value(false);
    cased |= kOther(c) != c;
  }
  return Value(cased);
}

Value is_filter(In, Self s, Args) { return Value(s.is_text() && find_filter(s.text().bytes)); }
Value is_test(In, Self s, Args) { return Value(s.is_text() && find_test(s.text().bytes)); }

constexpr Builtin kTests[] = {
    {"defined", "", is_defined},
    {"none", "", is_none},
    {"string", "", is_string},
    {"mapping", "", is_mapping},
    {"iterable", "", is_iterable},
    {"sequence", "", is_sequence},
    {"undefined", "", is_undefined},
    {"boolean", "", is_boolean},
    {"true", "", is_true},
    {"false", "", is_false},
    {"integer", "", is_integer},
    {"float", "", is_float},
    {"number", "", is_number},
    {"callable", "", is_callable},
    {"escaped", "", is_escaped},
    {"odd", "", is_odd},
    {"even", "", is_even},
    {"divisibleby", "num!", is_divisible},
    {"eq", "other!", is_equal},
    {"equalto", "other!", is_equal},
    {"==", "other!", is_equal},
    {"ne", "other!", is_unequal},
    {"!=", "other!", is_unequal},
    {"lt", "other!", is_less},
    {"lessthan", "other!", is_less},
    {"<", "other!", is_less},
    {"gt", "other!", is_greater},
    {"greaterthan", "other!", is_greater},
    {">", "other!", is_greater},
    {"le", "other!", is_at_most},
    {"<=", "other!", is_at_most},
    {"ge", "other!", is_at_least},
    {">=", "other!", is_at_least},
    {"in", "seq!", is_in},
    {"sameas", "other!", is_same},
    {"upper", "", is_cased<to_lower, to_upper>},
    {"lower", "", is_cased<to_upper, to_lower>},
    {"filter", "", is_filter},
    {"test", "", is_test},
};

Value range(In in, Self, Args a) {
  int64_t begin = int_argument(*a[0], "range() argument"), end = 0, step = 1;
  if (a[1]) {
    end = int_argument(*a[1], "range() argument");
  } else {
    std::swap(begin, end);
  }
  if (a[2]) step = int_argument(*a[2], "range() argument");
  if (step == 0) fail("range() arg 3 must not be zero");
  constexpr size_t kMost = 100'000;  // as Jinja's sandbox
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (items.size() >= kMost) fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMost);
    items.push_back(Value(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  in.meter().step(items.size());
  return make_list(in.meter(), std::move(items), Flavor::kRange);
}

Value dict(In in, Self, Args a) {
  DictBuilder dict(in.meter());
  if (a.raw->positional.size() > 1) fail("dict expected at most 1 argument, got {}", a.raw->positional.size());
  if (!a.raw->positional.empty()) {
    const Value& from = a.raw->positional[0];
    if (from.is_dict()) {
      for (const auto& [key, value] : from.dict().items) dict.set(key, value);
    } else {
      for (const Value& entry : iterate(in.meter(), from)) {
        const std::vector<Value> pair = iterate(in.meter(), entry);
        if (pair.size() != 2) fail("dictionary update sequence element has length {}; 2 is required", pair.size());
        dict.set(pair[0], pair[1]);
      }
    }
  }
  for (const auto& [name, value] : a.raw->named) dict.set(name_of(in.meter(), *a.raw, name), value);
  return dict.take();
}

Value make_namespace(In in, Self, Args a) {
  const std::shared_ptr<Namespace> space = in.make_namespace();
  const Value fields = dict(in, Value(), a);
  for (const auto& [key, value] : fields.dict().items) {
    const std::string& name = text_argument(key, "a namespace's field").bytes;
    in.meter().hold(sizeof(Value) + name.size() + 32);
    space->set(name, value);
  }
  return Value(space);
}

Value raise_exception(In in, Self, Args a) {
  const Value message = to_text(in.meter(), *a[0]);
  fail("{}", shorten(message.text().bytes, 4096));
}

Value strftime_now(In in, Self, Args a) {
  const Text& format = text_argument(*a[0], "strftime() argument 1");
  const std::string time = format_time(format.bytes, in.now());
  return make_text(in.meter(), format.spans.empty() ? Text::trusted(time) : Text::untrusted(time));
}

Value cycler(In in, Self, Args a) {
  if (a.raw->positional.empty()) fail("at least one item has to be provided");
  auto made = std::make_shared<Cycler>();
  in.meter().hold(sizeof(Cycler) + a.raw->positional.size() * sizeof(Value));
  made->items = a.raw->positional;
  in.keep(made);
  return Value(std::move(made));
}

Value joiner(In in, Self, Args a) {
  auto made = std::make_shared<Joiner>();
  made->separator = a[0] ? *a[0] : make_trusted(in.meter(), ", ");
  text_argument(made->separator, "joiner() separator");
  return Value(std::move(made));
}

constexpr Builtin kGlobals[] = {
    {"namespace", "*", make_namespace},
    {"raise_exception", "message!", raise_exception},
    {"range", "start! stop step", range},
    {"dict", "*", dict},
    {"strftime_now", "format!", strftime_now},
    {"cycler", "*", cycler},
    {"joiner", "sep", joiner},
};

}  // namespace

const Builtin* find_test(std::string_view name) {
  for (const Builtin& builtin : kTests)
    if (builtin.name == name) return &builtin;
  return nullptr;
}

const Builtin* find_global(std::string_view name) {
  for (const Builtin& builtin : kGlobals)
    if (builtin.name == name) return &builtin;
  return nullptr;
}

}  // namespace kvilt::jinja
