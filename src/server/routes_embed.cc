// server/routes_embed.cc: POST /v1/embeddings, /v1/rerank and /score, by the last token of a prompt.
// Idea:       an embedding is the last token's state behind the final norm, of length 1 (Qwen3-Embedding and its like:
//             arXiv 2506.05176). A score is softmax over the model's logits of "yes" and "no" behind the question
//             whether a document answers a query (Qwen3-Reranker, same paper).
// Invariants: exact, unless the request asks for a quality or a policy in `kvilt`: numbers are compared with others, and
//             those must not depend on what was cached.
// Cost:       one prefill a text. Documents stand behind the query: those of one request share its prefix, and with
//             `kvilt` their KV is found again behind other queries, as marked pieces.
// Not here:   what the bodies may hold (embed_request.h).
#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>

#include "server/answer_writer.h"
#include "server/chat_body.h"
#include "server/embed_request.h"
#include "server/request_batch.h"
#include "server/service.h"

namespace kvilt::server {
namespace {

static_assert(std::endian::native == std::endian::little, "base64 of floats is little-endian for all clients");

constexpr size_t kMaxRankBytes = size_t{32} << 20;  // of a request's prompts together: the query is in each

// Nothing is generated: the prompt's own pass is all.
Request reading(Prompt prompt, const Generation& wanted) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.max_tokens = 0;
  request.policy = wanted.policy;
  if (wanted.policy.name.empty() && !wanted.policy.params.contains("quality")) request.policy.name = "prefix";
  request.publish = wanted.publish;
  request.cache_salt = wanted.cache_salt;
  request.namespaces = wanted.namespaces;
  return request;
}

std::optional<ApiError> check(const Call& call, const Generation& wanted) {
  if (auto error = check_model(call.attached, wanted.model)) return error;
  return check_policy(call.attached, wanted.policy);
}

Json usage_of(const UsageSum& usage) {
  const int tokens = usage.prompt().prompt;
  return {{"prompt_tokens", tokens}, {"total_tokens", tokens}, {"kvilt", kvilt_usage(usage.prompt())}};
}

// The first `dimensions` values (0: all), with length 1. A state of zeros stays one.
std::vector<float> embedding_of(std::span<const float> state, int dimensions) {
  if (dimensions > 0) state = state.first(std::min(state.size(), static_cast<size_t>(dimensions)));
  double sum = 0;
  for (const float value : state) sum += double{value} * value;
  const double scale = sum > 0 ? 1 / std::sqrt(sum) : 0;
  std::vector<float> out;
  for (const float value : state) out.push_back(static_cast<float>(value * scale));
  return out;
}

Json as_base64(const std::vector<float>& values) {
  std::vector<unsigned char> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  std::string text(sodium_base64_encoded_len(bytes.size(), sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), bytes.data(), bytes.size(), sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();  // the zero at its end
  return text;
}

// Words of control tokens in a text stay text; what the tokenizer puts around a text (an end token) is put there. A chat
// is rendered without the beginning of an answer, unless it says otherwise.
Result<Prompt> prompt_of(const Service& service, const Call& call, EmbedRequest& wanted, size_t i) {
  const Engine& engine = call.engine();
  Prompt prompt;
  if (wanted.chat) {
    if (Json& opens = call.body["add_generation_prompt"]; opens.is_null()) opens = false;
    KVILT_ASSIGN(prompt, chat_prompt(service, call, call.body));
    prompt.kept.clear();  // what is embedded is not published
  } else if (const auto* text = std::get_if<std::string>(&wanted.inputs[i])) {
    KVILT_ASSIGN(prompt.ids, engine.tokenize(*text, false, wanted.add_special_tokens));
  } else {
    prompt.ids = std::move(std::get<std::vector<int32_t>>(wanted.inputs[i]));
  }
  const size_t all = prompt.ids.size();
  keep_last(prompt.ids, wanted.last_tokens, engine.info().context);
  if (prompt.ids.size() < all) {  // places in the whole one are none in this
    prompt.marks.clear();
    prompt.parts.clear();
  }
  if (prompt.ids.empty()) return Error{Code::kInvalidArgument, "the text has no tokens"};
  return prompt;
}

void embed(const Service& service, const Call& call, httplib::Response& response) {
  auto parsed = parse_embeddings(call.body, limits_of(call.attached));
  if (!parsed.ok()) return reply_error(response, parsed.error());
  EmbedRequest& wanted = parsed.value();
  if (auto error = check(call, wanted.generation)) return reply_error(response, *error);
  NamedDocuments documents;
  if (wanted.chat) {
    if (auto error = settle_chat(service, call, call.body, &documents)) return reply_error(response, *error);
  }
  const int width = call.engine().info().width;
  if (wanted.dimensions > width) {
    return reply_error(response, {400, fmt::format("dimensions: this model has {}, not {}", width, wanted.dimensions),
                                  "dimensions", ""});
  }
  const bool several = wanted.inputs.size() > 1;
  const auto name = [&](size_t i) {
    return several ? fmt::format("input[{}]", i) : std::string(wanted.chat ? "messages" : "input");
  };
  std::vector<Request> requests;
  for (size_t i = 0; i < wanted.inputs.size(); ++i) {
    auto prompt = prompt_of(service, call, wanted, i);
    if (!prompt.ok()) return reply_error(response, api_error(prompt.error(), name(i)));
    requests.push_back(reading(std::move(prompt.value()), wanted.generation));
    requests.back().last_hidden = true;
  }
  call.drop_body();
  std::vector<Json> rows(requests.size());
  UsageSum usage;
  const auto add = [&](size_t i, const Completion& end) {
    usage.add_prompt(end.usage);
    const std::vector<float> values = embedding_of(end.last_hidden, wanted.dimensions);
    rows[i] = {{"object", "embedding"}, {"index", i}, {"embedding", wanted.base64 ? as_base64(values) : Json(values)}};
  };
  if (!run_batch(call, response, std::move(requests), name, add)) return;
  count_hits(documents);
  reply_json(response, {{"id", answer_id("embd-")},
                        {"object", "list"},
                        {"created", std::time(nullptr)},
                        {"data", rows},
                        {"model", call.attached.model},
                        {"usage", usage_of(usage)}});
}

// The tokens whose logits are compared; the first of each word where a vocabulary has no token for it.
Result<std::pair<int32_t, int32_t>> yes_and_no(const Engine& engine) {
  KVILT_ASSIGN(const std::vector<int32_t> yes, engine.tokenize("yes", false, false));
  KVILT_ASSIGN(const std::vector<int32_t> no, engine.tokenize("no", false, false));
  if (yes.empty() || no.empty() || yes[0] == no[0])
    return Error{Code::kUnsupported, "this model's vocabulary has no tokens for \"yes\" and \"no\": it cannot rank"};
  return std::pair(yes[0], no[0]);
}

struct RankPair {
  std::string_view query, document;
};

// Pairs of which each gets a score; `name` is the client's of one.
struct Ranking {
  const Generation& generation;
  const std::string& instruction;
  std::function<std::string(size_t)> name;
  std::vector<RankPair> pairs = {};
};

// Qwen3-Reranker's words, in the model's own chat template. The document is a marked part. Nobody thinks before a yes or
// no.
Result<Prompt> rank_prompt(const Service& service, const Call& call, const Ranking& ranking, const RankPair& pair) {
  const std::string question =
      fmt::format("<Instruct>: {}\n<Query>: {}\n<Document>: ", ranking.instruction, pair.query);
  Json body = {
      {"messages",
       Json::array({{{"role", "system"},
                     {"content",
                      "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
                      "Note that the answer can only be \"yes\" or \"no\"."}},
                    {{"role", "user"},
                     {"content", Json::array({{{"type", "text"}, {"text", question}},
                                              {{"type", "text"},
                                               {"text", pair.document},
                                               {"cache_control", {{"type", "ephemeral"}}}}})}}})},
      {"part_separator", ""},
      {"chat_template_kwargs", {{"enable_thinking", false}}}};
  Result<Prompt> out = chat_prompt(service, call, body);
  if (out.ok()) out->kept.clear();  // its client said nothing about a time
  return out;
}

Json ranked(const RerankRequest& wanted, const std::vector<double>& scores) {
  std::vector<size_t> order(scores.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  if (wanted.top_n > 0) order.resize(std::min(order.size(), static_cast<size_t>(wanted.top_n)));
  Json results = Json::array();
  for (const size_t i : order) {
    Json row = {{"index", i}, {"relevance_score", scores[i]}};
    if (wanted.return_documents) row["document"] = {{"text", wanted.documents[i]}};
    results.push_back(std::move(row));
  }
  return results;
}

// The same as text-embeddings-inference has it: a list, with other names.
Json bare(const Json& results) {
  Json out = Json::array();
  for (const Json& result : results) {
    out.push_back({{"index", result["index"]}, {"score", result["relevance_score"]}});
    if (result.contains("document")) out.back()["text"] = result["document"]["text"];
  }
  return out;
}

// One for each pair; none: the response says why.
std::optional<std::vector<double>> scores_of(const Service& service, const Call& call, const Ranking& ranking,
                                             UsageSum& usage, httplib::Response& response) {
  const auto refuse = [&](const ApiError& error) {
    reply_error(response, error);
    return std::nullopt;
  };
  if (auto error = check(call, ranking.generation)) return refuse(*error);
  const auto words = yes_and_no(call.engine());
  if (!words.ok()) return refuse(api_error(words.error(), "model"));
  const auto [yes, no] = words.value();
  std::vector<Request> requests;
  size_t bytes = 0;
  for (const RankPair& pair : ranking.pairs) {
    const std::string name = ranking.name(requests.size());
    bytes += pair.query.size() + pair.document.size();
    if (bytes > kMaxRankBytes) {
      return refuse({400, name + ": with the query before each text they make more than 32 MiB; send fewer", name,
                     "context_length_exceeded"});
    }
    auto prompt = rank_prompt(service, call, ranking, pair);
    // In the client's words: `messages` is ours.
    if (!prompt.ok()) return refuse(api_error({prompt.error().code, name + ": " + prompt.error().message}));
    requests.push_back(reading(std::move(prompt.value()), ranking.generation));
    requests.back().evaluation.first_logits = true;
  }
  call.drop_body();
  std::vector<double> scores(requests.size());
  const auto add = [&, yes = yes, no = no](size_t i, const Completion& end) {
    usage.add_prompt(end.usage);
    const std::vector<float>& logits = end.logits.first;
    scores[i] = 1 / (1 + std::exp(double{logits[static_cast<size_t>(no)]} - logits[static_cast<size_t>(yes)]));
  };
  if (!run_batch(call, response, std::move(requests), ranking.name, add)) return std::nullopt;
  return scores;
}

void rerank(const Service& service, const Call& call, httplib::Response& response) {
  const auto parsed = parse_rerank(call.body, limits_of(call.attached));
  if (!parsed.ok()) return reply_error(response, parsed.error());
  const RerankRequest& wanted = parsed.value();
  Ranking ranking{wanted.generation, wanted.instruction, [](size_t i) { return fmt::format("documents[{}]", i); }};
  for (const std::string& document : wanted.documents) ranking.pairs.push_back({wanted.query, document});
  UsageSum usage;
  const auto scores = scores_of(service, call, ranking, usage, response);
  if (!scores) return;
  if (wanted.bare) return reply_json(response, bare(ranked(wanted, *scores)));
  reply_json(response, {{"id", answer_id("rerank-")},
                        {"object", "list"},
                        {"model", call.attached.model},
                        {"results", ranked(wanted, *scores)},
                        {"usage", usage_of(usage)}});
}

void score(const Service& service, const Call& call, httplib::Response& response) {
  const auto parsed = parse_score(call.body, limits_of(call.attached));
  if (!parsed.ok()) return reply_error(response, parsed.error());
  const ScoreRequest& wanted = parsed.value();
  Ranking ranking{wanted.generation, wanted.instruction, [](size_t i) { return fmt::format("text_2[{}]", i); }};
  for (size_t i = 0; i < wanted.second.size(); ++i)
    ranking.pairs.push_back({wanted.first[wanted.first.size() > 1 ? i : 0], wanted.second[i]});
  UsageSum usage;
  const auto scores = scores_of(service, call, ranking, usage, response);
  if (!scores) return;
  Json data = Json::array();
  for (const double one : *scores) data.push_back({{"index", data.size()}, {"object", "score"}, {"score", one}});
  reply_json(response, {{"id", answer_id("score-")},
                        {"object", "list"},
                        {"created", std::time(nullptr)},
                        {"model", call.attached.model},
                        {"data", std::move(data)},
                        {"usage", usage_of(usage)}});
}

}  // namespace

void add_embed_routes(Service& service) {
  const auto add = [&service](auto answer, std::initializer_list<const char*> paths) {
    for (const char* path : paths)
      service.post(path, [&service, answer](const Call& call, httplib::Response& out) { answer(service, call, out); });
  };
  add(embed, {"/v1/embeddings", "/embeddings"});
  add(rerank, {"/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"});
  add(score, {"/score", "/v1/score"});
}

}  // namespace kvilt::server
