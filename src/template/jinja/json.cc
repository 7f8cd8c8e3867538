// template/jinja/json.cc: tojson as transformers defines it: Python's json.dumps with ensure_ascii off and no HTML
// escapes.
#include <cmath>

#include "template/jinja/builtins.h"

namespace kvilt::jinja {
namespace {

void escape_char(char32_t c, bool ensure_ascii, std::string& out) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    default:
      break;
  }
  if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000)) {
    if (c == 0x7F) {
      out += static_cast<char>(c);
    } else {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    }
  } else if (ensure_ascii && c >= 0x10000) {
    const uint32_t rest = static_cast<uint32_t>(c) - 0x10000;
    out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
  } else {
    append_utf8(c, out);
  }
}

void append_string(Meter& meter, const Text& text, const JsonStyle& style, TextBuilder& out) {
  meter.bytes_touched(text.bytes.size() * 6);
  meter.can_hold(out.size() + text.bytes.size() * 6);
  out.trusted("\"");
  out.append_mapped(text, 0, text.bytes.size(), [&](std::string_view piece, std::string& to) {
    for (size_t at = 0; at < piece.size(); at = next_char(piece, at))
      escape_char(char_at(piece, at), style.ensure_ascii, to);
  });
  out.trusted("\"");
}

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return float_repr(value);
}

class Writer {
 public:
  Writer(Meter& meter, const JsonStyle& style, TextBuilder& out) : meter_(meter), style_(style), out_(out) {}

  void write(const Value& value, int level) {
    meter_.step();
    meter_.can_hold(out_.size() + style_.item_separator.bytes.size() + style_.key_separator.bytes.size());
    switch (value.kind()) {
      case Kind::kNone:
        return out_.trusted("null");
      case Kind::kBool:
        return out_.trusted(truthy(value) ? "true" : "false");
      case Kind::kInt:
        return out_.trusted(std::to_string(value.integer()));
      case Kind::kLarge:
        return out_.trusted(std::to_string(value.large()));
      case Kind::kFloat:
        return out_.trusted(json_float(value.number()));
      case Kind::kText:
        return append_string(meter_, value.text(), style_, out_);
      case Kind::kList:
        if (value.list().flavor == Flavor::kList || value.list().flavor == Flavor::kTuple)
          return list(value.list(), level);
        break;
      case Kind::kDict:
        return dict(value.dict(), level);
      default:
        break;
    }
    fail("Object of type {} is not JSON serializable", type_name(value));
  }

 private:
  void newline(int level) {
    if (!style_.pretty) return;
    out_.trusted("\n");
    meter_.can_hold(out_.size() + style_.indent.bytes.size() * static_cast<size_t>(level));
    meter_.bytes_touched(style_.indent.bytes.size() * static_cast<size_t>(level));
    for (int i = 0; i < level; ++i) out_.append(style_.indent);
  }

  void list(const List& list, int level) {
    if (list.items.empty()) return out_.trusted("[]");
    out_.trusted("[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i) out_.append(style_.item_separator);
      newline(level + 1);
      write(list.items[i], level + 1);
    }
    newline(level);
    out_.trusted("]");
  }

  void key(const Value& key) {
    if (key.is_text()) return append_string(meter_, key.text(), style_, out_);
    if (!key.is_number() && !key.is_none()) fail("keys must be str, int, float, bool or None, not {}", type_name(key));
    out_.trusted("\"");
    write(key, 0);
    out_.trusted("\"");
  }

  void dict(const Dict& dict, int level) {
    if (dict.items.empty()) return out_.trusted("{}");
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys)
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto* a, const auto* b) { return compare(meter_, a->first, b->first, "<") == -1; });
    out_.trusted("{");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i) out_.append(style_.item_separator);
      newline(level + 1);
      key(items[i]->first);
      out_.append(style_.key_separator);
      write(items[i]->second, level + 1);
    }
    newline(level);
    out_.trusted("}");
  }

  Meter& meter_;
  const JsonStyle& style_;
  TextBuilder& out_;
};

}  // namespace

void append_json(Meter& meter, const Value& value, const JsonStyle& style, TextBuilder& out) {
  Writer(meter, style, out).write(value, 0);
}

}  // namespace kvilt::jinja
