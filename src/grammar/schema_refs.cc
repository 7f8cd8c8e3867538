#include "grammar/schema_refs.h"

#include <algorithm>
#include <string>
#include <type_traits>

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

}  // namespace

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
