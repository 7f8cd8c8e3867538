#include "server/anthropic_response.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "server/sse.h"

namespace kvilt::server {
namespace {

// stop_reason and stop_sequence of an answer that was not cut short by an error.
Json stop_of(const Completion& end) {
  const bool by_text = end.finish == Finish::kStop && !end.stop_text.empty();
  return {{"stop_reason", end.finish == Finish::kLength ? "max_tokens"
                          : by_text                     ? "stop_sequence"
                                                        : "end_turn"},
          {"stop_sequence", by_text ? Json(end.stop_text) : Json(nullptr)}};
}

Json text_block(const std::string& text) { return {{"type", "text"}, {"text", text}}; }

class AnthropicWriter final : public AnswerWriter {
 public:
  AnthropicWriter(std::string model, size_t prompt_tokens)
      : id_(answer_id("msg_")), model_(std::move(model)), prompt_tokens_(prompt_tokens) {}

  const std::string& id() const override { return id_; }

  Json whole(const std::vector<Choice>& choices, const UsageSum& usage) const override {
    const Choice& choice = choices.at(0);
    Json json = message(Json::array({text_block(choice.text)}));
    json.update(stop_of(*choice.end));
    json["usage"] = anthropic_usage(usage);
    return json;
  }

  std::string begin(std::vector<Choice>& choices) override {
    CHECK(choices.size() == 1);
    Json start = message(Json::array());
    start["usage"] = {{"input_tokens", prompt_tokens_},
                      {"cache_creation_input_tokens", 0},
                      {"cache_read_input_tokens", 0},
                      {"output_tokens", 0}};
    return event({{"type", "message_start"}, {"message", std::move(start)}}) + ping();
  }

  std::string grown(Choice& choice) override {
    if (choice.text.empty()) return {};
    std::string events = open_text();
    events += event({{"type", "content_block_delta"},
                     {"index", kText},
                     {"delta", {{"type", "text_delta"}, {"text", choice.text}}}});
    choice.text.clear();
    return events;
  }

  std::string ended(const Choice&) override {
    return open_text() + event({{"type", "content_block_stop"}, {"index", kText}});
  }

  std::string done(const std::vector<Choice>& choices, const UsageSum& usage) override {
    return event(
               {{"type", "message_delta"}, {"delta", stop_of(*choices.at(0).end)}, {"usage", anthropic_usage(usage)}}) +
           event({{"type", "message_stop"}});
  }

  std::string failed(const ApiError& error) override {
    return "event: error\ndata: " + error_body(error, ApiShape::kAnthropic) + "\n\n";
  }

  std::string ping() const override { return event({{"type", "ping"}}); }

 private:
  Json message(Json content) const {
    return {{"id", id_},          {"type", "message"},      {"role", "assistant"},     {"model", model_},
            {"content", content}, {"stop_reason", nullptr}, {"stop_sequence", nullptr}};
  }

  // An event's name is its type.
  static std::string event(const Json& json) { return sse_event(json["type"].get_ref<const std::string&>(), json); }

  // The block that text goes into, begun once.
  std::string open_text() {
    if (open_) return {};
    open_ = true;
    return event({{"type", "content_block_start"}, {"index", kText}, {"content_block", text_block("")}});
  }

  const std::string id_, model_;
  const size_t prompt_tokens_;
  static constexpr int kText = 0;  // the index of the block
  bool open_ = false;
};

}  // namespace

Json anthropic_usage(const UsageSum& usage) {
  const PromptUsage& prompt = usage.prompt();
  const int read = prompt.prefix + prompt.reused;
  return {{"input_tokens", prompt.prompt - read},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", read},
          {"output_tokens", usage.completion_tokens()},
          {"kvilt", kvilt_usage(prompt)}};
}

std::unique_ptr<AnswerWriter> anthropic_writer(std::string model, size_t prompt_tokens) {
  return std::make_unique<AnthropicWriter>(std::move(model), prompt_tokens);
}

}  // namespace kvilt::server
