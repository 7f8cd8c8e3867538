// template/jinja/builtins.h: filters, tests, methods and global functions written in C++, found by name.
// Role:       one table per family; the interpreter binds a call's arguments to a builtin's parameters as Python would.
// Threads:    tables are constant; the functions keep no state.
#pragma once

#include <array>
#include <string_view>

#include "template/jinja/objects.h"
#include "template/jinja/value.h"

namespace kvilt::jinja {

class Interpreter;

// Arguments bound to the parameters of a builtin, in its order; null: not given.
struct Bound {
  std::array<const Value*, 6> values{};
  const CallArgs* raw = nullptr;  // of builtins that take anything ("*")
  const Value* operator[](size_t i) const { return values[i]; }
};

struct Builtin {
  std::string_view name;
  std::string_view params;  // "chars count"; '!' after the last one that must be given; "*": anything
  Value (*call)(Interpreter& in, const Value& self, const Bound& args);
};

// Null if there is none of that name.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_global(std::string_view name);
const Builtin* find_method(const Value& self, std::string_view name);

Value call_builtin(Interpreter& in, const Builtin& builtin, const Value& self, const CallArgs& args);

// --- arguments of the usual types; failures have a TypeError's words ---
int64_t int_argument(const Value& value, std::string_view what);
const Text& text_argument(const Value& value, std::string_view what);

// --- shared between families ---
Text strip_text(Meter& meter, const Text& text, const Value* chars, bool left, bool right);
Text replace_text(Meter& meter, const Text& text, const Text& from, const Text& to, int64_t count);
Text join_texts(Meter& meter, const std::vector<Value>& items, const Text& separator);
Text map_chars(Meter& meter, const Text& text, char32_t (*map)(char32_t));
Text title_text(Meter& meter, const Text& text,
                bool by_letters);  // words: runs of letters (str.title) or as |title cuts
Text capitalize_text(Meter& meter, const Text& text);
Text escape_text(Meter& meter, const Text& text);
Text percent_format(Meter& meter, const Text& format, const Value& arguments);
Text brace_format(Meter& meter, const Text& format, const CallArgs& args);
std::string format_time(std::string_view format, int64_t seconds);

// json.dumps as transformers calls it: no HTML escapes; escapes non-ASCII only if asked.
struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  bool pretty = false;
  Text indent;  // of one level; with `pretty`
  Text item_separator = Text::trusted(", "), key_separator = Text::trusted(": ");
};
void append_json(Meter& meter, const Value& value, const JsonStyle& style, TextBuilder& out);

}  // namespace kvilt::jinja
