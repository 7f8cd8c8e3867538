// template/jinja/format.cc: "%s" % x, "{}".format(x) and strftime. Arguments keep their spans; the format keeps its
// own.
#include <time.h>

#include <cmath>

#include "template/jinja/builtins.h"

namespace kvilt::jinja {
namespace {

struct Spec {                   // [[fill]align][sign][#][0][width][,][.precision][type], or %'s flags
  std::string_view fill = " ";  // a literal, or a part of the format
  bool foreign = false;         // the format is the caller's text, and so is its fill
  char align = '\0', sign = '-', type = '\0';
  bool comma = false, alternate = false;
  int width = 0, precision = -1;
};

constexpr int kMostWidth = 100'000;

int read_number(std::string_view text, size_t& at) {
  int value = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    value = value * 10 + (text[at] - '0');
    if (value > kMostWidth) fail("a width or precision in a format is too large");
  }
  return value;
}

std::string group_thousands(std::string digits) {
  size_t end = digits.find_first_not_of("0123456789");
  if (end == std::string::npos) end = digits.size();
  for (size_t at = end; at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

// The digits of a number without its sign.
std::string magnitude(const Value& value, const Spec& spec, char type) {
  if (value.is_integral() && std::string_view("dnxXob").find(type) != std::string_view::npos) {
    const int64_t i = value.integer();
    const uint64_t u = i < 0 ? uint64_t{0} - static_cast<uint64_t>(i) : static_cast<uint64_t>(i);
    switch (type) {
      case 'x':
        return spec.alternate ? fmt::format("{:#x}", u) : fmt::format("{:x}", u);
      case 'X':
        return spec.alternate ? fmt::format("{:#X}", u) : fmt::format("{:X}", u);
      case 'o':
        return spec.alternate ? fmt::format("0o{:o}", u) : fmt::format("{:o}", u);
      case 'b':
        return spec.alternate ? fmt::format("{:#b}", u) : fmt::format("{:b}", u);
      default:
        return fmt::format("{}", u);
    }
  }
  const double d = std::abs(value.number());
  const int precision = spec.precision < 0 ? 6 : std::min(spec.precision, 1000);
  switch (type) {
    case 'e':
      return fmt::format("{:.{}e}", d, precision);
    case 'E':
      return fmt::format("{:.{}E}", d, precision);
    case 'g':
      return fmt::format("{:.{}g}", d, precision);
    case 'G':
      return fmt::format("{:.{}G}", d, precision);
    case '%':
      return fmt::format("{:.{}f}%", d * 100, precision);
    default:
      return fmt::format("{:.{}f}", d, precision);
  }
}

void append_padded(Meter& meter, const Text& sign, const Text& body, const Spec& spec, char usual, TextBuilder& out) {
  const int size = static_cast<int>(std::min<size_t>(count_chars(sign.bytes) + count_chars(body.bytes), kMostWidth));
  const int missing = std::max(0, spec.width - size);
  const char align = spec.align ? spec.align : usual;
  const int front = align == '>' || align == '=' ? missing : align == '^' ? missing / 2 : 0;
  meter.bytes_touched(body.bytes.size() + static_cast<size_t>(missing) * 4);
  meter.can_hold(out.size() + body.bytes.size() + static_cast<size_t>(missing) * 4);
  const auto spread = [&](int count) {
    const Text fill = spec.foreign ? Text::untrusted(spec.fill) : Text::trusted(spec.fill);
    for (int i = 0; i < count; ++i) out.append(fill);
  };
  if (align == '=') out.append(sign);
  spread(front);
  if (align != '=') out.append(sign);
  out.append(body);
  spread(missing - front);
}

void append_number(Meter& meter, const Value& value, const Spec& spec, char type, TextBuilder& out) {
  const bool negative = value.is_integral() ? value.integer() < 0 : std::signbit(value.number());
  const std::string sign = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  std::string digits = magnitude(value, spec, type);
  if (spec.comma) digits = group_thousands(std::move(digits));
  append_padded(meter, Text::trusted(sign), Text::trusted(digits), spec, '>', out);
}

void append_text(Meter& meter, const Text& text, const Spec& spec, char usual, TextBuilder& out) {
  if (spec.precision < 0) return append_padded(meter, Text(), text, spec, usual, out);
  TextBuilder cut;
  cut.append(text, 0, char_offset(text.bytes, static_cast<size_t>(spec.precision)));
  append_padded(meter, Text(), cut.take(), spec, usual, out);
}

// One %-conversion of `value`.
void append_percent(Meter& meter, const Value& value, const Spec& spec, TextBuilder& out) {
  switch (spec.type) {
    case 's': {
      const Value text = to_text(meter, value);
      return append_text(meter, text.text(), spec, '>', out);
    }
    case 'r':
    case 'a': {
      TextBuilder shown;
      append_repr(meter, value, shown);
      return append_text(meter, shown.take(), spec, '>', out);
    }
    case 'd':
    case 'i':
    case 'u': {
      if (!value.is_number()) fail("%{} format: a real number is required, not {}", spec.type, type_name(value));
      if (value.is_integral()) return append_number(meter, value, spec, 'd', out);
      if (!(std::abs(value.number()) < 9.2e18)) fail("%d format: the number is too large");
      return append_number(meter, Value(static_cast<int64_t>(value.number())), spec, 'd', out);
    }
    case 'x':
    case 'X':
    case 'o':
      if (!value.is_integral()) fail("%{} format: an integer is required, not {}", spec.type, type_name(value));
      return append_number(meter, value, spec, spec.type, out);
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
      if (!value.is_number()) fail("must be real number, not {}", type_name(value));
      return append_number(meter, Value(value.number()), spec, spec.type, out);
    default:
      fail("unsupported format character '{}'", spec.type);
  }
}

Spec read_percent_spec(std::string_view format, size_t& at) {
  Spec spec;
  bool left = false, zero = false;
  for (; at < format.size(); ++at) {
    const char c = format[at];
    if (c == '-') {
      left = true;
    } else if (c == '0') {
      zero = true;
    } else if (c == '+' || c == ' ') {
      spec.sign = spec.sign == '+' ? '+' : c;
    } else if (c == '#') {
      spec.alternate = true;
    } else {
      break;
    }
  }
  spec.width = read_number(format, at);
  if (at < format.size() && format[at] == '.') {
    ++at;
    spec.precision = read_number(format, at);
  }
  if (at >= format.size()) fail("incomplete format");
  spec.type = format[at++];
  if (left) {
    spec.align = '<';
  } else if (zero && spec.type != 's' && spec.type != 'r') {
    spec.fill = "0";
    spec.align = '=';
  }
  return spec;
}

Spec read_brace_spec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [&](size_t i) {
    return i < text.size() && std::string_view("<>^=").find(text[i]) != std::string_view::npos;
  };
  const size_t after_fill = text.empty() ? 0 : next_char(text, 0);
  if (is_align(after_fill) && after_fill > 0) {
    spec.fill = text.substr(0, after_fill);
    spec.align = text[after_fill];
    at = after_fill + 1;
  } else if (is_align(0)) {
    spec.align = text[at++];
  }
  if (at < text.size() && std::string_view("+- ").find(text[at]) != std::string_view::npos) spec.sign = text[at++];
  if (at < text.size() && text[at] == '#') spec.alternate = ++at > 0;
  if (at < text.size() && text[at] == '0') {
    ++at;
    if (!spec.align) {
      spec.fill = "0";
      spec.align = '=';
    }
  }
  spec.width = read_number(text, at);
  if (at < text.size() && text[at] == ',') spec.comma = ++at > 0;
  if (at < text.size() && text[at] == '.') {
    ++at;
    spec.precision = read_number(text, at);
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) fail("Invalid format specifier '{}'", text);
  return spec;
}

struct Field {
  std::string_view spec;
  char conversion = '\0';
  bool foreign = false;
};

// One replacement field of str.format.
void append_field(Meter& meter, const Value& value, const Field& field, TextBuilder& out) {
  const std::string_view spec_text = field.spec;
  const char conversion = field.conversion;
  Spec spec = read_brace_spec(spec_text);
  spec.foreign = field.foreign;
  if (conversion == 'r') {
    TextBuilder shown;
    append_repr(meter, value, shown);
    return append_text(meter, shown.take(), spec, '<', out);
  }
  const bool number = value.is_number() && conversion != 's' && !value.is(Kind::kBool);
  if (!number || spec_text.empty()) {
    if (spec.type != '\0' && spec.type != 's')
      fail("Unknown format code '{}' for object of type '{}'", spec.type, type_name(value));
    const Value text = to_text(meter, value);
    return append_text(meter, text.text(), spec, '<', out);
  }
  if (spec.type == '\0' && (value.is_integral() || spec.precision < 0)) {
    if (value.is_integral()) return append_number(meter, value, spec, 'd', out);
    std::string digits = float_repr(std::abs(value.number()));
    if (spec.comma) digits = group_thousands(std::move(digits));
    const std::string sign = std::signbit(value.number()) ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
    return append_padded(meter, Text::trusted(sign), Text::trusted(digits), spec, '>', out);
  }
  static constexpr std::string_view kKnown = "dnxXobeEfFgG%";
  const char type = spec.type == '\0' ? 'g' : spec.type;
  const bool whole = std::string_view("dxXob").find(type) != std::string_view::npos;
  if (kKnown.find(type) == std::string_view::npos || (whole && !value.is_integral()))
    fail("Unknown format code '{}' for object of type '{}'", type, type_name(value));
  append_number(meter, value, spec, type, out);
}

// Fields of str.format: {}, {0}, {name}; attributes and items of them are not read (Jinja's sandbox guards those).
const Value& pick_field(const CallArgs& args, std::string_view name, size_t& automatic) {
  size_t at = 0;
  const bool digits = !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
  if (name.empty() || digits) {
    const size_t index = name.empty() ? automatic++ : static_cast<size_t>(read_number(name, at));
    if (index >= args.positional.size()) fail("Replacement index {} out of range for positional args tuple", index);
    return args.positional[index];
  }
  for (const auto& [known, value] : args.named)
    if (known == name) return value;
  fail("str.format knows no field '{}'", name);
}

}  // namespace

Text percent_format(Meter& meter, const Text& format, const Value& arguments) {
  const std::string_view text = format.bytes;
  meter.bytes_touched(text.size());
  const bool tuple = arguments.is_list() && arguments.list().flavor == Flavor::kTuple;
  size_t used = 0;
  const auto next_argument = [&]() -> const Value& {
    const size_t i = used++;
    if (tuple ? i >= arguments.list().items.size() : i > 0) fail("not enough arguments for format string");
    return tuple ? arguments.list().items[i] : arguments;
  };
  TextBuilder out;
  for (size_t at = 0; at < text.size();) {
    const size_t sign = std::min(text.find('%', at), text.size());
    out.append(format, at, sign);
    if (sign == text.size()) break;
    at = sign + 1;
    meter.step();
    if (at < text.size() && text[at] == '%') {
      out.append(format, at, at + 1);
      ++at;
      continue;
    }
    const Value* value = nullptr;
    if (at < text.size() && text[at] == '(') {
      const size_t close = text.find(')', at);
      if (close == std::string_view::npos) fail("incomplete format key");
      if (!arguments.is_dict()) fail("format requires a mapping");
      value = find_key(meter, arguments.dict(), text.substr(at + 1, close - at - 1));
      if (!value) fail("the format's key '{}' is not there", text.substr(at + 1, close - at - 1));
      at = close + 1;
    }
    const Spec spec = read_percent_spec(text, at);
    append_percent(meter, value ? *value : next_argument(), spec, out);
  }
  const size_t given = tuple ? arguments.list().items.size() : arguments.is_dict() || used > 0 ? used : 1;
  if (used < given) fail("not all arguments converted during string formatting");
  return out.take();
}

Text brace_format(Meter& meter, const Text& format, const CallArgs& args) {
  const std::string_view text = format.bytes;
  meter.bytes_touched(text.size());
  TextBuilder out;
  size_t automatic = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t brace = std::min(text.find_first_of("{}", at), text.size());
    out.append(format, at, brace);
    if (brace == text.size()) break;
    meter.step();
    if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
      out.append(format, brace, brace + 1);
      at = brace + 2;
      continue;
    }
    if (text[brace] == '}') fail("Single '}}' encountered in format string");
    const size_t close = text.find('}', brace);
    if (close == std::string_view::npos) fail("Single '{{' encountered in format string");
    std::string_view field = text.substr(brace + 1, close - brace - 1), spec;
    if (field.find('{') != std::string_view::npos) fail("nested fields in a format are not supported");
    if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = '\0';
    if (field.size() >= 2 && field[field.size() - 2] == '!') {
      conversion = field.back();
      field.remove_suffix(2);
    }
    meter.step(args.named.size() / 8);
    append_field(meter, pick_field(args, field, automatic), {spec, conversion, !format.spans.empty()}, out);
    at = close + 1;
  }
  return out.take();
}

std::string format_time(std::string_view format, int64_t seconds) {
  if (format.size() > 1000) fail("a time format of {} bytes is too long", format.size());
  const time_t time = static_cast<time_t>(seconds);
  tm parts{};
  if (!gmtime_r(&time, &parts)) fail("the time {} is out of range", seconds);
  static const locale_t locale = newlocale(LC_ALL_MASK, "C", nullptr);
  std::string out;
  for (size_t at = 0; at < format.size();) {  // one directive at a time: widths such as %9999d are no directive here
    if (format[at] != '%' || at + 1 >= format.size()) {
      out += format[at++];
      continue;
    }
    size_t end = at + 1;
    while (end < format.size() && std::string_view("-_0^#EO").find(format[end]) != std::string_view::npos) ++end;
    end = std::min(end + 1, format.size());
    const std::string directive(format.substr(at, end - at));
    char buffer[256];
    if (directive.back() == 'f') {
      out += "000000";  // the time given has no microseconds
    } else {
      out.append(buffer, strftime_l(buffer, sizeof buffer, directive.c_str(), &parts, locale));
    }
    at = end;
  }
  return out;
}

}  // namespace kvilt::jinja
