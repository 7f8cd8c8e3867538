// server/routes_generate.cc: POST /v1/chat/completions, /v1/completions and /v1/messages, whole and streamed; and
// /v1/messages/count_tokens.
// Role:       parsed request -> one engine request per choice (answer_queue.h) -> what its text says
//             (choice_reader.h) -> JSON or events (answer_writer.h).
// Invariants: while an answer is made, the client's socket is checked every AnswerQueue::kLook; when the client is gone,
//             the whole request is cancelled at once. Errors before the first token get their HTTP status; later ones
//             end the stream with an event that says so.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>

#include "server/answer_job.h"
#include "server/answer_queue.h"
#include "server/anthropic_request.h"
#include "server/anthropic_response.h"
#include "server/chat_body.h"
#include "server/chat_builder.h"
#include "server/choice_reader.h"
#include "server/infill_prompt.h"
#include "server/knowledge_writer.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "server/request_log.h"
#include "server/service.h"

namespace kvilt::server {
namespace {

// How long a stream's head waits for the first token, so that an early error can still have a status.
constexpr auto kHeadPatience = std::chrono::seconds(5);
constexpr size_t kMostIdBytes = 256;  // bytes

// One HTTP request that is being answered.
struct Job {
  Attached attached;
  Generation generation;
  std::vector<Prompt> prompts;      // until they are submitted
  NamedDocuments documents;         // of a chat, in its order, where it names knowledge bases; until it is submitted
  std::vector<std::string> echoes;  // per prompt, with echo; of a chat the text from which it goes on
  std::vector<int> lengths;         // per prompt: its tokens
  // Of a chat where there is something to look for in its answers; none: their text is the answer.
  std::optional<AnswerReading> reading;
  bool one_call = false;
  bool keeps_ids = false;                              // the writer sends tokens' ids
  bool shows_thinking = false;                         // of Anthropic's API
  std::vector<std::unique_ptr<ChoiceReader>> readers;  // per choice, with a reading
  std::unique_ptr<AnswerWriter> writer;
  ApiShape shape = ApiShape::kOpenAi;  // of errors
  Clock::duration ping_every{};        // of silence in a stream
  std::unique_ptr<AnswerQueue> answer;
  std::optional<Event> first;  // of a stream: already taken out of the answer
  UsageSum usage;
  RequestLog* log = nullptr;
  PartOrders* orders = nullptr;
  std::shared_ptr<RequestRecord> record;                 // of the first choice
  std::vector<size_t> tools;                             // of a chat: a hash of each
  int32_t systems = 0;                                   // of a chat: messages of the system at its beginning
  std::string previous;                                  // id of the message before, where the client names it
  bool compares = false;                                 // the answer says where the prompt differs from that one's
  bool has_system = false;                               // of a message's request that does
  std::function<std::string(std::string)> in_own_paths;  // a path in a chat body that was made of another API's
  ~Job() {
    if (record) log->left(*record);
  }

