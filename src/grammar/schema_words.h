// grammar/schema_words.h: the words of JSON Schema, and what can be read off a schema without writing a grammar.
// Idea: shared by what settles schemas (schema_check.h) and by what makes one schema of several (schema_meet.h).
#pragma once

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvilt {

using SchemaJson = nlohmann::ordered_json;

inline constexpr int kMostSchemaLevels = 64;  // of objects and lists in each other

// In the order in which one of them rules: xgrammar reads one of them and then none beside it.
inline constexpr std::array kRuling = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

// Keywords that hold schemas: by name, in a list, one.
inline constexpr std::array kNamed = {"properties", "patternProperties", "$defs", "definitions"};
inline constexpr std::array kListed = {"anyOf", "oneOf", "allOf", "prefixItems"};
inline constexpr std::array kInside = {"items", "additionalProperties", "propertyNames", "unevaluatedItems",
                                       "unevaluatedProperties"};
// And those that hold values.
inline constexpr std::array kValues = {"const", "enum", "default", "examples"};

// What nothing here can hold an answer to.
inline constexpr std::array kRefused = {"not",
                                        "if",
                                        "then",
                                        "else",
                                        "contains",
                                        "minContains",
                                        "maxContains",
                                        "uniqueItems",
                                        "dependentRequired",
                                        "$dynamicRef",
                                        "dependencies",
                                        "dependentSchemas",
                                        "$recursiveRef",
                                        "additionalItems"};

// Keywords that say something of values of one type.
struct Typed {
  const char* type;
  std::vector<const char*> keywords;
};
const std::array<Typed, 4>& typed();

bool is_schema_condition(std::string_view word);  // what an answer can fit or not; annotations and definitions are none
int conditions_in(const SchemaJson& schema);
bool joins_schemas(std::string_view word);  // $ref, anyOf, oneOf, allOf
bool is_never(const SchemaJson& schema);    // false, or {"not": {}}: no value fits

bool is_of(const SchemaJson& value, std::string_view type);
bool is_of_any(const SchemaJson& value, const SchemaJson& types);  // a type, or a list of them

std::string short_text(const std::string& text);

// What one schema may take, all in all: names that are looked at, and bytes that are copied. $refs, unions and what is
// written for each of some names multiply, so that a schema of some KiB could take minutes and all memory. Beyond kMost
// nothing is seen or written any more; that is some 0.1 s.
struct Looked {
  static constexpr size_t kMost = 10'000'000;
  size_t at = 0;
  bool may(size_t more) { return (at += std::min(more, kMost + 1)) <= kMost; }
};
// Of a copy, and so much for each value.
size_t bytes_in(const SchemaJson& value);

// What a $ref leads to; null: nothing. T: SchemaJson, const or not. REQUIRES: empty, or begins with #
template <class T>
T* at_ref(T& root, std::string_view ref, Looked* looked = nullptr) {
  T* at = &root;
  for (ref.remove_prefix(std::min<size_t>(ref.size(), 1)); !ref.empty();) {  // the #
    ref.remove_prefix(1);                                                    // and a slash before each name
    const std::string name(ref.substr(0, ref.find('/')));
    ref.remove_prefix(name.size());
    if (looked && !looked->may(at->size())) return nullptr;
    const auto found = at->find(name);
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return at;
}

// The schema that a $ref leads to, through others; null: none, in a circle, or too much was looked at. alone: null, too,
// where a condition stands beside a $ref on the way.
template <class T>
T* resolved_schema(T& root, T& schema, Looked* looked = nullptr, bool alone = false) {
  T* at = &schema;
  for (int step = 0; step < kMostSchemaLevels && (!looked || looked->may(1)); ++step) {
    if (!at->is_object()) return nullptr;
    const auto ref = at->find("$ref");
    if (ref == at->end()) return at;
    if (alone && conditions_in(*at) > 1) return nullptr;
    at = ref->is_string() && ref->template get_ref<const std::string&>().starts_with('#')
             ? at_ref(root, ref->template get_ref<const std::string&>(), looked)
             : nullptr;
    if (!at) return nullptr;
  }
  return nullptr;
}

// The types (`integer` among them) of which each value that fits is one; nothing where that is not seen.
std::optional<std::set<std::string>> types_of(const SchemaJson& root, const SchemaJson& schema,
                                              Looked* looked = nullptr, int depth = 0);

// The values that can fit, where they are a list.
std::optional<std::vector<SchemaJson>> values_of(const SchemaJson& root, const SchemaJson& schema,
                                                 Looked* looked = nullptr);

// The values that fit, each once, where a schema is a list of them (256 at most) and no more.
std::optional<std::vector<SchemaJson>> listed_values(const SchemaJson& root, const SchemaJson& schema, Looked& looked);

}  // namespace kvilt
