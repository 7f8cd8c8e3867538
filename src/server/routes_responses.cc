// server/routes_responses.cc: OpenAI's Responses: POST /v1/responses, whole and streamed, and what was stored of them.
// Role:       body -> chat body (responses_request.h) -> answer (answer_job.h) as responses_writer.h says it -> kept
//             for its tenant (response_store.h).
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "server/answer_job.h"
#include "server/chat_body.h"
#include "server/list_page.h"
#include "server/response_store.h"
#include "server/responses_request.h"
#include "server/responses_writer.h"
#include "server/service.h"

namespace kvilt::server {
namespace {

constexpr size_t kMaxThread = size_t{16} << 20;        // bytes of stored items before a request
constexpr size_t kDefaultItems = 20, kMaxItems = 100;  // of a page of input_items: the API's

ApiError no_response(const std::string& id) {
  return {404, "there is no response '" + id.substr(0, 64) + "', or no longer", "response_id", "not_found"};
}

// Of the responses that a request goes on from, oldest first.
ApiResult<Json> earlier_items(Service& service, ResponseStore& store, const Call& call, const std::string& previous) {
  Json out = Json::array();
  if (previous.empty()) return out;
  const auto thread = store.thread(call.caller.tenant->name(), previous);
  if (!thread.ok()) {
    ApiError error = api_error(thread.error(), "previous_response_id");
    error.code = "previous_response_not_found";
    return error;
  }
  size_t bytes = 0;
  for (const auto& one : thread.value()) bytes += one->input.size() + one->response.size();
  if (bytes > kMaxThread) {
    return ApiError{400, "previous_response_id: the responses before it have more than 16 MiB", "previous_response_id",
                    "context_length_exceeded"};
  }
  if (!service.take_room_for(call, bytes))
    return ApiError{503, "other large requests are being read: try again soon", "", "overloaded"};
  for (const auto& one : thread.value()) {
    for (Json& item : Json::parse(one->input)) out.push_back(std::move(item));
    Json response = Json::parse(one->response);
    for (Json& item : response["output"]) out.push_back(std::move(item));
  }
  return out;
}

struct ReadResponse {
  ResponsesChat chat;
  ResponseThread thread;
};

ApiResult<ReadResponse> read_response(Service& service, ResponseStore& store, const Call& call) {
  auto thread = response_thread(call.body);
  if (!thread.ok()) return thread.error();
  auto earlier = earlier_items(service, store, call, thread.value().previous);
  if (!earlier.ok()) return earlier.error();
  auto chat =
      responses_to_chat(std::move(call.body), std::move(earlier.value()), thread.value(), limits_of(call.attached));
  if (!chat.ok()) return chat.error();
  return ReadResponse{std::move(chat.value()), std::move(thread.value())};
}

// Keeps what a client was answered, if it fits.
std::function<bool(const Json&)> keeper(std::shared_ptr<ResponseStore> store, std::string tenant, std::string previous,
                                        const Json& input) {
  return [store = std::move(store), tenant = std::move(tenant), previous = std::move(previous),
          input = dump(input)](const Json& response) {
    StoredResponse kept{response["id"].get<std::string>(), previous, dump(response), input};
    if (!store->fits(kept.response.size() + kept.input.size())) return false;
    store->add(tenant, std::move(kept));
    return true;
  };
}

void respond(Service& service, const std::shared_ptr<ResponseStore>& store, const Call& call,
             httplib::Response& response) {
  auto read = read_response(service, *store, call);
  if (!read.ok()) return reply_error(response, read.error());
  const auto chat = std::make_shared<ResponsesChat>(std::move(read.value().chat));
  const ResponseThread& thread = read.value().thread;
  ResponseForm form{call.attached.model, std::move(chat->repeated), thread.store, std::move(chat->namespaces), nullptr};
  if (thread.store) form.keep = keeper(store, call.caller.tenant->name(), thread.previous, chat->input);
  chat->input = nullptr;
  ChatJob job;
  job.body = std::move(chat->body);
  job.field = "input";
  job.in_own_paths = [chat](ApiError& error) { chat->in_own_paths(error); };
  job.writer = [&] { return responses_writer(std::move(form), call.engine()); };
  answer_chat(service, call, std::move(job), response);
}

void count_input(Service& service, ResponseStore& store, const Call& call, httplib::Response& response) {
  auto read = read_response(service, store, call);
  if (!read.ok()) return reply_error(response, read.error());
  ResponsesChat& chat = read.value().chat;
  const auto refuse = [&](ApiError error) {
    chat.in_own_paths(error);
    reply_error(response, error);
  };
  const auto named = parse_tokenize(chat.body, limits_of(call.attached));
  if (!named.ok()) return refuse(named.error());
  if (auto error = check_model(call.attached, named.value().model)) return refuse(*error);
  if (auto error = settle_chat(service, call, chat.body)) return refuse(*error);
  const auto prompt = chat_prompt(service, call, chat.body);
  if (!prompt.ok()) return refuse(api_error(prompt.error(), "messages"));
  reply_json(response, {{"object", "response.input_tokens"}, {"input_tokens", prompt.value().ids.size()}});
}

void one_response(ResponseStore& store, const Call& call, httplib::Response& response) {
  const std::string id = call.http.matches[1];
  if (call.http.get_param_value("stream") == "true")
    return reply_error(response, {400, "stream: a stored response is sent whole", "stream", "unsupported"});
  const auto found = store.find(call.caller.tenant->name(), id);
  if (!found) return reply_error(response, no_response(id));
  response.set_content(found->response, "application/json");
}

void delete_response(ResponseStore& store, const Call& call, httplib::Response& response) {
  const std::string id = call.http.matches[1];
  if (!store.erase(call.caller.tenant->name(), id)) return reply_error(response, no_response(id));
  reply_json(response, {{"id", id}, {"object", "response"}, {"deleted", true}});
}

// A page of a response's own items: what it went on from has its own.
void input_items(ResponseStore& store, const Call& call, httplib::Response& response) {
  const std::string id = call.http.matches[1];
  const auto found = store.find(call.caller.tenant->name(), id);
  if (!found) return reply_error(response, no_response(id));
  const auto refuse = [&](const char* name, const char* what) {
    reply_error(response, {400, std::string(name) + ": " + what, name, ""});
  };
  size_t limit = kDefaultItems;
  if (const std::string text = call.http.get_param_value("limit"); !text.empty()) {
    const auto given = page_limit(text, kMaxItems);
    if (!given) return refuse("limit", "must be a number from 1 to 100");
    limit = *given;
  }
  const std::string order = call.http.get_param_value("order"), after = call.http.get_param_value("after");
  if (!order.empty() && order != "asc" && order != "desc") return refuse("order", "must be \"asc\" or \"desc\"");
  Json items = Json::parse(found->input);
  if (order != "asc") std::reverse(items.begin(), items.end());
  auto from = items.begin();
  if (!after.empty()) {
    from = std::find_if(items.begin(), items.end(), [&](const Json& item) { return item["id"] == after; });
    if (from == items.end()) return refuse("after", "is no item of this response");
    ++from;
  }
  const bool more = static_cast<size_t>(items.end() - from) > limit;
  reply_json(response, page_json(Json(from, more ? from + static_cast<ptrdiff_t>(limit) : items.end()), more));
}

}  // namespace

void add_response_routes(Service& service) {
  const ServerOptions& options = service.options();
  const auto store = std::make_shared<ResponseStore>(StoreLimits{.bytes = options.response_store_bytes});
  const auto stored = [store](void (*handler)(ResponseStore&, const Call&, httplib::Response&)) {
    return [store, handler](const Call& call, httplib::Response& response) { handler(*store, call, response); };
  };
  for (const char* path : {"/v1/responses", "/responses"}) {
    service.post(path, [&service, store](const Call& call, httplib::Response& response) {
      respond(service, store, call, response);
    });
  }
  service.post("/v1/responses/input_tokens", [&service, store](const Call& call, httplib::Response& response) {
    count_input(service, *store, call, response);
  });
  service.get("/v1/responses/([^/]+)", stored(one_response));
  service.remove("/v1/responses/([^/]+)", stored(delete_response));
  service.get("/v1/responses/([^/]+)/input_items", stored(input_items));
}

}  // namespace kvilt::server
