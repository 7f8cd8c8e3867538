#include "server/embed_request.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace kvilt::server {
namespace {

constexpr int kMaxDimensions = 1 << 20;  // the model's width bounds them
constexpr int kMaxInputs = 2048;         // OpenAI's bound; LangChain sends 1,000. Few of them run at once
constexpr size_t kMaxInstruction = 4096, kMaxWord = 64;
// What Qwen3-Reranker was trained with where a request names no other task.
constexpr const char* kSearch = "Given a web search query, retrieve relevant passages that answer the query";

// The fields that text completions have as well (model, kvilt, cache_salt) are read by their reader, `prompt` among them:
// `field` is the name of it here; none: another word stands for it.
ApiResult<TextRequest> read_shared(const Json& body, const char* field, const RequestLimits& limits) {
  Json text = Json::object();
  if (!field) text["prompt"] = "-";
  for (const char* name : {"model", "kvilt", "cache_salt", "add_special_tokens", "truncate_prompt_tokens"}) {
    if (const auto it = body.find(name); it != body.end()) text[name] = *it;
  }
  if (field && body.contains(field)) text["prompt"] = body.at(field);
  auto parsed = parse_completion(text, limits);
  if (parsed.ok() || !field) return parsed;
  ApiError error = parsed.error();
  constexpr std::string_view kPrompt = "prompt";
  if (error.message.starts_with(kPrompt)) error.message.replace(0, kPrompt.size(), field);
  if (error.param.starts_with(kPrompt)) error.param.replace(0, kPrompt.size(), field);
  return error;
}

std::optional<ApiError> no_object(const Json& body) {
  if (body.is_object()) return std::nullopt;
  return ApiError{400, fmt::format("the body must be a JSON object, not {}", type_of(body)), "", ""};
}

void refuse(Fields& fields, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (fields.find(name)) fields.fail(name, "is not supported by this server", "unsupported");
  }
}

// field: documents, or texts.
void read_documents(Fields& fields, const std::string& field, const RequestLimits& limits,
                    std::vector<std::string>& out) {
  const Json* list = fields.find(field.c_str());
  if (!list) return fields.fail(field, "is required");
  if (!list->is_array()) return fields.fail(field, fmt::format("must be a list, not {}", type_of(*list)));
  if (list->empty()) return fields.fail(field, "must not be empty");
  if (list->size() > static_cast<size_t>(limits.max_prompts))
    return fields.fail(field,
                       fmt::format("has more than {} entries: send them in several requests", limits.max_prompts));
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string name = fmt::format("{}[{}]", field, i);
    const Json* text = &(*list)[i];
    if (text->is_object()) {
      const auto inner = text->find("text");
      if (inner == text->end()) return fields.fail(name + ".text", "is required");
      text = &*inner;
    }
    if (!text->is_string())
      return fields.fail(name, fmt::format("must be a string or an object with \"text\", not {}", type_of(*text)));
    out.push_back(text->get<std::string>());
  }
}

void refuse_beside_messages(Fields& fields) {
  if (fields.find("input")) fields.fail("input", "is not supported beside messages", "unsupported");
  if (const Json* special = fields.find("add_special_tokens"); special && *special != false)
    fields.fail("add_special_tokens", "only false is supported beside messages: the template writes them",
                "unsupported");
}

}  // namespace

ApiResult<EmbedRequest> parse_embeddings(const Json& body, const RequestLimits& limits) {
  if (auto error = no_object(body)) return *error;
  EmbedRequest out;
  Fields fields(body);
  out.chat = fields.find("messages") != nullptr;
  if (out.chat) {
    if (const auto messages = parse_tokenize(body, limits); !messages.ok()) return messages.error();
    refuse_beside_messages(fields);
  }
  RequestLimits many = limits;
  many.max_prompts = kMaxInputs;
  auto shared = read_shared(body, out.chat ? nullptr : "input", many);
  if (!shared.ok()) return shared.error();
  TextRequest& text = shared.value();
  out.generation = std::move(text.generation);
  out.inputs = std::move(text.prompts);
  out.add_special_tokens = text.add_special_tokens;
  out.last_tokens = text.last_tokens;
  // A text is seldom embedded twice; its KV would take the place of what is asked for again.
  const auto own = body.find("kvilt");
  if (own == body.end() || !own->is_object() || !own->contains("publish")) out.generation.publish = false;
  fields.integer("dimensions", 1, kMaxDimensions, &out.dimensions);
  std::string format = "float";
  fields.string("encoding_format", &format, kMaxWord);
  if (fields.ok() && format != "float" && format != "base64")
    fields.fail("encoding_format", "must be \"float\" or \"base64\"");
  out.base64 = format == "base64";
  if (fields.error()) return *fields.error();
  return out;
}

ApiResult<RerankRequest> parse_rerank(const Json& body, const RequestLimits& limits) {
  if (auto error = no_object(body)) return *error;
  RerankRequest out;
  out.instruction = kSearch;
  Fields fields(body);
  const Json* query = fields.find("query");
  if (!query) {
    fields.fail("query", "is required");
  } else if (!query->is_string()) {
    fields.fail("query", fmt::format("must be a string, not {}", type_of(*query)));
  }
  out.bare = !fields.find("documents") && fields.find("texts");
  read_documents(fields, out.bare ? "texts" : "documents", limits, out.documents);
  fields.string("instruction", &out.instruction, kMaxInstruction);
  fields.integer("top_n", 1, INT32_MAX, &out.top_n);
  fields.boolean(out.bare ? "return_text" : "return_documents", &out.return_documents);
  refuse(fields, {"max_chunks_per_doc", "max_tokens_per_doc", "rank_fields", "truncate_prompt_tokens"});
  if (fields.error()) return *fields.error();
  auto shared = read_shared(body, "query", limits);
  if (!shared.ok()) return shared.error();
  out.generation = std::move(shared.value().generation);
  out.query = query->get<std::string>();
  return out;
}

ApiResult<ScoreRequest> parse_score(const Json& body, const RequestLimits& limits) {
  if (auto error = no_object(body)) return *error;
  ScoreRequest out;
  out.instruction = kSearch;
  Fields fields(body);
  for (auto [name, texts] : {std::pair("text_1", &out.first), std::pair("text_2", &out.second)}) {
    const Json* given = fields.find(name);
    if (given && given->is_string()) {
      texts->push_back(given->get<std::string>());
    } else if (given && !given->is_array()) {
      fields.fail(name, fmt::format("must be a string or a list of strings, not {}", type_of(*given)));
    } else if (fields.ok()) {
      read_documents(fields, name, limits, *texts);
    }
  }
  if (fields.ok() && out.first.size() > 1 && out.first.size() != out.second.size())
    fields.fail("text_1", fmt::format("has {} entries and text_2 {}: it must be one text, or as many as there",
                                      out.first.size(), out.second.size()));
  fields.string("instruction", &out.instruction, kMaxInstruction);
  refuse(fields, {"truncate_prompt_tokens"});
  if (fields.error()) return *fields.error();
  auto shared = read_shared(body, nullptr, limits);
  if (!shared.ok()) return shared.error();
  out.generation = std::move(shared.value().generation);
  return out;
}

}  // namespace kvilt::server
