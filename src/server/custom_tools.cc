#include "server/custom_tools.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_member.h"
#include "server/constraint_request.h"

namespace kvilt::server {
namespace {

constexpr size_t kMaxCustomName = 1024;

ApiError refusal(const std::string& path, const std::string& what, const char* code = "") {
  return {400, path + ": " + what, path, code};
}

// A string that has to be there.
ApiResult<std::string> string_in(const Json& object, const char* name, const std::string& path) {
  const Json* value = given(object, name);
  const std::string where = path + "." + name;
  if (!value) return refusal(where, "is required");
  if (!value->is_string()) return refusal(where, "must be a string, not " + type_of(*value));
  return value->get<std::string>();
}

std::optional<ApiError> read_input_format(const Json& format, const std::string& path, CustomTool& out) {
  if (!format.is_object()) return refusal(path, "must be an object, not " + type_of(format));
  const Json type = format.value("type", Json());
  if (type == "text") return std::nullopt;
  if (type != "grammar") return refusal(path + ".type", "must be \"text\" or \"grammar\"", "unsupported");
  const std::string inner = path + ".grammar";
  const Json* grammar = given(format, "grammar");
  if (!grammar || !grammar->is_object())
    return refusal(inner, "is required and must be an object with \"syntax\" and \"definition\"");
  auto syntax = string_in(*grammar, "syntax", inner);
  if (!syntax.ok()) return syntax.error();
  auto definition = string_in(*grammar, "definition", inner);
  if (!definition.ok()) return definition.error();
  if (syntax.value() != "lark" && syntax.value() != "regex")
    return refusal(inner + ".syntax", "must be \"lark\" or \"regex\"", "unsupported");
  if (definition.value().empty()) return refusal(inner + ".definition", "must not be empty");
  if (definition.value().size() > kMaxConstraint)
    return refusal(inner + ".definition", fmt::format("is longer than {} bytes", kMaxConstraint));
  out.form = syntax.value() == "lark" ? Constraint::Form::kGrammar : Constraint::Form::kRegex;
  out.definition = std::move(definition.value());
  return std::nullopt;
}

// The model is told of the grammar too: what only holds it would be forced on a model that means something else.
Json input_parameters(const CustomTool& tool) {
  Json input{{"type", "string"}};
  if (tool.form == Constraint::Form::kRegex)
    input["description"] = "A text that matches this regular expression: " + tool.definition;
  if (tool.form == Constraint::Form::kGrammar)
    input["description"] = "A text of this grammar in Lark's language:\n" + tool.definition;
  return {{"type", "object"}, {"properties", {{"input", std::move(input)}}}, {"required", Json::array({"input"})}};
}

Json function_for(const CustomTool& tool) {
  Json function{{"name", tool.name}};
  if (!tool.description.empty()) function["description"] = tool.description;
  function["parameters"] = input_parameters(tool);
  return {{"type", "function"}, {"function", std::move(function)}};
}

// {"id", "type": "custom", "custom": {"name", "input"}}.
std::optional<ApiError> settle_custom_call(Json& call, const std::string& path) {
  const Json* custom = given(call, "custom");
  const std::string inner = path + ".custom";
  if (!custom || !custom->is_object()) return refusal(inner, "is required and must be an object");
  auto name = string_in(*custom, "name", inner);
  if (!name.ok()) return name.error();
  auto input = string_in(*custom, "input", inner);
  if (!input.ok()) return input.error();
  call["type"] = "function";
  call["function"] = {{"name", std::move(name.value())},
                      {"arguments", dump(Json{{"input", std::move(input.value())}})}};
  call.erase("custom");
  return std::nullopt;
}

}  // namespace

Constraint::Tool CustomTool::constraint() const {
  Constraint::Tool out;
  out.name = name;
  out.input_form = form;
  out.input = definition;
  if (form == Constraint::Form::kNone) out.parameters = dump(input_parameters(*this));
  return out;
}

bool is_custom(const Json& tool) { return tool.is_object() && tool.value("type", Json()) == "custom"; }

ApiResult<CustomTool> read_custom_tool(const Json& tool, const std::string& path) {
  const std::string inner = path + ".custom";
  const Json* custom = given(tool, "custom");
  if (!custom || !custom->is_object()) return refusal(inner, "is required and must be an object with \"name\"");
  CustomTool out;
  auto name = string_in(*custom, "name", inner);
  if (!name.ok()) return name.error();
  out.name = std::move(name.value());
  if (out.name.empty() || out.name.size() > kMaxCustomName)
    return refusal(inner + ".name", fmt::format("must have 1 to {} bytes", kMaxCustomName));
  if (given(*custom, "description")) {
    auto description = string_in(*custom, "description", inner);
    if (!description.ok()) return description.error();
    out.description = std::move(description.value());
  }
  if (const Json* format = given(*custom, "format")) {
    if (auto error = read_input_format(*format, inner + ".format", out)) return *error;
  }
  return out;
}

std::optional<ApiError> settle_custom_tools(Json& body) {
  const auto tools = body.find("tools");
  for (size_t i = 0; tools != body.end() && tools->is_array() && i < tools->size(); ++i) {
    Json& tool = (*tools)[i];
    if (!is_custom(tool)) continue;
    const auto read = read_custom_tool(tool, fmt::format("tools[{}]", i));
    if (!read.ok()) return read.error();
    tool = function_for(read.value());
  }
  const auto messages = body.find("messages");
  for (size_t i = 0; messages != body.end() && messages->is_array() && i < messages->size(); ++i) {
    Json& message = (*messages)[i];
    const auto calls = message.is_object() ? message.find("tool_calls") : message.end();
    if (!message.is_object() || calls == message.end() || !calls->is_array()) continue;
    for (size_t j = 0; j < calls->size(); ++j) {
      if (!is_custom((*calls)[j])) continue;
      if (auto error = settle_custom_call((*calls)[j], fmt::format("messages[{}].tool_calls[{}]", i, j))) return error;
    }
  }
  return std::nullopt;
}

}  // namespace kvilt::server
