#include "grammar/schema_refs.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "grammar/schema_words.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

// visit: gets the text of each $ref. T: Json, const or not.
template <class T, class Visit>
void each_ref(T& schema, const Visit& visit) {
  if (schema.is_array()) {
    for (auto& one : schema) each_ref(one, visit);
  }
  if (!schema.is_object()) return;
  const auto is_in = [](const auto& words, const std::string& word) { return std::ranges::count(words, word) > 0; };
  for (auto member = schema.begin(); member != schema.end(); ++member) {
    const std::string& word = member.key();
    if (word == "$ref" && member->is_string()) {
      visit(member->template get_ref<std::conditional_t<std::is_const_v<T>, const std::string&, std::string&>>());
    } else if (is_in(kNamed, word) && member->is_object()) {
      for (auto& one : *member) each_ref(one, visit);
    } else if (!is_in(kValues, word)) {
      each_ref(*member, visit);
    }
  }
}

// Where the schema with such an $id is; nothing: nowhere. `#name` is a name of older drafts, at which no $ref begins.
std::optional<std::string> foreign_refs(const Json& schema, bool root) {
  const auto is_in = [](const auto& words, const std::string& word) { return std::ranges::count(words, word) > 0; };
  if (!schema.is_structured()) return std::nullopt;
  if (const auto id = schema.is_object() ? schema.find("$id") : schema.end();
      !root && id != schema.end() && id->is_string() && !id->get_ref<const std::string&>().starts_with('#') &&
      refs_of(schema) != SchemaRefs::kNone)
    return "";
  for (const auto& [word, inner] : schema.items()) {
    if (schema.is_object() && is_in(kValues, word)) continue;
    if (schema.is_object() && is_in(kNamed, word) && inner.is_object()) {
      for (const auto& [name, one] : inner.items()) {
        if (const auto found = foreign_refs(one, false)) return fmt::format("/{}/{}{}", word, name, *found);
      }
    } else if (const auto found = foreign_refs(inner, false)) {
      return fmt::format("/{}{}", word, *found);
    }
  }
  return std::nullopt;
}

}  // namespace

Status check_ids(const Json& schema) {
  const auto at = foreign_refs(schema, true);
  if (!at) return {};
  return error(Code::kInvalidArgument,
               "schema at {}: it has an $id, so the $refs inside begin there, which is not supported: leave the $id "
               "out, and put what they lead to into $defs of the root",
               short_text(*at));
}

SchemaRefs refs_of(const Json& schema) {
  SchemaRefs out = SchemaRefs::kNone;
  each_ref(schema, [&](const std::string& ref) {
    const bool defined = ref.starts_with("#/$defs/") || ref.starts_with("#/definitions/");
    out = std::max(out, defined ? SchemaRefs::kDefinitions : SchemaRefs::kElsewhere);
  });
  return out;
}

void move_refs(Json& schema, std::string_view to) {
  each_ref(schema, [&](std::string& ref) {
    if (ref.starts_with('#')) ref.replace(0, 1, to);
  });
}

}  // namespace kvilt
