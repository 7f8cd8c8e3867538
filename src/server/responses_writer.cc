#include "server/responses_writer.h"

#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "server/sse.h"

namespace kvilt::server {
namespace {

using Kind = AnswerEvent::Kind;

Json text_part_of(const std::string& text) {
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
}

Json reasoning_part_of(const std::string& text) { return {{"type", "reasoning_text"}, {"text", text}}; }

// The answer's items as they grow. What a client is told of each step goes to `say` (an event without its number).
class OutputItems {
 public:
  using Say = std::function<void(Json event)>;
  // namespaces outlive it.
  OutputItems(const ToolNamespaces& namespaces, Say say) : namespaces_(namespaces), say_(std::move(say)) {}

  void take(const AnswerEvent& said) {
    if (said.kind == Kind::kCallEnd) {
      if (!said.inferred) close("completed");
      return;
    }
    if (said.kind == Kind::kArguments) {
      text_ += said.text;
      return say(event(said.custom ? "response.custom_tool_call_input.delta" : "response.function_call_arguments.delta",
                       {{"delta", said.text}}));
    }
    const bool goes_on = said.apart && open_ == said.kind;  // the call between them was left out
    open(said);
    if (said.kind == Kind::kCallStart) return;
    const std::string text = (goes_on ? "\n" : "") + said.text;
    text_ += text;
    Json delta = {{"content_index", 0}, {"delta", text}};
    if (said.kind == Kind::kContent) delta["logprobs"] = Json::array();
    say(event(said.kind == Kind::kContent ? "response.output_text.delta" : "response.reasoning_text.delta",
              std::move(delta)));
  }

  // The answer is whole. Where it was cut, what is open is not complete: a stop string ends a message, but no call.
  void finish(const Completion& end) {
    const bool full = end.finish == Finish::kLength;
    if (!readable_ && !(full && open_)) open({Kind::kContent, "", -1, ""});
    const bool broken = open_ == Kind::kCallStart && is_cut(end);
    close(full || broken ? "incomplete" : "completed");
  }

  const Json& items() const { return items_; }
  const std::string& reasoning() const { return reasoning_; }

 private:
  // An event about the open item.
  Json event(const char* type, Json more) const {
    Json out = {{"type", type}, {"item_id", item_["id"]}, {"output_index", items_.size()}};
    out.update(more);
    return out;
  }
  void say(Json event) const { say_(std::move(event)); }

  // An item for it is open, and it is of this kind. A call is always a new one.
  void open(const AnswerEvent& said) {
    if (open_ == said.kind && said.kind != Kind::kCallStart) return;
    close("completed");
    open_ = said.kind;
    readable_ |= said.kind != Kind::kReasoning;
    item_ = begun(said);
    say({{"type", "response.output_item.added"}, {"output_index", items_.size()}, {"item", item_}});
    if (said.kind != Kind::kCallStart)
      say(event("response.content_part.added", {{"content_index", 0}, {"part", part("")}}));
  }

  Json begun(const AnswerEvent& said) const {
    if (said.kind == Kind::kCallStart) return begun_call(said);
    if (said.kind == Kind::kReasoning) {
      return {{"id", answer_id("rs_")},   {"type", "reasoning"},      {"status", "in_progress"},
              {"summary", Json::array()}, {"content", Json::array()}, {"encrypted_content", nullptr}};
    }
    return {{"id", answer_id("msg_")},
            {"type", "message"},
            {"status", "in_progress"},
            {"role", "assistant"},
            {"content", Json::array()}};
  }

  Json begun_call(const AnswerEvent& said) const {
    const auto found = namespaces_.find(said.text);
    const bool spaced = found != namespaces_.end();
    Json out = {{"id", answer_id(said.custom ? "ctc_" : "fc_")},
                {"type", said.custom ? "custom_tool_call" : "function_call"},
                {"status", "in_progress"},
                {"call_id", said.id},
                {"name", spaced ? found->second.name : said.text}};
    if (spaced) out["namespace"] = found->second.space;
    out[said.custom ? "input" : "arguments"] = "";
    return out;
  }

  Json part(const std::string& text) const {
    return open_ == Kind::kReasoning ? reasoning_part_of(text) : text_part_of(text);
  }

  void close(const char* status) {
    if (!open_) return;
    if (open_ == Kind::kCallStart && item_.contains("input")) {
      say(event("response.custom_tool_call_input.done", {{"input", text_}}));
      item_["input"] = std::move(text_);
    } else if (open_ == Kind::kCallStart) {
      say(event("response.function_call_arguments.done", {{"name", item_["name"]}, {"arguments", text_}}));
      item_["arguments"] = std::move(text_);
    } else {
      Json done = {{"content_index", 0}, {"text", text_}};
      if (open_ == Kind::kContent) done["logprobs"] = Json::array();
      say(event(open_ == Kind::kContent ? "response.output_text.done" : "response.reasoning_text.done",
                std::move(done)));
      item_["content"].push_back(part(text_));
      say(event("response.content_part.done", {{"content_index", 0}, {"part", item_["content"][0]}}));
      if (open_ == Kind::kReasoning) reasoning_ += text_;
    }
    text_.clear();
    item_["status"] = status;
    say({{"type", "response.output_item.done"}, {"output_index", items_.size()}, {"item", item_}});
    items_.push_back(std::move(item_));
    open_.reset();
  }

