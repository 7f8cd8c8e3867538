#include "server/anthropic_response.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "server/sse.h"

namespace kvilt::server {
namespace {

using Kind = AnswerEvent::Kind;

constexpr JsonLimits kInput{.depth = 64, .values = 100'000, .members = 1024, .look_ups = 1'000'000};

// stop_reason and stop_sequence of an answer that was not cut short by an error. A call that max_tokens cut is one, and
// the reason stays.
Json stop_of(const Choice& choice) {
  const Completion& end = *choice.end;
  const bool by_text = end.finish == Finish::kStop && !end.stop_text.empty();
  return {{"stop_reason", end.finish == Finish::kLength ? "max_tokens"
                          : choice.called               ? "tool_use"
                          : by_text                     ? "stop_sequence"
                                                        : "end_turn"},
          {"stop_sequence", by_text ? Json(end.stop_text) : Json(nullptr)}};
}

Json text_block(const std::string& text) { return {{"type", "text"}, {"text", text}}; }

// A block as it begins. REQUIRES: the event is not of arguments, nor a call's end.
Json block_of(const AnswerEvent& event) {
  if (event.kind == Kind::kCallStart)
    return {{"type", "tool_use"}, {"id", event.id}, {"name", event.text}, {"input", Json::object()}};
  if (event.kind == Kind::kReasoning) return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
  return text_block("");
}

// `input` is an object: what a model wrote that is none, or was cut, is a string within one.
Json input_of(const std::string& arguments) {
  if (!oversized_json(arguments, kInput, "")) {
    if (Json input = Json::parse(arguments, nullptr, false); input.is_object()) return input;
  }
  return {{"INVALID_JSON", arguments}};
}

// The blocks of a whole answer.
Json blocks_of(const Choice& choice, bool shows_thinking) {
  Json blocks = Json::array();
  bool readable = false;  // a text or a call is there
  if (!choice.text.empty()) blocks.push_back(text_block(choice.text));
  for (const AnswerEvent& event : joined(choice.events)) {
    if (event.kind == Kind::kCallEnd || (event.kind == Kind::kReasoning && !shows_thinking)) continue;
    if (event.kind == Kind::kArguments) {
      blocks.back()["input"] = input_of(event.text);
      continue;
    }
    blocks.push_back(block_of(event));
    if (event.kind == Kind::kCallStart) blocks.back()["input"] = input_of("");  // as long as no arguments come
    if (event.kind == Kind::kContent) blocks.back()["text"] = event.text;
    if (event.kind == Kind::kReasoning) blocks.back()["thinking"] = event.text;
    readable |= event.kind != Kind::kReasoning;
  }
  if (choice.text.empty() && !readable) blocks.push_back(text_block(""));
  return blocks;
}

class AnthropicWriter final : public AnswerWriter {
 public:
  AnthropicWriter(std::string model, size_t prompt_tokens, bool shows_thinking)
      : id_(answer_id("msg_")),
        model_(std::move(model)),
        prompt_tokens_(prompt_tokens),
        shows_thinking_(shows_thinking) {}

  const std::string& id() const override { return id_; }
  void diagnosed(const Json& diagnostics) override { diagnostics_ = diagnostics; }

  Json whole(const std::vector<Choice>& choices, const UsageSum& usage) const override {
    const Choice& choice = choices.at(0);
    Json json = message(blocks_of(choice, shows_thinking_));
    json.update(stop_of(choice));
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
    std::string events;
    if (!choice.text.empty()) events = add({Kind::kContent, std::exchange(choice.text, {}), -1, ""});
    for (const AnswerEvent& event : joined(std::exchange(choice.events, {}))) events += add(event);
    return events;
  }

  std::string ended(const Choice&) override {
    std::string events = readable_ ? "" : open({Kind::kContent, "", -1, ""});
    events += close();
    return events;
  }

  std::string done(const std::vector<Choice>& choices, const UsageSum& usage) override {
    return event({{"type", "message_delta"}, {"delta", stop_of(choices.at(0))}, {"usage", anthropic_usage(usage)}}) +
           event({{"type", "message_stop"}});
  }

  std::string failed(const ApiError& error) override {
    return "event: error\ndata: " + error_body(error, ApiShape::kAnthropic) + "\n\n";
  }

  std::string ping() override { return event({{"type", "ping"}}); }

 private:
  Json message(Json content) const {
    Json out{{"id", id_},          {"type", "message"},      {"role", "assistant"},     {"model", model_},
             {"content", content}, {"stop_reason", nullptr}, {"stop_sequence", nullptr}};
    if (!diagnostics_.is_null()) out["diagnostics"] = diagnostics_;
    return out;
  }

  // An event's name is its type.
  static std::string event(const Json& json) { return sse_event(json["type"].get_ref<const std::string&>(), json); }

  // What an event adds to the open block, or to a new one.
  std::string add(const AnswerEvent& said) {
    if (said.kind == Kind::kCallEnd) return close();
    if (said.kind == Kind::kReasoning && !shows_thinking_) return {};
    if (said.kind == Kind::kArguments) {
      has_input_ = true;
      return delta({{"type", "input_json_delta"}, {"partial_json", said.text}});
    }
    const bool goes_on = said.apart && open_ == said.kind;  // the call between them was left out
    std::string events = open(said);
    if (said.kind == Kind::kContent)
      events += delta({{"type", "text_delta"}, {"text", (goes_on ? "\n" : "") + said.text}});
    if (said.kind == Kind::kReasoning) events += delta({{"type", "thinking_delta"}, {"thinking", said.text}});
    return events;
  }

  std::string delta(Json what) const {
    return event({{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(what)}});
  }

  // A block for it is open, and it is of this kind. A call is always a new one.
  std::string open(const AnswerEvent& said) {
    if (open_ == said.kind && said.kind != Kind::kCallStart) return {};
    std::string events = close();
    open_ = said.kind;
    has_input_ = false;
    readable_ |= said.kind != Kind::kReasoning;
    return events += event({{"type", "content_block_start"}, {"index", ++index_}, {"content_block", block_of(said)}});
  }

  std::string close() {
    const std::optional<Kind> closed = std::exchange(open_, std::nullopt);
    if (!closed) return {};
    std::string events;
    if (closed == Kind::kCallStart && !has_input_)  // without any it would be a call with {}
      events = delta({{"type", "input_json_delta"}, {"partial_json", dump(input_of(""))}});
    return events += event({{"type", "content_block_stop"}, {"index", index_}});
  }

  const std::string id_, model_;
  const size_t prompt_tokens_;
  const bool shows_thinking_;
  Json diagnostics_;
  std::optional<Kind> open_;  // what the open block holds
  int index_ = -1;            // of the last block
  bool readable_ = false;     // a block of text or a call was begun
  bool has_input_ = false;    // the open block is a call's, and arguments came
};

}  // namespace

Json anthropic_diagnostics(const RequestRecord& record, bool has_system) {
  const auto because = [](const char* type) -> Json { return {{"cache_miss_reason", {{"type", type}}}}; };
  if (record.unknown) return because("previous_message_not_found");
  const auto& difference = record.difference;
  if (!difference || record.guessed || difference->went_on) return {{"cache_miss_reason", nullptr}};
  const std::string& path = difference->path;
  Json out = because(path.starts_with("tools")                       ? "tools_changed"
                     : has_system && path.starts_with("messages[0]") ? "system_changed"
                     : path == "template"                            ? "unavailable"
                                                                     : "messages_changed");
  if (path != "template")
    out["cache_miss_reason"]["cache_missed_input_tokens"] = std::ssize(record.prompt.ids) - difference->common;
  return out;
}

Json anthropic_usage(const UsageSum& usage) {
  const PromptUsage& prompt = usage.prompt();
  const int read = prompt.prefix + prompt.reused;
  return {{"input_tokens", prompt.prompt - read},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", read},
          {"output_tokens", usage.completion_tokens()},
          {"kvilt", kvilt_usage(usage)}};
}

std::unique_ptr<AnswerWriter> anthropic_writer(std::string model, size_t prompt_tokens, bool shows_thinking) {
  return std::make_unique<AnthropicWriter>(std::move(model), prompt_tokens, shows_thinking);
}

}  // namespace kvilt::server
