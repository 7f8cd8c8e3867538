#include "grammar/schema_meet.h"

#include <utility>

#include "base/error.h"

namespace kvilt {
namespace {

// Keywords with an order: of two the larger, or the smaller one, says both.
constexpr std::array kLarger = {"minLength", "minimum", "exclusiveMinimum", "minItems", "minProperties"};
constexpr std::array kSmaller = {"maxLength", "maximum", "exclusiveMaximum", "maxItems", "maxProperties"};

// What is made one by a rule of its own.
constexpr std::array kOwnRule = {"type",
                                 "const",
                                 "enum",
                                 "properties",
                                 "additionalProperties",
                                 "items",
                                 "prefixItems",
                                 "required",
                                 "patternProperties",
                                 "propertyNames",
                                 "not",
                                 "uniqueItems",
                                 "unevaluatedItems",
                                 "unevaluatedProperties"};

constexpr size_t kMostPairs = 1'000'000;

Error no_way(const std::string& why) { return Error{Code::kInvalidArgument, why}; }

template <class Words>
bool is_among(const Words& words, std::string_view word) {
  return std::ranges::any_of(words, [&](const char* one) { return word == one; });
}

size_t values_in(const SchemaJson& value) {
  size_t n = 1;
  if (value.is_structured()) {
    for (const SchemaJson& inner : value) n += values_in(inner);
  }
  return n;
}

bool says_nothing(const SchemaJson& schema) { return schema == true || (schema.is_object() && schema.empty()); }

const SchemaJson* found_in(const SchemaJson& schema, const char* word) {
  const auto at = schema.find(word);
  return at == schema.end() ? nullptr : &*at;
}

SchemaJson list_of_types(const SchemaJson& type) { return type.is_array() ? type : SchemaJson::array({type}); }

// The types that two lists share; an integer is a number.
SchemaJson shared_types(const SchemaJson& a, const SchemaJson& b) {
  SchemaJson out = SchemaJson::array();
  const auto add = [&](const SchemaJson& type) {
    if (std::find(out.begin(), out.end(), type) == out.end()) out.push_back(type);
  };
  const SchemaJson others = list_of_types(b);
  for (const SchemaJson& one : list_of_types(a)) {
    for (const SchemaJson& other : others) {
      if (one == other || (one == "integer" && other == "number")) add(one);
      if (one == "number" && other == "integer") add(other);
    }
  }
  return out;
}

size_t code_points(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](unsigned char c) { return (c & 0xC0) != 0x80; }));
}

// Whether a value fits one condition; nothing where that is not seen here.
std::optional<bool> fits_condition(const SchemaJson& value, const std::string& word, const SchemaJson& said) {
  if (word == "type") return is_of_any(value, said);
  for (const Typed& of : typed()) {
    if (is_among(of.keywords, word) && !is_of(value, of.type)) return true;
  }
  if (!said.is_number()) return std::nullopt;
  const double bound = said.get<double>();
  if (word == "minLength") return static_cast<double>(code_points(value.get_ref<const std::string&>())) >= bound;
  if (word == "maxLength") return static_cast<double>(code_points(value.get_ref<const std::string&>())) <= bound;
  if (word == "minimum") return value.get<double>() >= bound;
  if (word == "maximum") return value.get<double>() <= bound;
  if (word == "exclusiveMinimum") return value.get<double>() > bound;
  if (word == "exclusiveMaximum") return value.get<double>() < bound;
  return std::nullopt;
}

bool describes_nothing(const SchemaJson& schema, const char* word) {
  const SchemaJson* const found = found_in(schema, word);
  return !found || found->empty() || says_nothing(*found);
}

// Whether it has a union, a $ref or an allOf and anything beside it.
bool is_joined(const SchemaJson& schema) {
  if (!schema.is_object() || conditions_in(schema) < 2) return false;
  const auto words = schema.items();
  return std::any_of(words.begin(), words.end(), [](const auto& member) { return joins_schemas(member.key()); });
}

}  // namespace

Status SchemaMeet::spend(const SchemaJson& schema) {
  copied_ += values_in(schema);
  if (looked_.may(bytes_in(schema)) && copied_ <= kMostCopied) return {};
  return no_way("conditions beside anyOf, oneOf, allOf or $ref make it too large: write them into the schemas there");
}

Result<SchemaJson> SchemaMeet::target_of(const SchemaJson& ref, int depth) {
  const bool inside_it = ref.is_string() && ref.get_ref<const std::string&>().starts_with('#');
  const SchemaJson* const target = inside_it ? at_ref(root_, ref.get_ref<const std::string&>(), &looked_) : nullptr;
  if (!target) return no_way(fmt::format("$ref '{}' leads to nothing inside this schema", short_text(ref.dump())));
  return flat(*target, depth + 1);
}

