#include "server/tool_shapes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

namespace kvilt::server {
namespace {

constexpr int kMaxDepth = 4;  // of anyOf within anyOf

bool is_string(const Json& value) { return value.is_string(); }

// The same as is_plain_text in engine/answer_grammar.cc.
bool is_plain(const Json& schema) {
  const Json type = schema.value("type", Json("string"));
  if (type != "string" && !(type.is_array() && std::ranges::find(type, Json("string")) != type.end())) return false;
  if (schema.contains("const")) return schema["const"].is_string();
  if (schema.contains("enum")) return schema["enum"].is_array() && std::ranges::all_of(schema["enum"], is_string);
  return schema.value("type", Json()) == "string";
}

// What values a schema allows.
struct Kinds {
  bool text = false, null = false, other = false;

  void add_value(const Json& value) { (value.is_string() ? text : value.is_null() ? null : other) = true; }
  void add_type(const Json& type) { (type == "string" ? text : type == "null" ? null : other) = true; }

  void add(const Json& schema, int depth) {
    const auto list = [&](const char* name) {
      const auto it = schema.find(name);
      return it != schema.end() && it->is_array() ? &*it : nullptr;
    };
    if (!schema.is_object() || depth == 0) {
      other = true;
    } else if (schema.contains("const")) {
      add_value(schema["const"]);
    } else if (const Json* values = list("enum")) {
      for (const Json& value : *values) add_value(value);
    } else if (const Json* types = list("type")) {
      for (const Json& type : *types) add_type(type);
    } else if (schema.contains("type")) {
      add_type(schema["type"]);
    } else if (const Json* any = list("anyOf") ? list("anyOf") : list("oneOf")) {
      for (const Json& one : *any) add(one, depth - 1);
    } else {
      other = true;
    }
  }
};

std::optional<TextForm> text_form(const Json& schema) {
  if (!schema.is_object()) return std::nullopt;
  if (is_plain(schema)) return TextForm::kPlain;
  Kinds kinds;
  kinds.add(schema, kMaxDepth);
  if (!kinds.text || kinds.other) return std::nullopt;
  return kinds.null ? TextForm::kMaybeNull : TextForm::kMaybeJson;
}

}  // namespace

std::vector<ToolShape> tool_shapes(const Json& tools) {
  std::vector<ToolShape> out;
  if (!tools.is_array()) return out;
  for (const Json& tool : tools) {
    const auto function = tool.is_object() ? tool.find("function") : tool.end();
    const Json& described = tool.is_object() && function != tool.end() && function->is_object() ? *function : tool;
    const auto name = described.is_object() ? described.find("name") : described.end();
    if (!described.is_object() || name == described.end() || !name->is_string()) continue;
    ToolShape& shape = out.emplace_back();
    shape.name = name->get<std::string>();
    const auto schema = described.find("parameters");
    if (schema == described.end() || !schema->is_object()) continue;
    const auto properties = schema->find("properties");
    if (properties == schema->end() || !properties->is_object()) continue;
    for (const auto& [key, property] : properties->items()) {
      if (const auto form = text_form(property)) shape.texts.emplace(key, *form);
    }
  }
  return out;
}

}  // namespace kvilt::server
