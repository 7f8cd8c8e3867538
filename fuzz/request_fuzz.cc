// The body of a request: bounded JSON, then every route's fields. Answers to bad ones must themselves be valid JSON.
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "server/anthropic_request.h"
#include "server/embed_request.h"
#include "server/llama_request.h"
#include "server/openai_request.h"
#include "server/responses_request.h"

using namespace kvilt;
using namespace kvilt::server;

namespace {

void check_error(const ApiError& error) {
  CHECK(error.status >= 400 && error.status < 500 && !error.message.empty());
  CHECK(!nlohmann::json::parse(dump(Json{{"message", error.message}, {"param", error.param}}), nullptr, false)
             .is_discarded());
}

template <class Parsed>
void check(const Parsed& parsed) {
  if (!parsed.ok()) check_error(parsed.error());
}

// What is kept of a response can be read again as the beginning of the next.
void check_response(const Json& body, const RequestLimits& limits) {
  const auto thread = response_thread(body);
  check(thread);
  if (!thread.ok()) return;
  const auto chat = responses_to_chat(body, Json::array(), thread.value(), limits);
  check(chat);
  if (!chat.ok()) return;
  CHECK(chat.value().sources.size() == chat.value().body["messages"].size());
  check(parse_chat(chat.value().body, limits));
  if (thread.value().store) CHECK(responses_to_chat({{"input", "x"}}, chat.value().input, {}, limits).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto body = parse_json({reinterpret_cast<const char*>(data), size});
  if (!body.ok()) {
    check_error(body.error());
    return 0;
  }
  const RequestLimits limits{.vocab = 1000};
  const auto chat = parse_chat(body.value(), limits);
  check(chat);
  if (chat.ok()) CHECK(chat.value().generation.choices >= 1 && chat.value().generation.choices <= limits.max_choices);
  const auto text = parse_completion(body.value(), limits);
  check(text);
  if (text.ok())
    CHECK(!text.value().prompts.empty() && text.value().prompts.size() <= static_cast<size_t>(limits.max_prompts));
  check(parse_tokenize(body.value(), limits));
  check(parse_detokenize(body.value(), limits));
  check(parse_documents(body.value(), limits));
  const auto converted = to_openai_chat(body.value(), limits, MessagesUse::kAnswer);
  check(converted);
  if (converted.ok()) {
    CHECK(converted.value().sources.size() == converted.value().body["messages"].size());
    check(parse_chat(converted.value().body, limits));
  }
  check(parse_embeddings(body.value(), limits));
  check(parse_rerank(body.value(), limits));
  check(parse_score(body.value(), limits));
  check(parse_llama_completion(body.value(), limits));
  check(parse_llama_infill(body.value(), limits));
  check(parse_llama_tokenize(body.value()));
  check_response(body.value(), limits);
  dump(body.value());
  return 0;
}