  const ToolNamespaces& namespaces_;
  const Say say_;
  Json items_ = Json::array();  // closed ones
  std::optional<Kind> open_;    // of the open item
  Json item_;
  std::string text_, reasoning_;  // of the open item; of all closed reasoning items
  bool readable_ = false;         // a message or a call was begun
};

class ResponsesWriter final : public AnswerWriter {
 public:
  ResponsesWriter(ResponseForm form, const Engine& engine)
      : id_(answer_id("resp_")),
        created_(static_cast<int64_t>(std::time(nullptr))),
        form_(std::move(form)),
        engine_(engine),
        output_(form_.namespaces, [this](Json event) { pending_ += numbered(std::move(event)); }) {}

  const std::string& id() const override { return id_; }

  Json whole(const std::vector<Choice>& choices, const UsageSum& usage) const override {
    const Choice& choice = choices.at(0);
    OutputItems output(form_.namespaces, [](const Json&) {});
    if (!choice.text.empty()) output.take({Kind::kContent, choice.text, -1, ""});
    for (const AnswerEvent& said : joined(choice.events)) output.take(said);
    output.finish(*choice.end);
    return complete(output, choice, usage);
  }

  std::string begin(std::vector<Choice>& choices) override {
    CHECK(choices.size() == 1);
    const Json start = response("in_progress", Json::array());
    std::string events = numbered({{"type", "response.created"}, {"response", start}});
    events += numbered({{"type", "response.in_progress"}, {"response", start}});
    return events;
  }

  std::string grown(Choice& choice) override {
    if (!choice.text.empty()) output_.take({Kind::kContent, std::exchange(choice.text, {}), -1, ""});
    for (const AnswerEvent& said : joined(std::exchange(choice.events, {}))) output_.take(said);
    return std::exchange(pending_, {});
  }

  std::string ended(const Choice& choice) override {
    output_.finish(*choice.end);
    return std::exchange(pending_, {});
  }

  std::string done(const std::vector<Choice>& choices, const UsageSum& usage) override {
    const bool cut = choices.at(0).end->finish == Finish::kLength;
    Json last = {{"type", cut ? "response.incomplete" : "response.completed"}};
    last["response"] = complete(output_, choices.at(0), usage);
    return numbered(std::move(last));
  }

  std::string failed(const ApiError& error) override {
    Json broken = response("failed", output_.items());
    broken["error"] = {{"code", error.code.empty() ? "server_error" : error.code}, {"message", error.message}};
    return numbered({{"type", "response.failed"}, {"response", std::move(broken)}});
  }

  // Clients such as Codex take no notice of a comment: they give up a stream that is silent for minutes.
  std::string ping() override {
    return numbered({{"type", "response.in_progress"}, {"response", response("in_progress", output_.items())}});
  }

 private:
  // An event's name is its type.
  std::string numbered(Json event) {
    event["sequence_number"] = sequence_++;
    return sse_event(event["type"].get_ref<const std::string&>(), event);
  }

  Json response(const char* status, Json output) const {
    Json out = {{"id", id_},
                {"object", "response"},
                {"created_at", created_},
                {"status", status},
                {"background", false},
                {"error", nullptr},
                {"incomplete_details", nullptr},
                {"model", form_.model},
                {"output", std::move(output)},
                {"store", form_.store}};
    out.update(form_.repeated);
    out["usage"] = nullptr;
    return out;
  }

  Json complete(const OutputItems& output, const Choice& choice, const UsageSum& usage) const {
    const bool cut = choice.end->finish == Finish::kLength;
    Json out = response(cut ? "incomplete" : "completed", output.items());
    if (cut) out["incomplete_details"] = {{"reason", "max_output_tokens"}};
    const PromptUsage& prompt = usage.prompt();
    out["usage"] = {{"input_tokens", prompt.prompt},
                    {"input_tokens_details", {{"cached_tokens", prompt.prefix + prompt.reused - prompt.recomputed}}},
                    {"output_tokens", usage.completion_tokens()},
                    {"output_tokens_details", {{"reasoning_tokens", tokens_of(output.reasoning())}}},
                    {"total_tokens", prompt.prompt + usage.completion_tokens()},
                    {"kvilt", kvilt_usage(usage)}};
    if (form_.store) out["store"] = form_.keep(out);
    return out;
  }

  size_t tokens_of(const std::string& text) const {
    if (text.empty()) return 0;
    const auto ids = engine_.tokenize(text, false, false);
    return ids.ok() ? ids.value().size() : 0;
  }

  const std::string id_;
  const int64_t created_;
  const ResponseForm form_;
  const Engine& engine_;
  OutputItems output_;   // of a stream
  std::string pending_;  // its events that were not handed out yet
  int64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<AnswerWriter> responses_writer(ResponseForm form, const Engine& engine) {
  return std::make_unique<ResponsesWriter>(std::move(form), engine);
}

}  // namespace kvilt::server