  // Choices of one prompt follow each other.
  int choices() const { return generation.choices; }
  size_t prompt_of(int choice) const { return static_cast<size_t>(choice / choices()); }
};

enum class Wait { kEvent, kTimeout, kGone };

// Waits for an event until the deadline, and notices when the client is gone.
Wait wait_event(AnswerQueue& answer, Clock::time_point deadline, Event& out) {
  const Connection& client = *Connection::current();
  for (;;) {
    auto event = answer.next(AnswerQueue::kLook);
    if (client.peer_gone()) return Wait::kGone;  // checked with every event too: a busy answer never times out
    if (event) {
      out = std::move(*event);
      return Wait::kEvent;
    }
    if (Clock::now() >= deadline) return Wait::kTimeout;
  }
}

// The error with which a choice ended; none if it ended with an answer.
std::optional<ApiError> error_of(const Completion& end) {
  if (end.finish == Finish::kError) {
    return api_error(end.error.value_or(Error{Code::kInternal, "the engine gave no reason"}));
  }
  if (end.finish == Finish::kCancelled)
    return ApiError{503, "the request was cancelled: the server is shutting down", "", "cancelled"};
  return std::nullopt;
}

void add_usage(Job& job, int choice, const Completion& end) {
  if (choice == 0 && job.record) {
    job.log->ended(*job.record, end);
    if (job.generation.diagnostics) job.usage.set_diagnostics(job.log->json_of(*job.record));
  }
  if (choice % job.choices() == 0) job.usage.add_prompt(end.usage);
  job.usage.add_choice(end);
}

// With echo the prompt's text comes with its log probabilities.
void take_prompt(const Job& job, Event& event, Choice& choice) {
  choice.prompt = std::move(event.prompt);
  if (choice.shown.echoed < 0) return;
  const std::string& text = job.echoes[job.prompt_of(event.choice)];
  choice.prompt_offsets = offsets_in(*job.attached.engine, text, choice.prompt);
  choice.offset = characters(text);
  choice.text += text;
}

Choice& append(const Job& job, std::vector<Choice>& choices, Event& event) {
  const auto i = static_cast<size_t>(event.choice);
  Choice& choice = choices[i];
  TokenDelta& delta = event.delta;
  if (!event.prompt.empty()) take_prompt(job, event, choice);
  choice.text += delta.text;
  choice.tokens += static_cast<int>(delta.ids.size());
  if (job.keeps_ids) choice.ids.insert(choice.ids.end(), delta.ids.begin(), delta.ids.end());
  std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(choice.logprobs));
  if (job.generation.shows_stop && event.end) choice.text += event.end->stop_text;
  if (job.reading) job.readers[i]->read(choice, event.end);
  return choice;
}

std::vector<Choice> empty_choices(const Job& job) {
  std::vector<Choice> choices(static_cast<size_t>(job.answer->size()));
  for (size_t i = 0; i < choices.size(); ++i) {
    choices[i].index = static_cast<int>(i);
    choices[i].with_logprobs = job.generation.sampling.logprobs >= 0;
    choices[i].shown = job.generation.prompt_logprobs;
    choices[i].prompt_tokens = job.lengths[job.prompt_of(choices[i].index)];
    if (job.echoes.empty() || choices[i].shown.echoed >= 0) continue;
    const std::string& echo = job.echoes[job.prompt_of(choices[i].index)];
    if (job.reading) {  // nothing is read in it
      choices[i].events.emplace_back().text = echo;
    } else {
      choices[i].text = echo;
    }
  }
  return choices;
}

void gone(Job& job, httplib::Response& response) {
  job.answer->cancel();
  reply_gone(response);
}

void failed(Job& job, const Event& event, const ApiError& error, httplib::Response& response) {
  if (event.choice == 0 && job.record) job.log->ended(*job.record, *event.end);
  reply_error(response, error, job.shape);
}

void reply_whole(Job& job, httplib::Response& response) {
  std::vector<Choice> choices = empty_choices(job);
  while (!job.answer->finished()) {
    Event event;
    if (wait_event(*job.answer, Clock::time_point::max(), event) == Wait::kGone) return gone(job, response);
    Choice& choice = append(job, choices, event);
    if (!event.end) continue;
    if (auto error = error_of(*event.end)) return failed(job, event, *error, response);
    add_usage(job, event.choice, *event.end);
    choice.end = std::move(event.end);
  }
  reply_json(response, job.writer->whole(choices, job.usage));
}

// Writes a stream from its first event to its last. False: the client is gone.
class StreamSender {
 public:
  StreamSender(Job& job, httplib::DataSink& sink) : job_(job), sink_(sink), choices_(empty_choices(job)) {}

  bool run() {
    AnswerQueue& answer = *job_.answer;
    write(job_.writer->begin(choices_));
    if (job_.first && !take(*job_.first)) return true;
    while (alive_ && !answer.finished()) {
      Event event;
      switch (wait_event(answer, wrote_ + job_.ping_every, event)) {
        case Wait::kGone:
          return false;
        case Wait::kTimeout:
          write(job_.writer->ping());
          break;
        case Wait::kEvent:
          if (!take(event)) return true;
          if (answer.overflowed()) return false;
          // Tokens may come for long of which nothing is sent: reasoning that is left out, a value that is not whole.
          if (Clock::now() >= wrote_ + job_.ping_every) write(job_.writer->ping());
      }
    }
    if (alive_) write(job_.writer->done(choices_, job_.usage));  // every choice has its end
    return alive_;
  }