// Whether a branch is of the types that alone stand beside it.
bool SchemaMeet::is_implied(const SchemaJson& beside, const SchemaJson& branch) const {
  if (says_nothing(beside)) return true;
  if (beside.size() != 1 || !beside.contains("type")) return false;
  const auto own = types_of(root_, branch, &looked_);
  const SchemaJson allowed = list_of_types(beside["type"]);
  const auto is_allowed = [&](const char* type) {
    return std::find(allowed.begin(), allowed.end(), SchemaJson(type)) != allowed.end();
  };
  return own && std::ranges::all_of(*own, [&](const std::string& type) {
           return is_allowed(type.c_str()) || (type == "integer" && is_allowed("number"));
         });
}

Result<SchemaJson> SchemaMeet::unions(SchemaJson out, const SchemaJson& schema, int depth) {
  for (const char* word : {"anyOf", "oneOf"}) {
    const SchemaJson* const branches = found_in(schema, word);
    if (!branches) continue;
    if (!branches->is_array() || branches->empty())
      return no_way(fmt::format("{} must be a list of schemas that is not empty", word));
    SchemaJson all = {{word, SchemaJson::array()}};
    for (const SchemaJson& branch : *branches) {
      if (is_never(branch)) continue;
      if (is_implied(out, branch)) {  // as it is: a $ref stays one
        KVILT_TRY(spend(branch));
        all[word].push_back(branch);
        continue;
      }
      KVILT_ASSIGN(SchemaJson inner, flat(branch, depth + 1));
      KVILT_ASSIGN(SchemaJson one, both(out, inner, depth));
      if (one != false) all[word].push_back(std::move(one));
    }
    if (all[word].empty()) return SchemaJson(false);
    if (all[word].size() == 1) {
      out = SchemaJson(all[word][0]);
      if (is_joined(out)) {  // as it was: with conditions beside a union of its own
        KVILT_ASSIGN(out, flat(out, depth + 1));
      }
    } else {
      out = std::move(all);
    }
  }
  return out;
}

Result<SchemaJson> SchemaMeet::flat(const SchemaJson& schema, int depth) {
  if (is_never(schema)) return SchemaJson(false);
  if (schema == true) return schema;
  if (!schema.is_object()) return no_way("a schema must be an object or a boolean");
  if (depth > kMostSchemaLevels)
    return no_way("schemas in each other's anyOf, allOf or $ref are too deep, or a circle");
  for (const char* word : {"unevaluatedProperties", "unevaluatedItems"}) {
    const SchemaJson* const said = found_in(schema, word);  // it is of this schema, not of what it is joined with
    if (depth > 0 && said && !says_nothing(*said))
      return no_way(fmt::format("'{}' in a schema of anyOf, oneOf, allOf or behind a $ref is not supported", word));
  }
  SchemaJson out = SchemaJson::object();
  for (const auto& [word, value] : schema.items()) {
    if (is_schema_condition(word) && !joins_schemas(word)) out[word] = value;
  }
  KVILT_TRY(spend(out));
  if (out.contains("enum") || out.contains("const")) {
    KVILT_ASSIGN(out, values(SchemaJson::object(), out, SchemaJson::object()));
  }
  if (const SchemaJson* const ref = found_in(schema, "$ref")) {
    KVILT_ASSIGN(const SchemaJson target, target_of(*ref, depth));
    KVILT_ASSIGN(out, both(out, target, depth));
  }
  if (const SchemaJson* const all = found_in(schema, "allOf")) {
    if (!all->is_array() || all->empty()) return no_way("allOf must be a list of schemas that is not empty");
    for (const SchemaJson& one : *all) {
      if (says_nothing(one)) continue;
      KVILT_ASSIGN(const SchemaJson inner, flat(one, depth + 1));
      KVILT_ASSIGN(out, both(out, inner, depth));
    }
  }
  return unions(std::move(out), schema, depth);
}

Result<SchemaJson> SchemaMeet::spread(const SchemaJson& schema, const char* word, const SchemaJson& beside, int depth) {
  SchemaJson all = {{word, SchemaJson::array()}};
  for (const SchemaJson& branch : schema[word]) {
    KVILT_ASSIGN(const SchemaJson inner, flat(branch, depth + 1));
    KVILT_ASSIGN(SchemaJson one, both(beside, inner, depth));
    if (one != false) all[word].push_back(std::move(one));
  }
  if (all[word].empty()) return SchemaJson(false);
  return all[word].size() == 1 ? all[word][0] : all;
}

