#include "server/chat_body.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/custom_tools.h"
#include "server/knowledge_bases.h"
#include "server/old_calls.h"
#include "server/service.h"
#include "server/thinking_effort.h"

namespace kvilt::server {

std::string last_text(const Json& body) {
  const Json& content = body.at("messages").back().at("content");
  if (content.is_string()) return content.get<std::string>();
  std::string out, separator = "\n";
  if (const auto given = body.find("part_separator"); given != body.end() && given->is_string())
    separator = given->get<std::string>();
  bool first = true;
  for (const Json& part : content) {
    const auto text = part.find("text");
    if (text == part.end() || !text->is_string()) continue;
    if (!std::exchange(first, false)) out += separator;
    out += text->get<std::string>();
  }
  return out;
}

namespace {

// The server's own chat_template_kwargs, of which a body's hold.
Status add_template_words(const Service& service, Json& body) {
  for (const auto& [name, value] : service.template_words().items()) {
    if (const auto wrong = set_template_word(body, name, value)) return Error{Code::kInvalidArgument, wrong->message};
  }
  return {};
}

}  // namespace

Result<Prompt> chat_prompt(const Service& service, const Call& call, Json& body) {
  KVILT_TRY(add_template_words(service, body));
  return call.engine().chat_prompt(body);
}

Result<std::vector<Prompt>> document_prompts(const Service& service, const Call& call, Json& body) {
  KVILT_TRY(add_template_words(service, body));
  return call.engine().document_prompts(body);
}

std::optional<ApiError> settle_chat(const Service& service, const Call& call, Json& body, NamedDocuments* named) {
  if (auto error = settle_thinking(body)) return error;
  if (auto error = settle_custom_tools(body)) return error;
  if (auto error = settle_old_calls(body)) return error;
  const auto has_room = [&](size_t bytes) { return service.take_room_for(call, bytes); };
  auto filled = service.knowledge().fill(call.caller.tenant->name(), body, has_room);
  if (filled.ok()) {
    if (named) *named = std::move(filled.value());
    return std::nullopt;
  }
  if (filled.error().code == Code::kUnavailable) return ApiError{503, filled.error().message, "", "overloaded"};
  return api_error(filled.error(), "documents");
}

}  // namespace kvilt::server
