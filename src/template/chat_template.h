// template/chat_template.h: renders a model's chat template (the Jinja subset of Hugging Face templates) once, and says
// which bytes of the prompt came from the caller.
// Role:       engine: messages in, prompt text with spans out; the tokenizer then cuts at marks and reads special
//             tokens in trusted text only.
// Idea:       strings carry their origin through every operation of the interpreter (template/jinja/text.h), so a
//             caller's text can forge neither the border of a marked part nor a special token, and nothing is searched
//             for afterwards (docs/design/finding.md).
// Invariants: `untrusted` is sorted and disjoint and holds every byte that came from messages, tools, documents or
//             extra; the template's literals, bos and eos are trusted. Numbers and booleans of the caller count as
//             trusted: they print as digits and words; and so do a message's role that is a known word (user, tool):
//             templates make special tokens of it ('<|' + message.role + '|>').
// Threads:    a ChatTemplate is immutable; render() may run on many threads.
// Cost:       a few microseconds a message; bounded by jinja::Limits for templates that misbehave.
// Source:     Jinja 3.1's documented behaviour as transformers sets it up (trim_blocks, lstrip_blocks, loop controls,
//             generation blocks, its own tojson). strftime_now is UTC, so that all machines render the same prompt.
// Not here:   include, import, extends, from_json: a clear error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvilt/result.h"

namespace kvilt {

namespace jinja {
struct Template;
}

// Bytes [begin, end) of the prompt that came from the caller; mark >= 0: of that marked part, -1: unmarked.
// One part may give several spans (a template that trims it inside, or prints it twice).
struct RenderedSpan {
  size_t begin, end;
  int32_t mark;
  bool operator==(const RenderedSpan&) const = default;
};

struct RenderedPrompt {
  std::string text;
  std::vector<RenderedSpan> untrusted;
};

// Bytes [begin, end) of the string at `where`, a path from the root of the inputs: /messages/1/content,
// /messages/1/content/2/text, /documents/3/text, /tools/0/function/description, or /NAME/... into extra.
struct Mark {
  nlohmann::ordered_json::json_pointer where;
  size_t begin, end;
  int32_t id;  // >= 0
};

// The steps of such a place, unescaped, and the place that has them.
std::vector<std::string> steps_of(const nlohmann::ordered_json::json_pointer& where);
nlohmann::ordered_json::json_pointer place_of(const std::vector<std::string>& steps);

struct ChatInputs {
  // Null: the template sees none, as in transformers. Discarded (ordered_json::value_t::discarded): it sees no such
  // name.
  nlohmann::ordered_json messages, tools, documents;
  nlohmann::ordered_json extra = nlohmann::ordered_json::object();  // template kwargs such as enable_thinking
  bool add_generation_prompt = true;
  std::string bos_token, eos_token;
  std::vector<std::pair<std::string, std::string>> special_tokens;  // more trusted names, e.g. unk_token
  std::vector<Mark> marks;                                          // marks of one string must not overlap
  std::optional<int64_t> now;  // seconds since 1970, for strftime_now; none: the clock
};

class ChatTemplate {
 public:
  // Errors: kInvalidArgument with line and column; kUnsupported for tags that need other files.
  // max_steps: less than jinja::Limits' own, for tests of the bound.
  static Result<ChatTemplate> parse(std::string_view source, std::optional<uint64_t> max_steps = {});

  // Errors: kInvalidArgument: what the template raised or a type error in it, with line and column; a limit; a mark
  // that names no string, leaves it, cuts a character or overlaps another.
  Result<RenderedPrompt> render(const ChatInputs& inputs) const;

  // True when contents of messages of this role may be arrays of parts ([{"type": "text", "text": ...}]). False: call
  // flatten_parts first. A role that is not usual is as the user's.
  bool takes_parts(std::string_view role = "user") const;

 private:
  explicit ChatTemplate(std::shared_ptr<const jinja::Template> tmpl) : template_(std::move(tmpl)) {}
  Result<RenderedPrompt> render(const ChatInputs& inputs, uint64_t share) const;  // of the limits: one share-th
  void probe_roles();
  std::string probe(nlohmann::ordered_json message, const nlohmann::ordered_json& content) const;

  std::shared_ptr<const jinja::Template> template_;
  std::optional<uint64_t> max_steps_;
  std::vector<std::string> flat_;  // roles whose contents have to be strings
};

// Joins the text parts of every message whose content is an array to one string, and moves the marks along. stay: of the
// roles for which it is true contents stay as they are; empty: of none.
// Errors: kUnsupported for a part that is no text.
Result<void> flatten_parts(ChatInputs& inputs, std::string_view separator = "\n",
                           const std::function<bool(std::string_view)>& stay = {});

// For models that come without a template: ChatML.
extern const std::string_view kFallbackChatTemplate;

}  // namespace kvilt