Result<SchemaJson> SchemaMeet::both(const SchemaJson& outer, const SchemaJson& inner, int depth) {
  if (depth > kMostSchemaLevels)
    return no_way("schemas in each other's anyOf, allOf or $ref are too deep, or a circle");
  if (outer == false || inner == false) return SchemaJson(false);
  if (says_nothing(inner) || says_nothing(outer)) {
    const SchemaJson& one = says_nothing(inner) ? outer : inner;
    KVILT_TRY(spend(one));
    return one;
  }
  for (const char* word : {"anyOf", "oneOf"}) {
    if (inner.contains(word)) return spread(inner, word, outer, depth + 1);
    if (outer.contains(word)) return spread(outer, word, inner, depth + 1);
  }
  if (outer.contains("$ref") || inner.contains("$ref")) {
    KVILT_ASSIGN(const SchemaJson a, flat(outer, depth + 1));
    KVILT_ASSIGN(const SchemaJson b, flat(inner, depth + 1));
    return both(a, b, depth + 1);
  }
  return plain(outer, inner, depth + 1);
}

// A list of values, of which those stay that fit the rest.
Result<SchemaJson> SchemaMeet::values(SchemaJson out, const SchemaJson& outer, const SchemaJson& inner) const {
  std::optional<std::vector<SchemaJson>> all;
  for (const SchemaJson* schema : {&outer, &inner}) {
    for (const char* word : {"const", "enum"}) {
      const SchemaJson* const said = found_in(*schema, word);
      if (!said) continue;
      if (std::string_view(word) == "enum" && !said->is_array()) return no_way("enum must be a list");
      const SchemaJson some = std::string_view(word) == "enum" ? *said : SchemaJson::array({*said});
      if (!all) {
        all.emplace(some.begin(), some.end());
      } else {
        if (all->size() * some.size() > kMostPairs) return no_way("two lists of so many values are not compared");
        std::erase_if(*all, [&](const SchemaJson& v) { return std::find(some.begin(), some.end(), v) == some.end(); });
      }
    }
  }
  SchemaJson fitting = SchemaJson::array();
  for (const SchemaJson& value : *all) {
    bool fits = true;
    for (const SchemaJson* schema : {&outer, &inner}) {
      for (const auto& [word, said] : schema->items()) {
        if (word == "const" || word == "enum" || word == "format") continue;
        const auto one = fits_condition(value, word, said);
        if (!one) return no_way(fmt::format("'{}' beside a list of values is not supported: leave it out", word));
        fits = fits && *one;
      }
    }
    if (fits) fitting.push_back(value);
  }
  if (fitting.empty()) return SchemaJson(false);
  out["enum"] = std::move(fitting);
  return out;
}

// Schemas that both hold under one keyword.
Status SchemaMeet::inside(SchemaJson& out, const char* word, const SchemaJson& outer, const SchemaJson& inner,
                          int depth) {
  const SchemaJson *a = found_in(outer, word), *b = found_in(inner, word);
  if (!a && !b) return {};
  if (!a || !b) {
    out[word] = a ? *a : *b;
    return {};
  }
  if (*a == *b) {
    out[word] = *a;
    return {};
  }
  KVILT_ASSIGN(const SchemaJson first, flat(*a, depth + 1));
  KVILT_ASSIGN(const SchemaJson second, flat(*b, depth + 1));
  KVILT_ASSIGN(out[word], both(first, second, depth + 1));
  return {};
}

