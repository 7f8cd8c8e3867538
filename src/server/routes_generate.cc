// server/routes_generate.cc: POST /v1/chat/completions and /v1/completions, whole and streamed.
// Role:       parsed request -> one engine request per choice (answer_queue.h) -> JSON or SSE (openai_response.h,
//             sse.h).
// Invariants: while an answer is made, the client's socket is checked every AnswerQueue::kLook; when the client is gone,
//             the whole request is cancelled at once. Errors before the first token get their HTTP status; later ones
//             end the stream with an event {"error": ...}.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

#include "server/answer_queue.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "server/service.h"
#include "server/sse.h"

namespace kvilt::server {
namespace {

// How long a stream's head waits for the first token, so that an early error can still have a status.
constexpr auto kHeadPatience = std::chrono::seconds(5);

// One HTTP request that is being answered.
struct Job {
  Attached attached;
  Envelope envelope;
  Generation generation;
  std::vector<std::string> echoes;  // per prompt, with echo
  std::unique_ptr<AnswerQueue> answer;
  std::optional<Event> first;  // of a stream: already taken out of the answer
  UsageSum usage;

  Engine& engine() const { return *attached.engine; }
  // Choices of one prompt follow each other.
  int choices() const { return generation.choices; }
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
  if (choice % job.choices() == 0) job.usage.add_prompt(end.usage);
  job.usage.add_choice(end);
}

void append(Choice& choice, TokenDelta& delta) {
  choice.text += delta.text;
  std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(choice.logprobs));
}

std::vector<Choice> empty_choices(const Job& job) {
  std::vector<Choice> choices(static_cast<size_t>(job.answer->size()));
  for (size_t i = 0; i < choices.size(); ++i) {
    choices[i].index = static_cast<int>(i);
    choices[i].with_logprobs = job.generation.sampling.logprobs >= 0;
    if (!job.echoes.empty()) choices[i].text = job.echoes[i / static_cast<size_t>(job.choices())];
  }
  return choices;
}

void gone(Job& job, httplib::Response& response) {
  job.answer->cancel();
  Connection::current()->close_after_response();
  response.status = 499;  // nobody reads it; the log and the metrics do
  response.set_content(" ", "text/plain");
}

void reply_whole(Job& job, httplib::Response& response) {
  std::vector<Choice> choices = empty_choices(job);
  while (!job.answer->finished()) {
    Event event;
    if (wait_event(*job.answer, Clock::time_point::max(), event) == Wait::kGone) return gone(job, response);
    Choice& choice = choices[event.choice];
    append(choice, event.delta);
    if (!event.end) continue;
    if (auto error = error_of(*event.end)) return reply_error(response, *error);
    add_usage(job, event.choice, *event.end);
    choice.end = std::move(event.end);
  }
  reply_json(response, whole_answer(job.envelope, job.engine(), choices, job.usage));
}

// Writes a stream from its first event to [DONE]. False: the client is gone.
class StreamWriter {
 public:
  StreamWriter(Job& job, httplib::DataSink& sink) : job_(job), sink_(sink), choices_(empty_choices(job)) {
    for (Choice& choice : choices_) {
      if (job.envelope.chat) continue;
      if (!choice.text.empty()) write_delta(choice);
    }
    started_.resize(choices_.size());
  }

  bool run() {
    AnswerQueue& answer = *job_.answer;
    if (job_.first && !take(*job_.first)) return true;
    while (alive_ && !answer.finished()) {
      Event event;
      if (wait_event(answer, Clock::time_point::max(), event) == Wait::kGone) return false;
      if (!take(event)) return true;
      if (answer.overflowed()) return false;
    }
    if (alive_ && job_.generation.include_usage) write(sse_event(usage_chunk(job_.envelope, job_.usage)));
    if (alive_) write(std::string(kSseDone));
    return alive_;
  }

 private:
  // False: an error ended the stream.
  bool take(Event& event) {
    Choice& choice = choices_[event.choice];
    if (job_.envelope.chat && !started_[event.choice]) {
      started_[event.choice] = true;
      write(sse_event(role_chunk(job_.envelope, choice.index, job_.generation.include_usage)));
    }
    append(choice, event.delta);
    if (!choice.text.empty() || !choice.logprobs.empty()) write_delta(choice);
    if (!event.end) return true;
    if (auto error = error_of(*event.end)) {
      write("data: " + error_body(*error) + "\n\n");
      write(std::string(kSseDone));
      return false;
    }
    add_usage(job_, event.choice, *event.end);
    write(sse_event(end_chunk(job_.envelope, choice.index, *event.end, job_.generation.include_usage)));
    return true;
  }

  void write_delta(Choice& choice) {
    write(sse_event(delta_chunk(job_.envelope, job_.engine(), choice, job_.generation.include_usage)));
    choice.text.clear();
    choice.logprobs.clear();
  }

  void write(const std::string& text) { alive_ = alive_ && sink_.write(text.data(), text.size()); }