 private:
  // False: an error ended the stream.
  bool take(Event& event) {
    if (event.progress) write(job_.writer->progress(event.choice, *event.progress));
    if (event.progress) return true;
    Choice& choice = append(job_, choices_, event);
    write(job_.writer->grown(choice));
    if (!event.end) return true;
    if (auto error = error_of(*event.end)) {
      if (event.choice == 0 && job_.record) job_.log->ended(*job_.record, *event.end);
      write(job_.writer->failed(*error));
      return false;
    }
    add_usage(job_, event.choice, *event.end);
    choice.end = std::move(event.end);
    write(job_.writer->ended(choice));
    return true;
  }

  void write(const std::string& text) {
    if (text.empty()) return;
    alive_ = alive_ && sink_.write(text.data(), text.size());
    wrote_ = Clock::now();
  }

  Job& job_;
  httplib::DataSink& sink_;
  std::vector<Choice> choices_;
  Clock::time_point wrote_ = Clock::now();  // when bytes were sent last
  bool alive_ = true;
};

void reply_stream(std::shared_ptr<Job> job, const httplib::Request& request, httplib::Response& response) {
  Event first;
  switch (wait_event(*job->answer, Clock::now() + kHeadPatience, first)) {
    case Wait::kGone:
      return gone(*job, response);
    case Wait::kTimeout:
      break;
    case Wait::kEvent:
      if (first.end) {
        if (auto error = error_of(*first.end)) return failed(*job, first, *error, response);
      }
      job->first = std::move(first);
  }
  reply_events(request, response, [job](httplib::DataSink& sink) {
    Connection& client = *Connection::current();
    AnswerQueue& answer = *job->answer;
    client.set_write_guard([&answer] { return answer.overflowed(); });
    const bool whole = StreamSender(*job, sink).run();
    client.set_write_guard(nullptr);
    if (!whole) answer.cancel();
    return whole;
  });
}

// Of the first prompt's first choice. REQUIRES: prompts are not submitted yet.
void begin_record(Job& job, const Call& call) {
  RequestRecord record;
  record.id = job.writer->id();
  record.tenant = call.caller.tenant->name();
  record.salt = job.generation.cache_space();
  record.created = static_cast<int64_t>(std::time(nullptr));
  record.prompt = compared(job.prompts.front());
  record.prompt.tools = std::move(job.tools);
  record.prompt.systems = job.systems;
  job.record = job.log->begin(std::move(record), job.previous, call.engine());
  if (job.compares) job.writer->diagnosed(anthropic_diagnostics(*job.record, job.has_system));
  if (!job.record->difference) return;
  std::string& path = job.record->difference->path;
  path = job.usage.places().in_own_order(std::move(path));
  if (job.in_own_paths) path = without_content(job.in_own_paths(std::move(path)));
}

// One for each choice of each prompt. Leaves no prompts.
std::vector<Request> requests_of(Job& job) {
  const Generation& generation = job.generation;
  std::vector<Request> requests;
  for (Prompt& prompt : std::exchange(job.prompts, {})) {
    for (int i = 0; i < generation.choices; ++i) {
      Request& request = requests.emplace_back();
      request.prompt = prompt;
      if (generation.retention != Retention::kNone)
        request.prompt.kept.push_back({static_cast<int32_t>(prompt.ids.size()), generation.retention});
      request.sampling = generation.sampling;
      request.constraint = generation.constraint.constraint;
      // With the same seed all choices of a prompt would be the same text.
      if (request.sampling.seed) *request.sampling.seed += static_cast<uint64_t>(i);
      request.policy = generation.policy;
      request.publish = generation.publish;
      request.progress = generation.progress && generation.stream && i == 0;
      request.explain = generation.diagnostics ? Explain::kFull : job.record ? Explain::kBrief : Explain::kNo;
      request.draft = generation.draft;
      request.prompt_logprobs = generation.prompt_logprobs.most();
      request.cache_salt = generation.cache_salt;
      request.namespaces = generation.namespaces;
    }
  }
  return requests;
}

// Submits every choice of every prompt, then answers. REQUIRES: the job has its prompts and its writer.
void run_job(std::shared_ptr<Job> job, const Call& call, httplib::Response& response, const char* prompt_field) {
  call.drop_body();
  const Generation& generation = job->generation;
  if (auto error = check_policy(call.attached, generation.policy)) return reply_error(response, *error, job->shape);
  size_t tokens = 0;
  for (const Prompt& prompt : job->prompts) {
    job->lengths.push_back(static_cast<int>(prompt.ids.size()));
    tokens += prompt.ids.size() * static_cast<size_t>(generation.choices);
  }
  if (Status few = check_prompt_logprobs(generation.prompt_logprobs, tokens); !few.ok())
    return reply_error(response, api_error(few.error(), prompt_field), job->shape);
  const int context = call.engine().info().context;
  if (Status few = check_answer_logprobs(generation.sampling, generation.choices, job->lengths, context);
      !generation.stream && !few.ok())
    return reply_error(response, api_error(few.error()), job->shape);
  const auto reader = generation.stream ? AnswerQueue::Reader::kStream : AnswerQueue::Reader::kWhole;
  job->answer = std::make_unique<AnswerQueue>(call.account(), reader);
  begin_record(*job, call);
  if (Status status = job->answer->submit_all(requests_of(*job)); !status.ok())
    return reply_error(response, api_error(status.error(), prompt_field), job->shape);
  count_hits(std::exchange(job->documents, {}));
  job->log->submitted(job->record, job->answer->id(0));
  for (int i = 0; job->reading && i < job->answer->size(); ++i)
    job->readers.push_back(std::make_unique<ChoiceReader>(*job->reading, job->one_call));
  response.set_header("X-Request-Id", job->writer->id());
  if (generation.stream) {
    reply_stream(std::move(job), call.http, response);
  } else {
    reply_whole(*job, response);
  }
}

std::shared_ptr<Job> new_job(const Service& service, const Call& call) {
  auto job = std::make_shared<Job>();
  job->attached = call.attached;
  job->shape = shape_of(call.http.path);
  job->log = &service.requests();
  job->orders = &service.orders();
  job->ping_every =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(service.options().ping_s));
  return job;
}