// A property that one of them does not name is what its additionalProperties says.
Status SchemaMeet::objects(SchemaJson& out, const SchemaJson& outer, const SchemaJson& inner, int depth) {
  if (const SchemaJson* const said = found_in(outer, "unevaluatedProperties")) out["unevaluatedProperties"] = *said;
  for (const auto& [one, other] : {std::pair(&outer, &inner), std::pair(&inner, &outer)}) {
    const bool rest = other->contains("properties") || other->contains("additionalProperties");
    if (!describes_nothing(*one, "patternProperties") && rest)
      return no_way("'patternProperties' beside other properties is not supported");
  }
  SchemaJson properties = SchemaJson::object();
  const auto said = [&](const SchemaJson& schema, const std::string& key) -> const SchemaJson* {
    const SchemaJson* const own = found_in(schema, "properties");
    if (own && own->contains(key)) return &(*own)[key];
    return found_in(schema, "additionalProperties");
  };
  for (const SchemaJson* schema : {&outer, &inner}) {
    const SchemaJson* const own = found_in(*schema, "properties");
    if (own && !own->is_object()) return no_way("properties must be an object");
    if (!own) continue;
    for (const auto& [key, unused] : own->items()) {
      if (properties.contains(key)) continue;
      const SchemaJson *a = said(outer, key), *b = said(inner, key);
      SchemaJson pair_a = SchemaJson::object(), pair_b = SchemaJson::object(), one = SchemaJson::object();
      if (a) pair_a["it"] = *a;
      if (b) pair_b["it"] = *b;
      KVILT_TRY(inside(one, "it", pair_a, pair_b, depth));
      properties[key] = std::move(one["it"]);
    }
  }
  if (outer.contains("properties") || inner.contains("properties")) out["properties"] = std::move(properties);
  SchemaJson required = SchemaJson::array();
  for (const SchemaJson* schema : {&outer, &inner}) {
    const SchemaJson* const own = found_in(*schema, "required");
    if (own && !own->is_array()) return no_way("required must be a list");
    if (!own) continue;
    for (const SchemaJson& name : *own) {
      if (std::find(required.begin(), required.end(), name) == required.end()) required.push_back(name);
    }
  }
  if (!required.empty()) out["required"] = std::move(required);
  for (const char* word : {"additionalProperties", "propertyNames"}) KVILT_TRY(inside(out, word, outer, inner, depth));
  const SchemaJson *patterns = found_in(outer, "patternProperties"), *others = found_in(inner, "patternProperties");
  if (patterns && others && *patterns != *others) return no_way("'patternProperties' twice is not supported");
  if (patterns || others) out["patternProperties"] = patterns ? *patterns : *others;
  return {};
}

Status SchemaMeet::lists(SchemaJson& out, const SchemaJson& outer, const SchemaJson& inner, int depth) {
  if (const SchemaJson* const said = found_in(outer, "unevaluatedItems")) out["unevaluatedItems"] = *said;
  const auto describes = [](const SchemaJson& schema) {
    return schema.contains("items") || schema.contains("prefixItems");
  };
  if (describes(outer) && describes(inner) && (outer.contains("prefixItems") || inner.contains("prefixItems")))
    return no_way("'prefixItems' beside other items is not supported: write them as one");
  if (outer.contains("prefixItems")) out["prefixItems"] = outer["prefixItems"];
  if (inner.contains("prefixItems")) out["prefixItems"] = inner["prefixItems"];
  return inside(out, "items", outer, inner, depth);
}

Result<SchemaJson> SchemaMeet::plain(const SchemaJson& outer, const SchemaJson& inner, int depth) {
  SchemaJson out = SchemaJson::object();
  const SchemaJson *type = found_in(outer, "type"), *other_type = found_in(inner, "type");
  if (type && other_type) {
    SchemaJson shared = shared_types(*type, *other_type);
    if (shared.empty()) return SchemaJson(false);
    out["type"] = shared.size() == 1 ? shared[0] : shared;
  } else if (type || other_type) {
    out["type"] = type ? *type : *other_type;
  }
  const bool listed =
      outer.contains("enum") || outer.contains("const") || inner.contains("enum") || inner.contains("const");
  if (listed) return values(SchemaJson::object(), outer, inner);
  for (const SchemaJson* schema : {&outer, &inner}) {
    for (const auto& [word, value] : schema->items()) {
      if (is_among(kOwnRule, word)) continue;
      const auto there = out.find(word);
      if (there == out.end()) {
        out[word] = value;
      } else if (is_among(kLarger, word) && there->is_number() && value.is_number()) {
        if (*there < value) *there = value;
      } else if (is_among(kSmaller, word) && there->is_number() && value.is_number()) {
        if (value < *there) *there = value;
      } else if (*there != value) {
        return no_way(fmt::format("two conditions '{}' of one value are not supported: write them as one", word));
      }
    }
  }
  const SchemaJson *unique = found_in(outer, "uniqueItems"), *inner_unique = found_in(inner, "uniqueItems");
  if (unique || inner_unique)
    out["uniqueItems"] = (unique && *unique == true) || (inner_unique && *inner_unique == true);
  for (const SchemaJson* schema : {&outer, &inner}) {
    if (const SchemaJson* const no = found_in(*schema, "not")) {
      if (out.contains("not") && out["not"] != *no) return no_way("'not' is not supported");
      out["not"] = *no;
    }
  }
  KVILT_TRY(objects(out, outer, inner, depth));
  KVILT_TRY(lists(out, outer, inner, depth));
  KVILT_TRY(spend(out));
  if (out.contains("required") && out.contains("properties")) {
    for (const SchemaJson& name : out["required"]) {
      if (!name.is_string()) continue;
      const SchemaJson* const one = found_in(out["properties"], name.get_ref<const std::string&>().c_str());
      if (one && is_never(*one)) return SchemaJson(false);
    }
  }
  return out;
}

}  // namespace kvilt