  Job& job_;
  httplib::DataSink& sink_;
  std::vector<Choice> choices_;
  std::vector<bool> started_;
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
        if (auto error = error_of(*first.end)) return reply_error(response, *error);
      }
      job->first = std::move(first);
  }
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  // One call writes the whole stream: httplib asks between calls whether the server stops, and would cut it off.
  const auto provider = [job](size_t, httplib::DataSink& sink) {
    Connection& client = *Connection::current();
    AnswerQueue& answer = *job->answer;
    client.set_write_guard([&answer] { return answer.overflowed(); });
    const bool whole = StreamWriter(*job, sink).run();
    client.set_write_guard(nullptr);
    if (!whole) {
      answer.cancel();
      client.close_after_response();
      return false;
    }
    sink.done();
    return true;
  };
  if (request.version == "HTTP/1.0") {  // has no chunks: the end of the connection ends the stream
    Connection::current()->close_after_response();
    response.set_content_provider("text/event-stream", provider);
  } else {
    response.set_chunked_content_provider("text/event-stream", provider);
  }
}

// Submits every choice of every prompt, then answers.
void run_job(std::shared_ptr<Job> job, std::vector<Prompt> prompts, const Call& call, httplib::Response& response,
             const char* prompt_field) {
  call.drop_body();
  const Generation& generation = job->generation;
  if (auto error = check_policy(call.attached, generation.policy)) return reply_error(response, *error);
  const auto reader = generation.stream ? AnswerQueue::Reader::kStream : AnswerQueue::Reader::kWhole;
  job->answer = std::make_unique<AnswerQueue>(call.account(), reader);
  for (Prompt& prompt : prompts) {
    for (int i = 0; i < generation.choices; ++i) {
      Request request;
      request.prompt = prompt;
      request.sampling = generation.sampling;
      // With the same seed all choices of a prompt would be the same text.
      if (request.sampling.seed) *request.sampling.seed += static_cast<uint64_t>(i);
      request.policy = generation.policy;
      request.publish = generation.publish;
      request.cache_salt = generation.cache_salt;
      if (Status status = job->answer->submit(std::move(request)); !status.ok()) {
        return reply_error(response, api_error(status.error(), prompt_field));
      }
    }
  }
  response.set_header("X-Request-Id", job->envelope.id);
  if (generation.stream) {
    reply_stream(std::move(job), call.http, response);
  } else {
    reply_whole(*job, response);
  }
}

void chat(const Call& call, httplib::Response& response) {
  auto parsed = parse_chat(call.body, limits_of(call.engine()));
  if (!parsed.ok()) return reply_error(response, parsed.error());
  auto job = std::make_shared<Job>();
  job->generation = std::move(parsed.value().generation);
  if (auto error = check_model(call.attached, job->generation.model)) return reply_error(response, *error);
  auto prompt = call.engine().chat_prompt(call.body);
  if (!prompt.ok()) return reply_error(response, api_error(prompt.error(), "messages"));
  job->attached = call.attached;
  job->envelope = make_envelope(true, call.attached.model);
  std::vector<Prompt> prompts;
  prompts.push_back(std::move(prompt.value()));
  run_job(std::move(job), std::move(prompts), call, response, "messages");
}

// The prompt of a text completion; with echo, its text too.
Result<Prompt> text_prompt(const Engine& engine, const TextPrompt& source, bool echo,
                           std::vector<std::string>& echoes) {
  Prompt prompt;
  if (const auto* text = std::get_if<std::string>(&source)) {
    KVILT_ASSIGN(prompt.ids, engine.tokenize(*text, true, true));
    if (echo) echoes.push_back(*text);
  } else {
    prompt.ids = std::get<std::vector<int32_t>>(source);
    if (echo) {
      KVILT_ASSIGN(std::string text_of_ids, engine.detokenize(prompt.ids));
      echoes.push_back(std::move(text_of_ids));
    }
  }
  if (prompt.ids.empty()) return Error{Code::kInvalidArgument, "the prompt has no tokens"};
  return prompt;
}

void completion(const Call& call, httplib::Response& response) {
  auto parsed = parse_completion(call.body, limits_of(call.engine()));
  if (!parsed.ok()) return reply_error(response, parsed.error());
  TextRequest& text = parsed.value();
  auto job = std::make_shared<Job>();
  job->generation = std::move(text.generation);
  if (auto error = check_model(call.attached, job->generation.model)) return reply_error(response, *error);
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < text.prompts.size(); ++i) {
    auto prompt = text_prompt(call.engine(), text.prompts[i], text.echo, job->echoes);
    if (!prompt.ok()) {
      return reply_error(response,
                         api_error(prompt.error(), text.prompts.size() > 1 ? fmt::format("prompt[{}]", i) : "prompt"));
    }
    prompts.push_back(std::move(prompt.value()));
  }
  text.prompts.clear();
  job->attached = call.attached;
  job->envelope = make_envelope(false, call.attached.model);
  run_job(std::move(job), std::move(prompts), call, response, "prompt");
}

}  // namespace

void add_generate_routes(Service& service) {
  service.post("/v1/chat/completions", chat);
  service.post("/v1/completions", completion);
}

}  // namespace kvilt::server