// How a chat's answers are read.
void choose_reading(const AnswerSyntax& syntax, const ChatRequest& chat, const Json& body, Job& job) {
  const bool known = syntax.calls.form != CallSyntax::Form::kNone || syntax.messages.calls();
  const bool calls = chat.tools && known;
  if (!calls && syntax.reasoning_end.empty() && !syntax.messages.known()) return;
  job.reading = AnswerReading{syntax, calls, job.prompts[0].opens_reasoning, chat.thoughts};
  if (calls) job.reading->tools = tool_shapes(body.at("tools"));
  if (calls) job.reading->custom_tools = chat.custom_tools;
  job.one_call = chat.one_call;
  std::vector<int32_t>& shown = job.generation.sampling.shown_ids;
  shown = syntax.reasoning_ids;
  if (calls) shown.insert(shown.end(), syntax.call_ids.begin(), syntax.call_ids.end());
}

// Compiles what the answers must be, here and not on the engine's thread.
std::optional<ApiError> check_constraint(const Call& call, const ConstraintRequest& asked, bool opens_reasoning) {
  const Status status = call.engine().check_constraint(asked.constraint, opens_reasoning);
  if (status.ok()) return std::nullopt;
  return api_error({status.error().code, fmt::format("{}: {}", asked.field, status.error().message)}, asked.field);
}

