#include "grammar/schema_check.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/schema_keys.h"
#include "grammar/schema_meet.h"
#include "grammar/schema_number.h"
#include "grammar/schema_refs.h"
#include "grammar/schema_string.h"
#include "grammar/schema_union.h"
#include "grammar/schema_words.h"

namespace kvilt {
namespace {

using Json = SchemaJson;

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

constexpr size_t kMostElsewhere = 64;
constexpr size_t kMostUnique = 5, kMostOrders = 120;  // of so many values all orders are written

bool needs_type(const Json& schema) {
  return !schema.contains("type") &&
         std::ranges::none_of(kRuling, [&](const char* word) { return schema.contains(word); });
}

// Whether a schema is of types or values alone.
bool is_bare(const Json& schema) {
  if (!schema.is_object()) return false;
  for (const auto& [word, unused] : schema.items()) {
    if (word != "type" && word != "const" && word != "enum") return false;
  }
  return true;
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
  explicit SchemaWalk(Json& root) : root_(root), meet_(root, looked_) {}
  Status schema(Json& schema, const std::string& path, int level);
  // Those that only a $ref leads to (#/components/schemas/a).
  Status elsewhere();
  Status require_tags();

 private:
  static Status bad(const std::string& path, const std::string& what) {
    return error(Code::kInvalidArgument, "schema{}: {}", path.empty() ? "" : " at " + short_text(path), what);
  }
  static void older_drafts(Json& schema);
  static Status never(Json& schema, const std::string& path);
  Status meet(Json& schema, const std::string& path);
  Status unique_items(Json& schema, const std::string& path);
  static Status refused(const Json& schema, const std::string& path);
  static Status one_ruling(Json& schema, const std::string& path);
  static Status multiples(Json& schema, const std::string& path);
  static Status lengths(Json& schema, const std::string& path);
  static Status bounds(Json& schema, const std::string& path);
  static Status at(const std::string& path, const Status& status) {
    return status.ok() ? status : bad(path, status.error().message);
  }
  static Status too_much(const std::string& path) { return bad(path, kTooManyKeys); }
  Status each(Json& schema, const char* keyword, const std::string& path, int level);
  Status inside(Json& schema, const char* keyword, const std::string& path, int level);
  Status ref(const Json& ref, const std::string& path);
  Status required(Json& schema, const std::string& path);
  static Status types(const Json& schema, const std::string& path);
  static void open_up(Json& schema);
  static void drop_least_length(Json& schema);
  Status one_of(Json& schema, const std::string& path);

  Json& root_;  // what a $ref begins at
  Looked looked_;
  SchemaMeet meet_;
  std::vector<std::string> elsewhere_;                        // $refs to places that no keyword leads to
  std::vector<std::pair<RequiredLater, std::string>> later_;  // and the path of the oneOf that wants it
};

// What drafts before 2020-12 wrote otherwise: a list of items is now prefixItems.
void SchemaWalk::older_drafts(Json& schema) {
  const auto items = schema.find("items");
  const bool tuple = items != schema.end() && items->is_array() && !schema.contains("prefixItems");
  if (tuple) {
    Json prefix = std::move(*items);
    schema.erase("items");
    if (prefix.empty()) {
      schema["items"] = schema.value("additionalItems", Json(true));
    } else {
      schema["prefixItems"] = std::move(prefix);
      if (schema.contains("additionalItems")) schema["items"] = Json(schema["additionalItems"]);
    }
  }
  schema.erase("additionalItems");  // says nothing beside one schema for all
  if (const auto prefix = schema.find("prefixItems"); prefix != schema.end() && prefix->is_array()) {
    for (Json& item : *prefix) {
      if (item == true) item = Json::object();  // xgrammar's word for it
    }
  }
}

// Properties that may not be there, and other schemas that no value fits.
Status SchemaWalk::never(Json& schema, const std::string& path) {
  for (const char* word : kInside) {
    if (const auto found = schema.find(word); found != schema.end() && is_never(*found)) *found = false;
  }
  const auto properties = schema.find("properties");
  if (properties == schema.end() || !properties->is_object()) return {};
  const auto required = schema.find("required");
  std::vector<std::string> gone;
  for (const auto& [key, one] : properties->items()) {
    if (!is_never(one)) continue;
    if (required != schema.end() && std::find(required->begin(), required->end(), Json(key)) != required->end())
      return bad(path, fmt::format("'{}' is required, and no value fits it", short_text(key)));
    gone.push_back(key);
  }
  if (gone.empty()) return {};
  for (const char* word : {"additionalProperties", "patternProperties", "unevaluatedProperties"}) {
    if (const auto others = schema.find(word); others != schema.end() && *others != false)
      return bad(path,
                 fmt::format("'{}' may not be there: that is not supported beside '{}'", short_text(gone[0]), word));
  }
  for (const std::string& key : gone) properties->erase(key);
  schema["additionalProperties"] = false;
  return {};
}

// What stands beside a ruling keyword goes into its schemas.
Status SchemaWalk::meet(Json& schema, const std::string& path) {
  size_t conditions = 0;
  bool joins = false, unions = false;
  Json beside = Json::object();
  for (const auto& [word, value] : schema.items()) {
    if (!is_schema_condition(word)) continue;
    ++conditions;
    const bool joined = joins_schemas(word);
    joins = joins || joined || word == "const" || word == "enum";
    if (!joined) beside[word] = value;
    const bool several = word == "allOf" && value.is_array() && value.size() != 1;
    const bool list = (word == "anyOf" || word == "oneOf") && value.is_array();
    unions = unions || several || (list && (value.empty() || std::any_of(value.begin(), value.end(), is_never)));
  }
  if (!joins || (conditions < 2 && !unions)) return {};
  if (conditions == 2 && schema.contains("type") && (schema.contains("const") || schema.contains("enum"))) return {};
  if (conditions == 2 && schema.contains("type") && schema.contains("$ref") && meet_.is_implied(beside, schema)) {
    schema.erase("type");
    return {};
  }
  auto met = meet_.flat(schema);
  if (!met.ok()) return bad(path, met.error().message);
  if (*met == false) return bad(path, "no value fits all that it says");
  Json out = met->is_object() ? std::move(*met) : Json::object();
  for (auto& [word, value] : schema.items()) {
    if (!is_schema_condition(word)) out[word] = std::move(value);
  }
  schema = std::move(out);
  return {};
}

// Lists of different values, where these are few: each order of them.
Status SchemaWalk::unique_items(Json& schema, const std::string& path) {
  const auto unique = schema.find("uniqueItems"), type = schema.find("type"), most = schema.find("maxItems");
  if (unique == schema.end() || *unique != true) return {};
  const bool lists = type == schema.end() || is_of_any(Json::array(), *type);
  if (!lists || (most != schema.end() && most->is_number() && *most <= 1)) {
    schema.erase("uniqueItems");
    return {};
  }
  const auto items = schema.find("items");
  if (type == schema.end() || items == schema.end()) return {};
  for (const auto& [word, unused] : schema.items()) {  // what else is said would have to be said of each order
    const bool written = word == "type" || word == "items" || word == "minItems" || word == "maxItems";
    if (is_schema_condition(word) && !written && word != "uniqueItems") return {};
  }
  if (most != schema.end() && !most->is_number_unsigned()) return {};
  auto values = listed_values(root_, *items, looked_);
  if (*items == Json{{"type", "boolean"}}) values = {false, true};
  if (!values || values->empty() || values->size() > kMostUnique) return {};
  if (std::ranges::any_of(*values, &Json::is_structured)) return {};  // their keys may be in another order
  const size_t all = values->size();
  const size_t longest = most == schema.end() ? all : std::min(all, most->get<size_t>());
  const Json least = schema.value("minItems", Json(0));
  if (!least.is_number() || least > longest) return bad(path, "it has fewer different items than minItems");
  size_t bytes = 0;
  for (const Json& value : *values) bytes += bytes_in(value);
  if (!looked_.may(kMostOrders * bytes)) return too_much(path);
  Json arms = Json::array();
  std::vector<size_t> order(all);
  for (size_t i = 0; i < all; ++i) order[i] = i;
  std::set<std::vector<size_t>> seen;
  do {
    if (!seen.insert({order.begin(), order.begin() + static_cast<std::ptrdiff_t>(longest)}).second) continue;
    Json prefix = Json::array();
    for (size_t i = 0; i < longest; ++i) prefix.push_back(Json{{"const", (*values)[order[i]]}});
    arms.push_back({{"type", "array"}, {"prefixItems", std::move(prefix)}, {"items", false}, {"minItems", least}});
  } while (std::next_permutation(order.begin(), order.end()));
  if (type->is_array()) {
    Json rest = schema;
    for (const char* word : {"uniqueItems", "items", "minItems", "maxItems"}) rest.erase(word);
    Json& others = rest["type"];
    others.erase(std::remove(others.begin(), others.end(), Json("array")), others.end());
    if (!others.empty()) arms.push_back(std::move(rest));
  }
  Json out = {{"anyOf", std::move(arms)}};
  for (auto& [word, value] : schema.items()) {
    if (!is_schema_condition(word)) out[word] = std::move(value);
  }
  schema = std::move(out);
  return {};
}

Status SchemaWalk::refused(const Json& schema, const std::string& path) {
  for (const std::string_view word : kRefused) {
    const auto found = schema.find(word);
    const bool says_nothing = (word == "not" || word == "uniqueItems") && found != schema.end() && *found == false;
    if (found == schema.end() || says_nothing) continue;
    if (word == "uniqueItems" && schema.contains("items")) {
      return bad(path, fmt::format("'uniqueItems' is not supported: a grammar cannot compare items. It is where items "
                                   "are {} values of enum at most, or maxItems is 1",
                                   kMostUnique));
    }
    return bad(path, fmt::format("'{}' is not supported", word));
  }
  return {};
}

// Numbers by their last digits (schema_number.h).
Status SchemaWalk::multiples(Json& schema, const std::string& path) {
  const auto multiple = schema.find("multipleOf"), type = schema.find("type");
  if (multiple == schema.end() || type == schema.end()) return {};
  if (!multiple->is_number() || *multiple <= 0) return bad(path, "multipleOf must be a number above 0");
  const bool whole = is_of(*multiple, "integer");
  Json types = type->is_array() ? *type : Json::array({*type});
  const auto has = [&](const char* one) { return std::find(types.begin(), types.end(), Json(one)) != types.end(); };
  if (whole && has("number")) {  // multiples of whole numbers are whole
    types.erase(std::remove(types.begin(), types.end(), Json("integer")), types.end());
    *std::find(types.begin(), types.end(), Json("number")) = "integer";
    *type = types.size() == 1 ? types[0] : types;
  }
  if (!has("number") && (!has("integer") || *multiple == 1 || divides_all_integers(*multiple))) {
    schema.erase("multipleOf");
    return {};
  }
  for (const char* one : {"number", "integer"}) {
    if (!has(one)) continue;
    Json alone = schema;
    alone["type"] = one;
    if (!multiples_expression(alone) && !lists_multiples(alone)) {
      return bad(path,
                 fmt::format("'multipleOf' {} is not supported with these bounds: of numbers are .1, .01, .5, .25 "
                             "and others of which a power of ten is a multiple, of integers those too (2, 5, 10), "
                             "and others up to 1024 within bounds",
                             multiple->dump()));
    }
  }
  return {};
}

// A rule of no number would let nothing stand where one belongs.
Status SchemaWalk::bounds(Json& schema, const std::string& path) {
  const auto type = schema.find("type");
  if (type == schema.end()) return {};
  const auto says = [&](const char* word) {
    return *type == word || (type->is_array() && std::find(type->begin(), type->end(), Json(word)) != type->end());
  };
  const bool fractions = says("number");
  if (!fractions && !says("integer")) return {};
  if (!fractions) round_whole_bounds(schema);
  if (fractions && type->is_array())  // a number may be one, and xgrammar takes no fractions as bounds of the other
    type->erase(std::remove(type->begin(), type->end(), Json("integer")), type->end());
  if (leaves_a_number(schema, !fractions)) return {};
  if (!fractions) return bad(path, "no integer is within its bounds: widen them");
  return bad(path,
             "no number of six decimals at most is within its bounds, and with bounds no others are written: widen "
             "them, or measure in a smaller unit");
}

Status SchemaWalk::lengths(Json& schema, const std::string& path) {
  settle_string(schema);
  if (!schema.contains("pattern") || !(schema.contains("minLength") || schema.contains("maxLength"))) return {};
  return bad(path, fmt::format("a length beside the pattern '{}' is not supported: bound the pattern's own repeats",
                               short_text(schema["pattern"].dump())));
}

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

// Properties that must be there are described; xgrammar would leave out others. One that is not may be what others may.
Status SchemaWalk::required(Json& schema, const std::string& path) {
  const auto list = schema.find("required");
  if (list == schema.end()) return {};
  if (!list->is_array()) return bad(path, "required must be a list");
  const auto properties = schema.find("properties");
  if (properties != schema.end() && !properties->is_object()) return bad(path, "properties must be an object");
  const Json rest = schema.value("additionalProperties", Json(true));
  const bool ruled = rest == false || schema.contains("patternProperties") || schema.contains("propertyNames") ||
                     schema.contains("unevaluatedProperties");
  Json more = Json::object();
  for (const Json& name : *list) {
    if (!name.is_string()) return bad(path, "required must be a list of strings");
    const auto& key = name.get_ref<const std::string&>();
    if (properties != schema.end() && properties->contains(key)) continue;
    if (ruled) return bad(path, fmt::format("'{}' is required and not among the properties", short_text(key)));
    if (!looked_.may(bytes_in(rest))) return too_much(path);
    more[key] = rest;
  }
  if (more.empty()) return {};
  if (properties == schema.end()) {
    schema["properties"] = std::move(more);
  } else {
    properties->update(more);
  }
  return {};
}

// A keyword of one type binds only where that type is named: of a schema without one xgrammar makes any value.
Status SchemaWalk::types(const Json& schema, const std::string& path) {
  if (const auto type = schema.find("type"); type != schema.end()) {
    return type->is_array() && type->empty() ? bad(path, "type is an empty list, which no value fits") : Status();
  }
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

// Where they exclude each other, one of them is any of them. xgrammar sees that of bare types and values itself.
Status SchemaWalk::one_of(Json& schema, const std::string& path) {
  const auto found = schema.find("oneOf");
  if (found == schema.end() || !found->is_array()) return {};
  bool bare = true, refers = false;
  for (const Json& branch : *found) {
    bare = bare && is_bare(branch);
    refers = refers || (branch.is_object() && branch.contains("$ref"));
  }
  if (bare) return {};
  std::vector<RequiredLater> later;
  if (make_exclusive(root_, *found, looked_, later)) {
    Json branches = std::move(*found);
    schema.erase("oneOf");
    schema["anyOf"] = std::move(branches);
    for (RequiredLater& one : later) later_.emplace_back(std::move(one), path);
    return {};
  }
  if (!looked_.may(0)) {
    return bad(path,
               "the schemas of 'oneOf's have too many properties and values to see that they exclude each other. Is "
               "'anyOf' meant?");
  }
  if (!refers) return {};
  return bad(path,
             "'oneOf' is supported only of schemas that are seen to exclude each other: of other types, or objects of "
             "which each allows one property other values of const or enum. Is 'anyOf' meant?");
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

Status SchemaWalk::elsewhere() {
  for (size_t i = 0; i < elsewhere_.size(); ++i) {  // one may name others
    const std::string where = elsewhere_[i];
    Json* const target = at_ref(root_, where, &looked_);
    if (!target) return bad("", fmt::format("$ref '{}' leads to nothing", short_text(where)));
    KVILT_TRY(schema(*target, where.substr(1), 1));
  }
  return {};
}

Status SchemaWalk::require_tags() {
  for (const auto& [what, path] : later_) {
    if (!require_now(root_, what))
      return bad(path,
                 fmt::format("'oneOf': '{}' cannot be required of '{}'", short_text(what.key), short_text(what.ref)));
  }
  return {};
}

Status SchemaWalk::schema(Json& schema, const std::string& path, int level) {
  if (!looked_.may(1)) return too_much(path);
  if (level > kMostSchemaLevels) return bad(path, fmt::format("is deeper than {} levels", kMostSchemaLevels));
  if (schema.is_boolean()) return {};
  if (!schema.is_object()) return bad(path, fmt::format("must be an object or a boolean, not {}", schema.type_name()));
  for (const char* word : kAnnotations) schema.erase(word);  // equal schemas are one to xgrammar, whatever their title
  if (const auto found = schema.find("$ref"); found != schema.end()) KVILT_TRY(ref(*found, path));
  older_drafts(schema);
  KVILT_TRY(meet(schema, path));
  if (const auto found = schema.find("$ref"); found != schema.end()) KVILT_TRY(ref(*found, path));
  older_drafts(schema);
  KVILT_TRY(unique_items(schema, path));
  KVILT_TRY(refused(schema, path));
  KVILT_TRY(one_ruling(schema, path));
  KVILT_TRY(at(path, settle_names(root_, schema, looked_)));
  KVILT_TRY(required(schema, path));
  KVILT_TRY(never(schema, path));
  KVILT_TRY(types(schema, path));
  KVILT_TRY(at(path, check_keys(schema)));
  KVILT_TRY(multiples(schema, path));
  KVILT_TRY(bounds(schema, path));
  KVILT_TRY(lengths(schema, path));
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
  KVILT_TRY(check_ids(schema));
  SchemaWalk walk(schema);
  KVILT_TRY(walk.schema(schema, "", 1));
  KVILT_TRY(walk.elsewhere());
  return walk.require_tags();
}

}  // namespace kvilt
