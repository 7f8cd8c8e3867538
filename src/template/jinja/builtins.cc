// template/jinja/builtins.cc: binds arguments to builtins, and the text functions that methods and filters share.
#include "template/jinja/builtins.h"

#include "template/jinja/interpreter.h"

namespace kvilt::jinja {
namespace {

// Takes the next word off `params`.
std::string_view next_param(std::string_view& params) {
  const size_t space = std::min(params.find(' '), params.size());
  const std::string_view word = params.substr(0, space);
  params.remove_prefix(std::min(space + 1, params.size()));
  return word;
}

}  // namespace

Value call_builtin(Interpreter& in, const Builtin& builtin, const Value& self, const CallArgs& args) {
  Bound bound;
  bound.raw = &args;
  if (builtin.params == "*") return builtin.call(in, self, bound);
  std::string_view params = builtin.params;
  size_t count = 0, used = 0;
  while (!params.empty()) {
    std::string_view name = next_param(params);
    const bool required = name.back() == '!';
    if (required) name.remove_suffix(1);
    const Value*& slot = bound.values[count];
    if (count < args.positional.size()) slot = &args.positional[count];
    for (const auto& [given, value] : args.named) {
      if (given != name) continue;
      if (slot) fail("{}() got multiple values for argument '{}'", builtin.name, name);
      slot = &value;
      ++used;
    }
    if (required && !slot) fail("{}() missing 1 required positional argument: '{}'", builtin.name, name);
    ++count;
  }
  if (args.positional.size() > count)
    fail("{}() takes at most {} argument(s) ({} given)", builtin.name, count, args.positional.size());
  if (used < args.named.size()) {
    for (const auto& [given, value] : args.named) {
      bool known = false;
      for (std::string_view rest = builtin.params; !rest.empty();) {
        std::string_view name = next_param(rest);
        if (name.back() == '!') name.remove_suffix(1);
        known |= name == given;
      }
      if (!known) fail("{}() got an unexpected keyword argument '{}'", builtin.name, given);
    }
    fail("{}() got a keyword argument twice", builtin.name);
  }
  return builtin.call(in, self, bound);
}

Value name_of(Meter& meter, const CallArgs& args, std::string_view name) {
  return make_text(meter, args.foreign_names ? Text::untrusted(name) : Text::trusted(name));
}

int64_t int_argument(const Value& value, std::string_view what) {
  if (value.is_integral()) return value.integer();
  if (value.is_undefined()) fail("{}", why_undefined(value));
  fail("{} must be an integer, not {}", what, type_name(value));
}

const Text& text_argument(const Value& value, std::string_view what) {
  if (value.is_text()) return value.text();
  if (value.is_undefined()) fail("{}", why_undefined(value));
  fail("{} must be str, not {}", what, type_name(value));
}

Text strip_text(Meter& meter, const Text& text, const Value* chars, bool left, bool right) {
  const std::string_view bytes = text.bytes;
  std::string_view set;
  const bool spaces = !chars || chars->is_none();
  if (!spaces) set = text_argument(*chars, "strip arg").bytes;
  const auto stripped = [&](size_t at, size_t next) {
    meter.step(set.size() / 64 + 1);
    if (spaces) return is_space(char_at(bytes, at));
    return find_bytes(set, bytes.substr(at, next - at), 0) != std::string_view::npos;
  };
  size_t begin = 0, end = bytes.size();
  while (left && begin < end && stripped(begin, next_char(bytes, begin))) begin = next_char(bytes, begin);
  while (right && end > begin && stripped(prev_char(bytes, end), end)) end = prev_char(bytes, end);
  TextBuilder out;
  out.append(text, begin, end);
  Text result = out.take();
  result.markup = text.markup;
  return result;
}

Text replace_text(Meter& meter, const Text& text, const Text& from, const Text& to, int64_t count) {
  meter.step(text.bytes.size() / 16 + 1);
  TextBuilder out;
  size_t at = 0;
  const auto emit = [&] {
    meter.bytes_touched(to.bytes.size());
    meter.can_hold(out.size() + to.bytes.size());
    out.append(to);
  };
  if (from.bytes.empty()) {  // between all characters, and at both ends
    for (int64_t done = 0; count < 0 || done < count; ++done) {
      emit();
      if (at >= text.bytes.size()) break;
      const size_t next = next_char(text.bytes, at);
      out.append(text, at, next);
      at = next;
    }
  } else {
    for (int64_t done = 0; count < 0 || done < count; ++done) {
      const size_t hit = find_bytes(text.bytes, from.bytes, at);
      if (hit == std::string_view::npos) break;
      out.append(text, at, hit);
      emit();
      at = hit + from.bytes.size();
    }
  }
  out.append(text, at, text.bytes.size());
  return out.take();
}

Text join_texts(Meter& meter, const std::vector<Value>& items, const Text& separator) {
  TextBuilder out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) {
      meter.bytes_touched(separator.bytes.size());
      meter.can_hold(out.size() + separator.bytes.size());
      out.append(separator);
    }
    append_str(meter, items[i], out);
  }
  return out.take();
}

Text map_chars(Meter& meter, const Text& text, char32_t (*map)(char32_t)) {
  meter.step(text.bytes.size() / 8);
  TextBuilder out;
  out.append_mapped(text, 0, text.bytes.size(), [&](std::string_view piece, std::string& to) {
    for (size_t at = 0; at < piece.size(); at = next_char(piece, at)) {
      const char32_t c = char_at(piece, at);
      if (c == 0xDF && map == to_upper) {  // the one letter in common use whose capital is two
        to += "SS";
      } else {
        append_utf8(map(c), to);
      }
    }
  });
  return out.take();
}

Text title_text(Meter& meter, const Text& text, bool by_letters) {
  static constexpr std::string_view kOpening = "-({[<";
  meter.step(text.bytes.size() / 8);
  TextBuilder out;
  bool in_word = false;
  out.append_mapped(text, 0, text.bytes.size(), [&](std::string_view piece, std::string& to) {
    for (size_t at = 0; at < piece.size(); at = next_char(piece, at)) {
      const char32_t c = char_at(piece, at);
      append_utf8(in_word ? to_lower(c) : to_upper(c), to);
      in_word =
          by_letters ? is_alpha(c) : !(is_space(c) || (c < 0x80 && kOpening.find(char(c)) != std::string_view::npos));
    }
  });
  return out.take();
}

Text capitalize_text(Meter& meter, const Text& text) {
  meter.step(text.bytes.size() / 8);
  TextBuilder out;
  bool first = true;
  out.append_mapped(text, 0, text.bytes.size(), [&](std::string_view piece, std::string& to) {
    for (size_t at = 0; at < piece.size(); at = next_char(piece, at)) {
      const char32_t c = char_at(piece, at);
      append_utf8(std::exchange(first, false) ? to_upper(c) : to_lower(c), to);
    }
  });
  return out.take();
}

Text escape_text(Meter& meter, const Text& text) {
  meter.bytes_touched(text.bytes.size() * 5);
  meter.can_hold(text.bytes.size() * 5);
  TextBuilder out;
  out.append_mapped(text, 0, text.bytes.size(), [](std::string_view piece, std::string& to) {
    for (const char c : piece) {
      switch (c) {
        case '&':
          to += "&amp;";
          break;
        case '<':
          to += "&lt;";
          break;
        case '>':
          to += "&gt;";
          break;
        case '"':
          to += "&#34;";
          break;
        case '\'':
          to += "&#39;";
          break;
        default:
          to += c;
      }
    }
  });
  return out.take();
}

}  // namespace kvilt::jinja