// As the list that they are entries of was arranged.
void reorder(NamedDocuments& documents, const std::vector<size_t>& places) {
  if (documents.empty() || places.empty()) return;
  NamedDocuments ordered;
  for (const size_t place : places) ordered.push_back(std::move(documents[place]));
  documents = std::move(ordered);
}

// A chat body in OpenAI's form becomes the job's settings and its prompt; its documents and tools may get another order.
std::optional<ApiError> read_chat(const Service& service, const Call& call, Json& body, Job& job) {
  auto parsed = parse_chat(body, limits_of(call.attached));
  if (!parsed.ok()) return parsed.error();
  job.generation = std::move(parsed.value().generation);
  if (job.generation.diagnostics) job.generation.include_usage = job.generation.stream;
  if (auto error = check_model(call.attached, job.generation.model)) return error;
  if (auto error = settle_chat(service, call, body, &job.documents)) return error;
  const AnswerSyntax& syntax = call.engine().info().answers;
  const bool tools = parsed.value().tools;
  if (tools && !syntax.tools)
    return ApiError{400, "this model's chat template has no place for tools", "tools", "unsupported"};
  auto places = job.orders->arrange(call.caller.tenant->name(), job.generation.cache_space(), body);
  if (!places.ok()) return api_error(places.error(), "documents_order");
  reorder(job.documents, places.value().documents);
  job.usage.set_places(std::move(places.value()));
  auto prompt = chat_prompt(service, call, body);
  if (!prompt.ok()) return api_error(prompt.error(), "messages");
  KnowledgeWriter::freeze_in(prompt.value(), job.documents);
  job.usage.set_documents(prompt.value().documents);
  job.prompts.push_back(std::move(prompt.value()));
  if (parsed.value().echo) job.echoes.push_back(last_text(body));
  choose_reading(syntax, parsed.value(), body, job);
  if (tools) job.tools = hashes_of(body.at("tools"));
  for (const Json& message : body.at("messages")) {
    if (message.at("role") != "system" && message.at("role") != "developer") break;
    ++job.systems;
  }
  return check_constraint(call, job.generation.constraint, job.prompts[0].opens_reasoning);
}

Envelope envelope_of(const Call& call, const Job& job, bool chat) {
  Envelope out = make_envelope(chat, call.attached.model, call.attached.fingerprint);
  out.tokens_as_ids = job.generation.tokens_as_ids;
  return out;
}

StreamUsage usage_in_stream(const Generation& generation) {
  if (generation.usage_in_chunks) return StreamUsage::kEvery;
  return generation.include_usage ? StreamUsage::kLast : StreamUsage::kNone;
}

void chat(const Service& service, const Call& call, httplib::Response& response) {
  auto job = new_job(service, call);
  if (auto error = read_chat(service, call, call.body, *job)) return reply_error(response, *error);
  job->writer = openai_writer(envelope_of(call, *job, true), call.engine(), usage_in_stream(job->generation));
  run_job(std::move(job), call, response, "messages");
}

// The same for a body of Anthropic's: what was made of it is gone when this returns, but for what it was made of.
std::optional<ApiError> read_messages(const Service& service, const Call& call, Job& job) {
  auto converted = to_openai_chat(std::move(call.body), limits_of(call.attached), MessagesUse::kAnswer);
  if (!converted.ok()) return converted.error();
  job.shows_thinking = converted.value().shows_thinking;
  const std::vector<std::string>& sources = converted.value().sources;
  job.has_system = !sources.empty() && sources[0] == "system";
  auto error = read_chat(service, call, converted.value().body, job);
  if (error) error->message = converted.value().in_own_paths(std::move(error->message));
  converted.value().body = nullptr;
  job.in_own_paths = [made = std::move(converted.value())](std::string path) {
    return made.in_own_paths(std::move(path));
  };
  return error;
}

