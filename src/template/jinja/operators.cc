// template/jinja/operators.cc: +, -, *, /, //, %, ** and slices with Python's rules; integers have 64 bits, and an
// overflow is an error rather than a wrong number.
#include <cmath>

#include "template/jinja/interpreter.h"

namespace kvilt::jinja {
namespace {

[[noreturn]] void unsupported(std::string_view op, const Value& a, const Value& b) {
  for (const Value* v : {&a, &b})
    if (v->is_undefined()) fail("{}", why_undefined(*v));
  if (op == "+" && a.is_text()) fail("can only concatenate str (not \"{}\") to str", type_name(b));
  if (op == "+" && a.is_list())
    fail("can only concatenate {} (not \"{}\") to {}", type_name(a), type_name(b), type_name(a));
  fail("unsupported operand type(s) for {}: '{}' and '{}'", op, type_name(a), type_name(b));
}

[[noreturn]] void overflow() { fail("an integer leaves 64 bits"); }

int64_t floor_div(int64_t a, int64_t b) {
  if (b == -1) {
    int64_t negated = 0;
    if (__builtin_sub_overflow(int64_t{0}, a, &negated)) overflow();
    return negated;
  }
  const int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

int64_t floor_mod(int64_t a, int64_t b) {
  if (b == -1) return 0;
  const int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

Value power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) fail("0.0 cannot be raised to a negative power");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return Value(exponent == 0 ? int64_t{1} : base);
  if (base == -1) return Value(exponent % 2 ? int64_t{-1} : int64_t{1});
  int64_t result = 1;
  for (; exponent > 0; --exponent)  // |base| >= 2: at most 63 rounds before it overflows
    if (__builtin_mul_overflow(result, base, &result)) overflow();
  return Value(result);
}

Value integers(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &result)) overflow();
    return Value(result);
  }
  if (op == "-") {
    if (__builtin_sub_overflow(a, b, &result)) overflow();
    return Value(result);
  }
  if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) overflow();
    return Value(result);
  }
  if (op == "**") return power(a, b);
  if (b == 0) fail("{}", op == "/" ? "division by zero" : "integer division or modulo by zero");
  if (op == "/") return Value(static_cast<double>(a) / static_cast<double>(b));
  return Value(op == "//" ? floor_div(a, b) : floor_mod(a, b));
}

Value floats(std::string_view op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") return Value(std::pow(a, b));
  if (b == 0) fail("float division by zero");
  if (op == "/") return Value(a / b);
  if (op == "//") return Value(std::floor(a / b));
  const double r = std::fmod(a, b);
  return Value(r != 0 && (r < 0) != (b < 0) ? r + b : r);
}

Value add_texts(Meter& meter, const Text& a, const Text& b) {
  meter.can_hold(a.bytes.size() + b.bytes.size());
  TextBuilder out;
  out.reserve(a.bytes.size() + b.bytes.size());
  const bool markup = a.markup || b.markup;  // as markupsafe: the other operand is escaped
  out.append(markup && !a.markup ? escape_text(meter, a) : a);
  out.append(markup && !b.markup ? escape_text(meter, b) : b);
  Text text = out.take();
  text.markup = markup;
  return make_text(meter, std::move(text));
}

Value repeat(Meter& meter, const Value& what, int64_t times) {
  const size_t count = times < 0 ? 0 : static_cast<size_t>(times);
  const size_t size = what.is_text() ? what.text().bytes.size() : what.list().items.size() * sizeof(Value);
  if (size > 0 && count > meter.limits().live_bytes / size) fail("a repetition is too large");
  meter.can_hold(size * count);
  if (what.is_text()) {
    TextBuilder out;
    if (size > 0) meter.step(count);
    for (size_t i = 0; size > 0 && i < count; ++i) out.append(what.text());
    return make_text(meter, out.take());
  }
  std::vector<Value> items;
  for (size_t i = 0; size > 0 && i < count; ++i)
    items.insert(items.end(), what.list().items.begin(), what.list().items.end());
  return make_list(meter, std::move(items), what.list().flavor);
}

bool is_sequence(const Value& v) {
  return v.is_list() && (v.list().flavor == Flavor::kList || v.list().flavor == Flavor::kTuple);
}

