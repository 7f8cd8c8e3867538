// template/jinja/print.cc: str() and repr() as Python prints them. Spans are kept: an escape belongs to the byte that
// it replaces.
#include <charconv>
#include <cmath>

#include "template/jinja/objects.h"
#include "template/jinja/value.h"

namespace kvilt::jinja {
namespace {

// What Python escapes besides the quote, backslash and ASCII controls (a short list of the usual invisible ones).
bool is_printable(char32_t c) {
  if (c >= 0x20 && c < 0x7F) return true;
  if (c < 0xA1 || c == 0xAD) return false;
  return !(is_space(c) || (c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) ||
           (c >= 0x2060 && c <= 0x206F) || (c >= 0xD800 && c <= 0xF8FF) || c == 0xFEFF ||
           (c >= 0xFFF9 && c <= 0xFFFB) || c >= 0xE0000);
}

void repr_char(char32_t c, char quote, std::string& out) {
  switch (c) {
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\\':
      out += "\\\\";
      return;
    default:
      break;
  }
  if (c == static_cast<char32_t>(quote)) {
    out += '\\';
    out += quote;
  } else if (is_printable(c)) {
    append_utf8(c, out);
  } else if (c < 0x100) {
    out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
  } else {
    out += c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c))
                       : fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
  }
}

void append_quoted(const Text& text, TextBuilder& out) {
  const bool single = text.bytes.find('\'') != std::string::npos, twin = text.bytes.find('"') != std::string::npos;
  const char quote = single && !twin ? '"' : '\'';
  const std::string_view border(&quote, 1);
  out.trusted(border);
  out.append_mapped(text, 0, text.bytes.size(), [&](std::string_view piece, std::string& to) {
    for (size_t at = 0; at < piece.size(); at = next_char(piece, at)) repr_char(char_at(piece, at), quote, to);
  });
  out.trusted(border);
}

void append_list(Meter& meter, const Value& value, TextBuilder& out) {
  const List& list = value.list();
  if (list.flavor == Flavor::kGenerator) return out.trusted("<generator object>");
  const bool tuple = list.flavor == Flavor::kTuple, view = is_view(list.flavor);
  if (view) out.trusted(type_name(value));
  out.trusted(view ? "([" : tuple ? "(" : "[");
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i) out.trusted(", ");
    append_repr(meter, list.items[i], out);
  }
  out.trusted(view ? "])" : tuple ? (list.items.size() == 1 ? ",)" : ")") : "]");
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view all(buffer, static_cast<size_t>(end - buffer));
  const size_t e = all.find('e');
  const int exponent = std::atoi(std::string(all.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(all);  // two exponent digits at least, as Python writes them
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string out(buffer, static_cast<size_t>(fixed - buffer));
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

void append_repr(Meter& meter, const Value& value, TextBuilder& out) {
  if (value.is_text()) {
    meter.bytes_touched(value.text().bytes.size() * 4);
    meter.can_hold(out.size() + value.text().bytes.size() * 4);
    if (value.text().markup) out.trusted("Markup(");
    append_quoted(value.text(), out);
    if (value.text().markup) out.trusted(")");
    return;
  }
  if (value.is_undefined()) return out.trusted("Undefined");
  append_str(meter, value, out);
}

void append_str(Meter& meter, const Value& value, TextBuilder& out) {
  meter.step();
  meter.can_hold(out.size());
  switch (value.kind()) {
    case Kind::kUndefined:
      return;
    case Kind::kNone:
      return out.trusted("None");
    case Kind::kBool:
      return out.trusted(truthy(value) ? "True" : "False");
    case Kind::kInt:
      return out.trusted(std::to_string(value.integer()));
    case Kind::kLarge:
      return out.trusted(std::to_string(value.large()));
    case Kind::kFloat:
      return out.trusted(float_repr(value.number()));
    case Kind::kText:
      meter.bytes_touched(value.text().bytes.size());
      meter.can_hold(out.size() + value.text().bytes.size());
      return out.append(value.text());
    case Kind::kList:
      return append_list(meter, value, out);
    case Kind::kDict: {
      out.trusted("{");
      bool first = true;
      for (const auto& [key, item] : value.dict().items) {
        if (!std::exchange(first, false)) out.trusted(", ");
        append_repr(meter, key, out);
        out.trusted(": ");
        append_repr(meter, item, out);
      }
      return out.trusted("}");
    }
    case Kind::kObject:
      out.trusted("<");
      out.trusted(value.object()->type_name());
      return out.trusted(" object>");
  }
}

Value to_text(Meter& meter, const Value& value) {
  if (value.is_text()) return value;
  TextBuilder out;
  append_str(meter, value, out);
  return make_text(meter, out.take());
}

}  // namespace kvilt::jinja