// `diagnostics`: {"previous_message_id"}, and an answer that says where the prompt differs from that message's.
std::optional<ApiError> read_diagnostics(const Json& body, Job& job) {
  const auto asked = body.is_object() ? body.find("diagnostics") : body.end();
  if (!body.is_object() || asked == body.end() || asked->is_null()) return std::nullopt;
  if (!asked->is_object())
    return ApiError{400, "diagnostics: must be an object with \"previous_message_id\"", "diagnostics", ""};
  Fields fields(*asked, "diagnostics.");
  fields.string("previous_message_id", &job.previous, kMostIdBytes);
  job.compares = true;
  return fields.error();
}

void messages(const Service& service, const Call& call, httplib::Response& response) {
  auto job = new_job(service, call);
  if (auto error = read_diagnostics(call.body, *job)) return reply_error(response, *error, job->shape);
  if (auto error = read_messages(service, call, *job)) return reply_error(response, *error, job->shape);
  job->generation.diagnostics |= job->compares;
  job->writer = anthropic_writer(call.attached.model, job->prompts[0].ids.size(), job->shows_thinking);
  response.set_header("request-id", job->writer->id());
  run_job(std::move(job), call, response, "messages");
}

void count_tokens(const Service& service, const Call& call, httplib::Response& response) {
  const auto refuse = [&](const ApiError& error) { reply_error(response, error, ApiShape::kAnthropic); };
  const RequestLimits limits = limits_of(call.attached);
  auto converted = to_openai_chat(std::move(call.body), limits, MessagesUse::kCount);
  if (!converted.ok()) return refuse(converted.error());
  OpenAiChat& counted = converted.value();
  const auto named = parse_tokenize(counted.body, limits);
  if (!named.ok()) return refuse(named.error());
  if (auto error = check_model(call.attached, named.value().model)) return refuse(*error);
  if (auto error = settle_chat(service, call, counted.body)) return refuse(*error);
  const auto prompt = chat_prompt(service, call, counted.body);
  if (!prompt.ok()) return refuse(api_error({prompt.error().code, counted.in_own_paths(prompt.error().message)}));
  reply_json(response, {{"input_tokens", prompt.value().ids.size()}});
}

// llama.cpp's: a chat's body to the number of its prompt's tokens.
void count_chat(const Service& service, const Call& call, httplib::Response& response) {
  const auto named = parse_chat(call.body, limits_of(call.attached));
  if (!named.ok()) return reply_error(response, named.error());
  if (auto error = check_model(call.attached, named.value().generation.model)) return reply_error(response, *error);
  if (auto error = settle_chat(service, call, call.body)) return reply_error(response, *error);
  const auto prompt = chat_prompt(service, call, call.body);
  if (!prompt.ok()) return reply_error(response, api_error(prompt.error(), "messages"));
  reply_json(response, {{"input_tokens", prompt.value().ids.size()}});
}

// Of a text completion with a suffix: the tokens to ask with. Generation stops where they come up.
ApiResult<std::optional<InfillTokens>> suffix_tokens(const Engine& engine, const TextRequest& wanted,
                                                     SamplingParams& sampling) {
  if (wanted.suffix.empty()) return std::optional<InfillTokens>();
  auto found = InfillTokens::find(engine);
  if (!found.ok()) return api_error(found.error(), "suffix");
  const auto& ends = found.value().ends;
  sampling.stop_ids.insert(sampling.stop_ids.end(), ends.begin(), ends.end());
  return std::optional(std::move(found.value()));
}

// The prompt of a text completion; with echo, its text too.
Result<Prompt> text_prompt(const Engine& engine, const TextRequest& wanted, size_t i,
                           const std::optional<InfillTokens>& fill, std::vector<std::string>& echoes) {
  Prompt prompt;
  if (fill) {
    const InfillText text{std::get<std::string>(wanted.prompts[i]), wanted.suffix, "", {}};
    KVILT_ASSIGN(InfillPrompt made, infill_prompt(engine, *fill, text, 0));
    return std::move(made.prompt);
  }
  if (const auto* text = std::get_if<std::string>(&wanted.prompts[i])) {
    KVILT_ASSIGN(prompt.ids, engine.tokenize(*text, true, wanted.add_special_tokens));
    if (wanted.echo) echoes.push_back(*text);
  } else {
    prompt.ids = std::get<std::vector<int32_t>>(wanted.prompts[i]);
    if (wanted.echo) {
      KVILT_ASSIGN(std::string text_of_ids, engine.detokenize(prompt.ids));
      echoes.push_back(std::move(text_of_ids));
    }
  }
  if (prompt.ids.empty()) return Error{Code::kInvalidArgument, "the prompt has no tokens"};
  return prompt;
}

