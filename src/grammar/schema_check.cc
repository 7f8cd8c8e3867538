#include "grammar/schema_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_member.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

// In the order in which one of them rules.
constexpr std::array kRuling = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

// Keywords that say something of values of one type.
struct Typed {
  const char* type;
  std::vector<const char*> keywords;
};
const std::array<Typed, 4>& typed() {
  static const std::array<Typed, 4> kAll = {{
      {"string", {"minLength", "maxLength", "pattern"}},
      {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
      {"array", {"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"}},
      {"object",
       {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "unevaluatedProperties"}},
  }};
  return kAll;
}

// What nothing here can hold an answer to.
constexpr std::array kRefused = {"not",
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

// What says nothing of an answer, and may stand beside anything.
constexpr std::array kAnnotations = {"title",    "description", "default",  "examples", "deprecated",
                                     "readOnly", "writeOnly",   "$comment", "$schema"};

// Formats of which no text is empty.
constexpr std::array kNeverEmpty = {"email",
                                    "date",
                                    "time",
                                    "date-time",
                                    "duration",
                                    "ipv4",
                                    "ipv6",
                                    "hostname",
                                    "uuid",
                                    "uri",
                                    "relative-json-pointer"};

// Keywords that hold schemas: by name, in a list, one.
constexpr std::array kNamed = {"properties", "patternProperties", "$defs", "definitions"};
constexpr std::array kListed = {"anyOf", "oneOf", "allOf", "prefixItems"};
constexpr std::array kInside = {"items", "additionalProperties", "propertyNames", "unevaluatedItems",
                                "unevaluatedProperties"};

// And those that hold values.
constexpr std::array kValues = {"const", "enum", "default", "examples"};

constexpr size_t kMostElsewhere = 64;

// To see whether schemas of a oneOf exclude each other: properties that are tried, and what is looked at in all of the
// schema: names, bytes of values, and so much for each value. That is some 0.1 s.
constexpr size_t kMostTags = 8;
constexpr size_t kMostLooked = 10'000'000;
constexpr size_t kLookedAValue = 32;

std::string short_text(const std::string& text) { return text.size() <= 64 ? text : text.substr(0, 64) + "..."; }

bool is_of(const Json& value, std::string_view type) {
  if (type == "string") return value.is_string();
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "number") return value.is_number();
  return type == "integer" && (value.is_number_integer() ||
                               (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>()));
}

bool is_of_any(const Json& value, const Json& types) {
  if (types.is_string()) return is_of(value, types.get_ref<const std::string&>());
  return std::any_of(types.begin(), types.end(), [&](const Json& one) {
    return one.is_string() && is_of(value, one.get_ref<const std::string&>());
  });
}

bool needs_type(const Json& schema) {
  return !schema.contains("type") &&
         std::ranges::none_of(kRuling, [&](const char* word) { return schema.contains(word); });
}

// What a $ref leads to; null: nothing. T: Json, const or not. looked: grows by the names that are looked at.
template <class T>
T* at_ref(T& root, std::string_view ref, size_t& looked) {
  T* at = &root;
  for (ref.remove_prefix(std::min<size_t>(ref.size(), 1)); !ref.empty();) {  // the #
    ref.remove_prefix(1);                                                    // and a slash before each name
    const std::string name(ref.substr(0, ref.find('/')));
    ref.remove_prefix(name.size());
    looked += at->size();
    const auto found = at->find(name);
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return at;
}

// Where a $ref leads, by the keywords on its way. kElsewhere: no keyword that is known holds a schema there.
enum class Leads { kToSchema, kToNames, kIntoValue, kIntoList, kElsewhere };
Leads where_leads(std::string_view ref) {
  const auto is_in = [](const auto& words, std::string_view name) {
    return std::ranges::any_of(words, [&](const char* word) { return word == name; });
  };
  bool known = true, names = false;  // names: what follows is the name of a schema, whatever it is
  for (ref.remove_prefix(1); !ref.empty();) {
    const std::string_view name = ref.substr(1, ref.find('/', 1) - 1);
    ref.remove_prefix(name.size() + 1);
    if (!names && is_in(kValues, name)) return Leads::kIntoValue;
    if (!names && is_in(kListed, name)) return Leads::kIntoList;
    known = known && (names || is_in(kNamed, name) || is_in(kInside, name));
    names = !names && is_in(kNamed, name);
  }
  if (names) return Leads::kToNames;
  return known ? Leads::kToSchema : Leads::kElsewhere;
}

class SchemaWalk {
 public:
  explicit SchemaWalk(const Json& root) : root_(root) {}
  Status schema(Json& schema, const std::string& path, int level);
  // Those that only a $ref leads to (#/components/schemas/a). root: the same as before.
  Status elsewhere(Json& root);

 private:
  static Status bad(const std::string& path, const std::string& what) {
    return error(Code::kInvalidArgument, "schema{}: {}", path.empty() ? "" : " at " + short_text(path), what);
  }
  Status one_ruling(Json& schema, const std::string& path);
  Status each(Json& schema, const char* keyword, const std::string& path, int level);
  Status inside(Json& schema, const char* keyword, const std::string& path, int level);
  Status ref(const Json& ref, const std::string& path);
  static Status required(const Json& schema, const std::string& path);
  static Status types(const Json& schema, const std::string& path);
  static Status keys(const Json& schema, const std::string& path);
  static void open_up(Json& schema);
  static void drop_least_length(Json& schema);
  bool may_look_at(size_t much) { return (looked_ += much) <= kMostLooked; }
  const Json* resolved(const Json& schema);
  std::optional<std::vector<std::string>> tags(const Json& object, const Json& key);
  bool differ_at(const std::vector<const Json*>& objects, const Json& key);
  bool exclude_each_other(const Json& branches);
  Status one_of(Json& schema, const std::string& path);

  const Json& root_;                    // what a $ref begins at
  std::vector<std::string> elsewhere_;  // $refs to places that no keyword leads to
  size_t looked_ = 0;                   // what was looked at in unions
};

// `type` beside const and enum is a second condition: it is met here or not at all.
Status SchemaWalk::one_ruling(Json& schema, const std::string& path) {
  const auto ruling = std::ranges::find_if(kRuling, [&](const char* word) { return schema.contains(word); });
  if (ruling == kRuling.end()) return {};
  const std::string_view word = *ruling;
  if (schema.contains("type") && (word == "const" || word == "enum")) {
    const Json& type = schema["type"];
    if (!type.is_string() && !type.is_array()) return bad(path, "type must be a string or a list of them");
    if (word == "const" && !is_of_any(schema["const"], type)) return bad(path, "no value can be const and of its type");
    if (word == "enum" && schema["enum"].is_array()) {
      Json fitting = Json::array();
      for (const Json& value : schema["enum"]) {
        if (is_of_any(value, type)) fitting.push_back(value);
      }
      if (fitting.empty()) return bad(path, "no value of enum is of the type");
      schema["enum"] = std::move(fitting);
    }
    schema.erase("type");
  }
  const auto beside = [&](const char* other) { return schema.contains(other) && other != word; };
  for (const char* other : kRuling) {
    if (beside(other)) return bad(path, fmt::format("'{}' beside '{}' is not supported", other, word));
  }
  if (beside("type")) return bad(path, fmt::format("'type' beside '{}' is not supported: put it inside", word));
  for (const Typed& of : typed()) {
    for (const char* other : of.keywords) {
      if (beside(other)) return bad(path, fmt::format("'{}' beside '{}' is not supported: put it inside", other, word));
    }
  }
  if (word == "allOf" && schema["allOf"].is_array() && schema["allOf"].size() > 1)
    return bad(path, "'allOf' of several schemas is not supported: write them as one");
  return {};
}

// Properties that must be there are described; xgrammar would leave out others.
Status SchemaWalk::required(const Json& schema, const std::string& path) {
  const auto list = schema.find("required");
  if (list == schema.end()) return {};
  if (!list->is_array()) return bad(path, "required must be a list");
  const auto properties = schema.find("properties");
  for (const Json& name : *list) {
    if (!name.is_string()) return bad(path, "required must be a list of strings");
    if (properties == schema.end() || !properties->is_object() ||
        !properties->contains(name.get_ref<const std::string&>()))
      return bad(path, fmt::format("'{}' is required and not among the properties", short_text(name)));
  }
  return {};
}

// A keyword of one type binds only where that type is named: of a schema without one xgrammar makes any value.
Status SchemaWalk::types(const Json& schema, const std::string& path) {
  if (schema.contains("type")) return {};
  const bool object = schema.contains("properties") || schema.contains("additionalProperties");
  const bool list = schema.contains("items") || schema.contains("prefixItems");
  for (const Typed& of : typed()) {
    if ((object && std::string_view(of.type) == "object") || (list && std::string_view(of.type) == "array")) continue;
    for (const char* word : of.keywords) {
      if (schema.contains(word)) return bad(path, fmt::format("'{}' needs \"type\": \"{}\" beside it", word, of.type));
    }
  }
  return {};
}

// What xgrammar does not hold keys to: of those that no property names it knows neither which are properties, nor which
// were written before.
Status SchemaWalk::keys(const Json& schema, const std::string& path) {
  const auto properties = schema.find("properties");
  const bool named = properties != schema.end() && !properties->empty();
  for (const char* word : {"patternProperties", "propertyNames"}) {
    const auto found = schema.find(word);
    const bool says = found != schema.end() && !found->empty() && *found != true;
    if (named && says) return bad(path, fmt::format("'{}' beside 'properties' is not supported", word));
  }
  const auto least = schema.find("minProperties");
  if (least == schema.end() || !least->is_number()) return {};
  const auto allows = [&](const char* word) { return schema.contains(word) && schema[word] != false; };
  const bool others = !named || allows("additionalProperties") || allows("unevaluatedProperties");
  const auto required = schema.find("required");
  const size_t distinct = (required == schema.end() ? 0 : required->size()) + 1;
  if (others && least->get<double>() > static_cast<double>(distinct)) {
    return bad(path, fmt::format("'minProperties' of more than {} is not supported where keys are free: an answer may "
                                 "write one of them twice",
                                 distinct));
  }
  return {};
}

// xgrammar takes an object or list of which nothing is said for an empty one.
void SchemaWalk::open_up(Json& schema) {
  const auto found = schema.find("type");
  if (found == schema.end()) return;
  const Json type = *found;  // a copy: an insertion below moves what is in the object
  const auto says = [&](const char* word) {
    return type == word || (type.is_array() && std::find(type.begin(), type.end(), Json(word)) != type.end());
  };
  const auto none_of = [&](std::initializer_list<const char*> words) {
    return std::ranges::none_of(words, [&](const char* word) { return schema.contains(word); });
  };
  if (says("object") && none_of({"properties", "additionalProperties", "patternProperties", "unevaluatedProperties"}))
    schema["additionalProperties"] = true;
  if (says("array") && none_of({"items", "prefixItems", "unevaluatedItems"})) schema["items"] = true;
}

// xgrammar takes no lengths beside a format. One says nothing where no text of the format is empty.
void SchemaWalk::drop_least_length(Json& schema) {
  const auto format = schema.find("format"), least = schema.find("minLength");
  if (format == schema.end() || least == schema.end() || schema.contains("pattern")) return;
  const bool never_empty = std::ranges::any_of(kNeverEmpty, [&](const char* name) { return *format == name; });
  if (*least == 0 || (*least == 1 && never_empty)) schema.erase("minLength");
}

// The schema that a $ref leads to, through others; null: none, in a circle, or too much was looked at.
const Json* SchemaWalk::resolved(const Json& schema) {
  const Json* at = &schema;
  for (int step = 0; step < kMostSchemaLevels && may_look_at(1); ++step) {
    if (!at->is_object()) return nullptr;
    const auto ref = at->find("$ref");
    if (ref == at->end()) return at;
    at = ref->is_string() ? at_ref(root_, ref->get_ref<const std::string&>(), looked_) : nullptr;
    if (!at) return nullptr;
  }
  return nullptr;
}

// The values among which an object must have one at `key`, as JSON, each once; nothing where that is not so. Fractions
// are left out: 1.0 is 1.
std::optional<std::vector<std::string>> SchemaWalk::tags(const Json& object, const Json& key) {
  if (object.value("type", Json()) != "object") return std::nullopt;
  const Json *required = given(object, "required"), *properties = given(object, "properties");
  if (!required || !required->is_array() || !properties || !may_look_at(required->size() + properties->size()))
    return std::nullopt;
  if (std::find(required->begin(), required->end(), key) == required->end()) return std::nullopt;
  const auto described = properties->find(key.get_ref<const std::string&>());
  const Json* const property = described == properties->end() ? nullptr : resolved(*described);
  if (!property) return std::nullopt;
  std::vector<std::string> out;
  const auto add = [&](const Json& value) {
    if (!value.is_string() && !value.is_number_integer() && !value.is_boolean()) return false;
    out.push_back(value.dump(-1, ' ', false, Json::error_handler_t::replace));
    return may_look_at(out.back().size() + kLookedAValue);
  };
  const auto one = property->find("const"), some = property->find("enum");
  const bool listed = one != property->end()
                          ? add(*one)
                          : some != property->end() && some->is_array() && std::all_of(some->begin(), some->end(), add);
  if (!listed) return std::nullopt;
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// Whether they all require the property, and each with other values.
bool SchemaWalk::differ_at(const std::vector<const Json*>& objects, const Json& key) {
  std::set<std::string> seen;
  return std::ranges::all_of(objects, [&](const Json* object) {
    const auto own = tags(*object, key);
    return own && std::ranges::all_of(*own, [&](const std::string& tag) { return seen.insert(tag).second; });
  });
}

// Whether a value can fit one of them at most: a property that all of them require has other values in each.
bool SchemaWalk::exclude_each_other(const Json& branches) {
  std::vector<const Json*> objects;
  for (const Json& branch : branches) {
    objects.push_back(resolved(branch));
    if (!objects.back()) return false;
  }
  if (objects.size() < 2) return !objects.empty();
  const Json* required = given(*objects[0], "required");
  if (!required || !required->is_array()) return false;
  size_t tried = 0;
  for (const Json& key : *required) {
    if (!key.is_string() || !tags(*objects[0], key)) continue;
    if (differ_at(objects, key)) return true;
    if (++tried == kMostTags) break;
  }
  return false;
}

// xgrammar does not follow a $ref to see that schemas exclude each other, be it a schema or a property's. Where they do,
// one of them is any of them; where no schema is a $ref, xgrammar may still see it otherwise.
Status SchemaWalk::one_of(Json& schema, const std::string& path) {
  const auto found = schema.find("oneOf");
  if (found == schema.end() || !found->is_array()) return {};
  const auto refers = [](const Json& branch) { return branch.is_object() && branch.contains("$ref"); };
  const bool exclusive = exclude_each_other(*found);
  if (!exclusive && std::none_of(found->begin(), found->end(), refers)) return {};
  if (!exclusive && looked_ > kMostLooked) {
    return bad(path,
               "the schemas of 'oneOf's have too many properties and values to see that they exclude each other. Is "
               "'anyOf' meant?");
  }
  if (!exclusive) {
    return bad(path,
               "'oneOf' is supported only of schemas that are seen to exclude each other: objects that all require one "
               "property, with other values of const or enum in each. Is 'anyOf' meant?");
  }
  Json branches = std::move(*found);
  schema.erase("oneOf");
  schema["anyOf"] = std::move(branches);
  return {};
}

// Schemas in a list, or by name in an object.
Status SchemaWalk::each(Json& schema, const char* keyword, const std::string& path, int level) {
  const auto found = schema.find(keyword);
  if (found == schema.end()) return {};
  if (!found->is_array() && !found->is_object()) return bad(path, fmt::format("{} must hold schemas", keyword));
  size_t i = 0;
  for (auto it = found->begin(); it != found->end(); ++it, ++i) {
    const std::string name = found->is_array() ? std::to_string(i) : it.key();
    KVILT_TRY(this->schema(*it, fmt::format("{}/{}/{}", path, keyword, name), level + 2));
  }
  return {};
}

Status SchemaWalk::inside(Json& schema, const char* keyword, const std::string& path, int level) {
  const auto found = schema.find(keyword);
  if (found == schema.end() || found->is_boolean()) return {};
  return this->schema(*found, fmt::format("{}/{}", path, keyword), level + 1);
}

Status SchemaWalk::ref(const Json& ref, const std::string& path) {
  if (!ref.is_string()) return bad(path, "$ref must be a string");
  const auto& where = ref.get_ref<const std::string&>();
  if (where != "#" && !where.starts_with("#/"))
    return bad(path, fmt::format("$ref '{}' is not inside this schema", short_text(where)));
  if (where.find_first_of("~%") != std::string::npos)
    return bad(path, "$ref with escapes (~, %) is not supported: give the definition a plain name");
  if (where.ends_with('/') || where.find("//") != std::string::npos)  // xgrammar leaves empty names out
    return bad(path, fmt::format("$ref '{}' has an empty name", short_text(where)));
  const auto led = [&](const char* to) {
    return bad(path, fmt::format("$ref '{}' leads {}: put the schema into $defs", short_text(where), to));
  };
  const Leads leads = where_leads(where);
  if (leads == Leads::kToNames) return led("to schemas by name, and not to one of them");
  if (leads == Leads::kIntoValue) return led("to what a keyword holds as a value");
  if (leads == Leads::kIntoList) return led("into a list, which is not supported");
  if (leads == Leads::kToSchema || std::ranges::find(elsewhere_, where) != elsewhere_.end()) return {};
  if (elsewhere_.size() == kMostElsewhere)
    return bad(path, fmt::format("more than {} $refs lead elsewhere than to $defs", kMostElsewhere));
  elsewhere_.push_back(where);
  return {};
}

Status SchemaWalk::elsewhere(Json& root) {
  for (size_t i = 0; i < elsewhere_.size(); ++i) {  // one may name others
    const std::string where = elsewhere_[i];
    Json* const target = at_ref(root, where, looked_);
    if (!target) return bad("", fmt::format("$ref '{}' leads to nothing", short_text(where)));
    KVILT_TRY(schema(*target, where.substr(1), 1));
  }
  return {};
}

Status SchemaWalk::schema(Json& schema, const std::string& path, int level) {
  if (level > kMostSchemaLevels) return bad(path, fmt::format("is deeper than {} levels", kMostSchemaLevels));
  if (schema.is_boolean()) return {};
  if (!schema.is_object()) return bad(path, fmt::format("must be an object or a boolean, not {}", schema.type_name()));
  for (const char* word : kAnnotations) schema.erase(word);  // equal schemas are one to xgrammar, whatever their title
  for (const std::string_view word : kRefused) {
    const auto found = schema.find(word);
    const bool says_nothing = (word == "not" || word == "uniqueItems") && found != schema.end() && *found == false;
    if (found != schema.end() && !says_nothing) return bad(path, fmt::format("'{}' is not supported", word));
  }
  if (const auto found = schema.find("$ref"); found != schema.end()) KVILT_TRY(ref(*found, path));
  KVILT_TRY(one_ruling(schema, path));
  KVILT_TRY(required(schema, path));
  KVILT_TRY(types(schema, path));
  KVILT_TRY(keys(schema, path));
  drop_least_length(schema);
  open_up(schema);
  for (const char* word : kNamed) KVILT_TRY(each(schema, word, path, level));
  for (const char* word : kListed) KVILT_TRY(each(schema, word, path, level));
  // A name is a string, whether or not its schema says so.
  if (const auto names = schema.find("propertyNames");
      names != schema.end() && names->is_object() && needs_type(*names))
    (*names)["type"] = "string";
  for (const char* word : kInside) KVILT_TRY(inside(schema, word, path, level));
  return one_of(schema, path);
}

}  // namespace

Status settle_schema(nlohmann::ordered_json& schema) {
  SchemaWalk walk(schema);
  KVILT_TRY(walk.schema(schema, "", 1));
  return walk.elsewhere(schema);
}

}  // namespace kvilt
