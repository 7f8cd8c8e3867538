// server/answer_writer.h: what routes_generate.cc asks of an API's form of answers.
// Role:       one implementation for each API (openai_response.h, anthropic_response.h); the route waits for tokens,
//             looks after the client and sends, the writer says what is sent.
// Invariants: of a stream the calls are begin, then grown and ended as events come (ended once a choice), then done or
//             failed, once. ping and progress may come between any two of them.
// Threads:    a writer belongs to the HTTP thread of its answer.
// Not here:   waiting for tokens (answer_queue.h), framing (sse.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvilt/engine.h"
#include "server/answer_parser.h"
#include "server/json_fields.h"
#include "server/part_orders.h"
#include "server/prompt_logprobs.h"

namespace kvilt::server {

// Whether max_tokens or a stop string ended an answer, with which the model would have gone on.
inline bool is_cut(const Completion& end) { return end.finish == Finish::kLength || !end.stop_text.empty(); }

// One choice as it grows. What it says is `text`, then `events`: where answers are read, all is in these.
struct Choice {
  int index = 0;
  std::string text;
  std::vector<AnswerEvent> events;  // choice_reader.h
  bool called = false;              // there is a tool call
  std::vector<int32_t> ids;         // what `text` was made of, and tokens whose text is held back
  std::vector<TokenLogprob> logprobs;
  int prompt_tokens = 0, tokens = 0;  // of its prompt, and of the answer so far
  bool with_logprobs = false;
  size_t offset = 0;                   // characters before logprobs[0]: text completions report it per token
  PromptLogprobs shown;                // of the prompt's tokens
  std::vector<TokenLogprob> prompt;    // these, once they are known
  std::vector<size_t> prompt_offsets;  // with shown.echoed: characters before each
  std::optional<Completion> end;
};

// usage of a whole HTTP request: every prompt counts once (its first choice's numbers), every choice's tokens count.
class UsageSum {
 public:
  void add_prompt(const PromptUsage& usage);
  // Of the request as a whole (request_log.h), where it was asked for.
  void set_diagnostics(Json diagnostics);
  const std::shared_ptr<const Json>& diagnostics() const { return diagnostics_; }
  // Where the server chose the order of documents or tools.
  void set_places(PartPlaces places) { places_ = std::move(places); }
  const PartPlaces& places() const { return places_; }
  // Of a chat with documents.
  void set_documents(DocumentsPlace place) { documents_ = place; }
  DocumentsPlace documents() const { return documents_; }
  void add_choice(const Completion& completion) {
    completion_tokens_ += completion.completion_tokens;
    sum_.drafted += completion.usage.drafted;
    sum_.accepted += completion.usage.accepted;
  }
  const PromptUsage& prompt() const { return sum_; }
  int64_t completion_tokens() const { return completion_tokens_; }

 private:
  int64_t completion_tokens_ = 0;
  PromptUsage sum_;
  std::shared_ptr<const Json> diagnostics_;
  PartPlaces places_;
  DocumentsPlace documents_ = DocumentsPlace::kNone;
};

// `usage.kvilt`, the same in every API: where the prompt's KV came from; of a whole request with its diagnostics.
Json kvilt_usage(const PromptUsage& usage);
Json kvilt_usage(const UsageSum& usage);

// llama.cpp's `prompt_progress`.
Json progress_json(const PromptProgress& progress);

// PREFIX and 24 random hexadecimal digits.
std::string answer_id(const char* prefix);

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual const std::string& id() const = 0;
  // What a client asked to be told of the prompt beside its answer; before anything is sent.
  virtual void diagnosed(const Json& diagnostics) {}

  // Every choice has its end.
  virtual Json whole(const std::vector<Choice>& choices, const UsageSum& usage) const = 0;

  // Texts of events; empty: nothing to send. What a text holds of a choice's `text`, `events`, `logprobs` and `prompt`
  // is taken out of it.
  virtual std::string begin(std::vector<Choice>& choices) = 0;  // before the first token
  virtual std::string grown(Choice& choice) = 0;
  virtual std::string progress(int choice, const PromptProgress& progress) const { return {}; }
  virtual std::string ended(const Choice& choice) = 0;
  virtual std::string done(const std::vector<Choice>& choices, const UsageSum& usage) = 0;
  virtual std::string failed(const ApiError& error) = 0;
  virtual std::string ping() = 0;  // after a silence
};

}  // namespace kvilt::server