// What the context holds of a prompt before its answer. One that may be as long as the context ends with it, as it does
// behind a short prompt: it needs room for one token.
int room_for_prompt(int context, int max_tokens) {
  return context - (max_tokens < context ? std::max(1, max_tokens) : 1);
}

void completion(const Service& service, const Call& call, httplib::Response& response) {
  auto parsed = parse_completion(call.body, limits_of(call.attached));
  if (!parsed.ok()) return reply_error(response, parsed.error());
  TextRequest& text = parsed.value();
  auto job = new_job(service, call);
  job->generation = std::move(text.generation);
  if (job->generation.diagnostics) job->generation.include_usage = job->generation.stream;
  if (auto error = check_model(call.attached, job->generation.model)) return reply_error(response, *error);
  const auto fill = suffix_tokens(call.engine(), text, job->generation.sampling);
  if (!fill.ok()) return reply_error(response, fill.error());
  for (size_t i = 0; i < text.prompts.size(); ++i) {
    auto prompt = text_prompt(call.engine(), text, i, fill.value(), job->echoes);
    if (!prompt.ok()) {
      return reply_error(response,
                         api_error(prompt.error(), text.prompts.size() > 1 ? fmt::format("prompt[{}]", i) : "prompt"));
    }
    keep_last(prompt.value().ids, text.last_tokens,
              room_for_prompt(call.engine().info().context, job->generation.sampling.max_tokens));
    job->prompts.push_back(std::move(prompt.value()));
  }
  text.prompts.clear();
  if (auto error = check_constraint(call, job->generation.constraint, false)) return reply_error(response, *error);
  job->writer = openai_writer(envelope_of(call, *job, false), call.engine(), usage_in_stream(job->generation));
  run_job(std::move(job), call, response, "prompt");
}

}  // namespace

void answer_chat(const Service& service, const Call& call, ChatJob chat, httplib::Response& response) {
  auto job = new_job(service, call);
  if (auto error = read_chat(service, call, chat.body, *job)) {
    chat.in_own_paths(*error);
    return reply_error(response, *error, job->shape);
  }
  chat.body = nullptr;
  job->in_own_paths = [in_own_paths = chat.in_own_paths](std::string path) {
    ApiError told{400, std::move(path), "", ""};
    in_own_paths(told);
    return told.message;
  };
  job->writer = chat.writer();
  run_job(std::move(job), call, response, chat.field);
}

void answer_text(const Service& service, const Call& call, TextJob text, httplib::Response& response) {
  auto job = new_job(service, call);
  job->generation = std::move(text.generation);
  job->prompts = std::move(text.prompts);
  job->writer = std::move(text.writer);
  job->keeps_ids = true;
  if (auto error = check_constraint(call, job->generation.constraint, false)) return reply_error(response, *error);
  run_job(std::move(job), call, response, text.field);
}

void add_generate_routes(Service& service) {
  const auto with_options = [&service](void (*handler)(const Service&, const Call&, httplib::Response&)) {
    return [&service, handler](const Call& call, httplib::Response& response) { handler(service, call, response); };
  };
  // Without /v1 too, as llama.cpp has them: a client's base_url is often given without it. (/completions is llama.cpp's.)
  for (const std::string base : {"", "/v1"}) {
    service.post(base + "/chat/completions", with_options(chat));
    service.post(base + "/chat/completions/input_tokens", with_options(count_chat));
  }
  service.post("/v1/completions", with_options(completion));
  service.post("/v1/messages", with_options(messages));
  service.post("/v1/messages/count_tokens", with_options(count_tokens));
}

}  // namespace kvilt::server