std::optional<int64_t> slice_part(const Value& part) {
  if (part.is_none()) return std::nullopt;
  if (!part.is_integral()) fail("slice indices must be integers or None or have an __index__ method");
  return part.integer();
}

}  // namespace

Value binary_operator(Meter& meter, std::string_view op, const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    if (left.is_integral() && right.is_integral()) return integers(op, left.integer(), right.integer());
    return floats(op, left.number(), right.number());
  }
  if (op == "%" && left.is_text()) return make_text(meter, percent_format(meter, left.text(), right));
  if (op == "*") {
    if ((left.is_text() || is_sequence(left)) && right.is_integral()) return repeat(meter, left, right.integer());
    if ((right.is_text() || is_sequence(right)) && left.is_integral()) return repeat(meter, right, left.integer());
  }
  if (op == "+") {
    if (left.is_text() && right.is_text()) return add_texts(meter, left.text(), right.text());
    if (is_sequence(left) && is_sequence(right) && left.list().flavor == right.list().flavor) {
      meter.can_hold((left.list().items.size() + right.list().items.size()) * sizeof(Value));
      std::vector<Value> items = left.list().items;
      items.insert(items.end(), right.list().items.begin(), right.list().items.end());
      return make_list(meter, std::move(items), left.list().flavor);
    }
  }
  unsupported(op, left, right);
}

Value negate(const Value& value) {
  if (value.is(Kind::kFloat) || value.is(Kind::kLarge)) return Value(-value.number());
  if (!value.is_integral()) {
    if (value.is_undefined()) fail("{}", why_undefined(value));
    fail("bad operand type for unary -: '{}'", type_name(value));
  }
  return integers("-", 0, value.integer());
}

Value slice(Meter& meter, const Value& value, const Value& begin, const Value& end, const Value& step) {
  if (value.is_undefined()) fail("{}", why_undefined(value));
  const bool text = value.is_text();
  if (!text && !is_sequence(value) && !(value.is_list() && value.list().flavor == Flavor::kRange))
    return Value::undefined(fmt::format("'{} object' cannot be sliced", type_name(value)));
  const int64_t size = static_cast<int64_t>(*length_of(meter, value));
  const int64_t stride = slice_part(step).value_or(1);
  if (stride == 0) fail("slice step cannot be zero");
  const auto clamp = [&](std::optional<int64_t> part, int64_t otherwise) {
    if (!part) return otherwise;
    const int64_t low = stride < 0 ? -1 : 0, high = stride < 0 ? size - 1 : size;
    const int64_t at = *part < 0 ? (*part < -size ? low : *part + size) : *part;
    return std::min(std::max(at, low), high);
  };
  const int64_t from = clamp(slice_part(begin), stride < 0 ? size - 1 : 0);
  const int64_t to = clamp(slice_part(end), stride < 0 ? -1 : size);
  if (text && stride == 1) {
    meter.bytes_touched(value.text().bytes.size());
    const std::string_view bytes = value.text().bytes;
    const size_t first = char_offset(bytes, static_cast<size_t>(from));
    const size_t last = to > from ? char_offset(bytes, static_cast<size_t>(to)) : first;
    TextBuilder out;
    out.append(value.text(), first, last);
    return make_text(meter, out.take());
  }
  std::vector<size_t> offsets;  // of the code points
  if (text) {
    meter.step(value.text().bytes.size());
    meter.can_hold(value.text().bytes.size() * sizeof(size_t));
    for (size_t at = 0; at < value.text().bytes.size(); at = next_char(value.text().bytes, at)) offsets.push_back(at);
    offsets.push_back(value.text().bytes.size());
  }
  TextBuilder out;
  std::vector<Value> items;
  for (int64_t i = from; stride > 0 ? i < to : i > to;) {
    meter.step();
    if (text) {
      out.append(value.text(), offsets[i], offsets[i + 1]);
    } else {
      items.push_back(value.list().items[i]);
    }
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (text) return make_text(meter, out.take());
  return make_list(meter, std::move(items), value.list().flavor);
}

}  // namespace kvilt::jinja
