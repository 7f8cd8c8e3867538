#include "engine/chat.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/json_member.h"
#include "base/json_size.h"
#include "engine/late_system.h"
#include "engine/past_reasoning.h"
#include "engine/split_calls.h"
#include "engine/volatile_lines.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxSeparator = 64;

// Roles that templates seldom know are tried by rendering; arguments are read a second time: both are bounded.
constexpr size_t kMaxRoles = 8, kMaxRole = 64, kMaxArguments = size_t{1} << 20;
constexpr JsonLimits kArguments{.depth = 64, .values = 20'000, .members = 1024, .look_ups = 1'000'000};

// Bounds one warming: each document is rendered after the same messages, so a body could be multiplied by 256.
constexpr size_t kMaxWarmBytes = size_t{32} << 20;

Error wrong(const std::string& path, const char* what) { return error(Code::kInvalidArgument, "{}: {}", path, what); }

// Before anything is rendered or tokenised.
Status check_marks(const char* field, size_t marks) {
  if (marks <= static_cast<size_t>(kMaxMarks)) return {};
  return error(
      Code::kInvalidArgument,
      "{}: {} parts are marked as pieces (cache_control, documents); a request may have {}: mark fewer, larger "
      "ones",
      field, marks, kMaxMarks);
}

// A document's text in a prompt: title, text, and a line end, so that the next one begins on a line of its own.
Result<std::string> document_text(const Json& document, size_t i) {
  const std::string path = fmt::format("documents[{}]", i);
  if (document.is_string()) return document.get<std::string>() + "\n";
  if (!document.is_object()) return wrong(path, "must be a string or an object with 'text'");
  const Json* text = given(document, "text");
  if (!text) text = given(document, "content");
  if (!text || !text->is_string()) return wrong(path, "needs a string 'text'");
  std::string out;
  if (const Json* title = given(document, "title")) {
    if (!title->is_string()) return wrong(path + ".title", "must be a string");
    if (!title->get_ref<const std::string&>().empty()) out = title->get<std::string>() + "\n";
  }
  return out + text->get<std::string>() + "\n";
}

std::string separator_of(const Json& request) {
  const Json* separator = given(request, "part_separator");
  return separator ? separator->get<std::string>() : "\n";
}

// Members of a message that say nothing: clients whose types have optional fields send them (openai-python's
// model_dump()), and templates ask whether a member is there. Content is null beside calls alone, which many know.
void leave_out_empty(Json& message) {
  for (auto member = message.begin(); member != message.end();) {
    const bool no_calls = member.key() == "tool_calls" && member->is_array() && member->empty();
    const bool null = member->is_null() && member.key() != "content";
    member = no_calls || null ? message.erase(member) : std::next(member);
  }
  if (!message.contains("tool_calls") && !given(message, "content")) message["content"] = "";
}

// The arguments of a call as an object, for a template that takes nothing else. What is none goes into one, in the words
// of server/anthropic_response.cc: this server sends calls that were cut, and clients send them back with every turn.
// left: bytes that may still be read.
void read_arguments(Json& function, size_t& left) {
  Json& arguments = function["arguments"];
  if (arguments.is_object()) return;
  if (arguments.is_null()) arguments = "";
  std::string text = arguments.is_string() ? std::move(arguments.get_ref<std::string&>()) : arguments.dump();
  arguments = Json::object();
  if (text.find_first_not_of(" \n\r\t") == std::string::npos) return;
  if (text.size() <= left && !oversized_json(text, kArguments, "")) {
    left -= text.size();
    Json read = Json::parse(text, nullptr, false);
    if (read.is_object() || read.is_null()) {
      if (read.is_object()) arguments = std::move(read);
      return;
    }
  }
  arguments["INVALID_JSON"] = std::move(text);
}

// The same for a template that puts them behind a text and fails with an object.
void write_arguments(Json& function) {
  Json& arguments = function["arguments"];
  if (arguments.is_null()) arguments = Json::object();
  if (!arguments.is_string()) arguments = arguments.dump();
}

// A mark's place after one more message was put before those from `from` on.
Json::json_pointer moved_down(const Json::json_pointer& where, size_t from) {
  std::vector<std::string> steps = steps_of(where);
  CHECK(steps.size() > 1 && steps[0] == "messages");
  const size_t m = std::stoul(steps[1]);
  if (m >= from) steps[1] = std::to_string(m + 1);
  return place_of(steps);
}

// Where the first user message is; an empty one is put behind the system messages if there is none.
size_t first_user_message(ChatInputs& in) {
  size_t system = 0;
  for (size_t m = 0; m < in.messages.size(); ++m) {
    if (in.messages[m]["role"] == "user") return m;
    if (m == system && is_system(in.messages[m])) ++system;
  }
  in.messages.insert(in.messages.begin() + static_cast<ptrdiff_t>(system), Json{{"role", "user"}, {"content", ""}});
  for (Mark& mark : in.marks) mark.where = moved_down(mark.where, system);
  return system;
}

// ChatML. A template writes BOS itself, so this one does where the model wants it before every text.
std::string fallback_template(const Tokenizer& tokenizer) {
  EncodeOptions whole;
  whole.add_special = true;
  const auto ids = tokenizer.encode("", whole);
  const bool begins = ids.ok() && !ids->empty() && tokenizer.bos() && ids->front() == *tokenizer.bos();
  return (begins ? "{{- bos_token -}}\n" : "") + std::string(kFallbackChatTemplate);
}

bool wants_tools(const Json& request) {
  if (!request.is_object()) return false;
  const bool wanted = !request.contains("tool_choice") || request["tool_choice"] != "none";
  return wanted && request.contains("tools") && !request["tools"].empty();
}

}  // namespace

Result<ChatPrompts> ChatPrompts::create(const Tokenizer& tokenizer, const Sources& sources, std::string bos,
                                        std::string eos, int64_t context) {
  std::unique_ptr<ChatPrompts> with_tools;
  if (!sources.tools.empty()) {
    Result<ChatPrompts> made = create(tokenizer, Sources{sources.tools, ""}, bos, eos, context);
    if (!made.ok()) return error(made.error().code, "the one for tools (tool_use): {}", made.error().message);
    with_tools = std::make_unique<ChatPrompts>(std::move(made).value());
  }
  std::string text = sources.usual.empty() ? fallback_template(tokenizer) : sources.usual;
  KVILT_ASSIGN(ChatTemplate parsed, ChatTemplate::parse(text));
  ChatPrompts out(tokenizer, std::move(parsed), std::move(bos), std::move(eos));
  out.source_ = std::move(text);
  out.traits_ = traits_of(out.template_, out.source_, out.edges_);
  out.answers_ = answer_syntax_of(out.template_, out.edges_, out.traits_.arguments_as_object);
  find_marker_ids(tokenizer, out.answers_);
  out.context_ = context;
  // Answers are read in one way: a template for tools that shows less of it than the usual one is left out.
  const bool shows_less =
      with_tools && ((out.answers_.tools && !with_tools->answers_.tools) ||
                     (!out.answers_.reasoning_end.empty() && with_tools->answers_.reasoning_end.empty()));
  if (!shows_less) out.with_tools_ = std::move(with_tools);
  return out;
}

const ChatPrompts& ChatPrompts::of(const Json& request) const {
  return with_tools_ && wants_tools(request) ? *with_tools_ : *this;
}

// The borders of contents and their parts; those that carry cache_control are pieces. Checks the messages' shape.
Status ChatPrompts::border_messages(Inputs& in) {
  const auto add = [&in](Json::json_pointer where, size_t size, size_t message, int32_t part, bool piece,
                         Retention retention) {
    if (size == 0) return;
    in.chat.marks.push_back({std::move(where), 0, size, static_cast<int32_t>(in.parts.size())});
    in.parts.push_back({PromptPart::Of::kMessage, static_cast<int32_t>(message), part, piece, retention});
  };
  const Json& messages = in.chat.messages;
  for (size_t m = 0; m < messages.size(); ++m) {
    const std::string path = fmt::format("messages[{}]", m);
    if (!messages[m].is_object()) return wrong(path, "must be an object");
    if (!messages[m].contains("role") || !messages[m]["role"].is_string())
      return wrong(path + ".role", "must be a string");
    if (std::cmp_equal(in.first_turn, m) && is_system(messages[m])) ++in.first_turn;
    if (!messages[m].contains("content")) continue;
    const Json& content = messages[m]["content"];
    const auto where = Json::json_pointer("/messages") / m / "content";
    if (content.is_null()) continue;
    if (content.is_string()) {
      add(where, content.get_ref<const std::string&>().size(), m, -1, false, Retention::kNone);
      continue;
    }
    if (!content.is_array()) return wrong(path + ".content", "must be a string or an array of parts");
    for (size_t p = 0; p < content.size(); ++p) {
      const std::string part_path = fmt::format("{}.content[{}]", path, p);
      const Json& part = content[p];
      if (!part.is_object() || !part.contains("type") || part["type"] != "text") {
        return wrong(part_path, "only parts of type 'text' are supported");
      }
      if (!part.contains("text") || !part["text"].is_string()) return wrong(part_path + ".text", "must be a string");
      const bool piece = part.contains("cache_control") && !part["cache_control"].is_null();
      Retention retention = Retention::kNone;
      if (piece) {
        KVILT_ASSIGN(retention, retention_of(part["cache_control"], part_path + ".cache_control"));
      }
      add(where / p / "text", part["text"].get_ref<const std::string&>().size(), m, static_cast<int32_t>(p), piece,
          retention);
    }
  }
  return check_marks("messages", in.pieces());
}

// Roles, members and tool calls as this template reads them. REQUIRES: each message is an object with a string for its
// role.
Status ChatPrompts::settle_messages(Json& messages) const {
  std::set<std::string> shown = traits_.roles;
  size_t arguments = kMaxArguments;
  for (size_t m = 0; m < messages.size(); ++m) {
    Json& message = messages[m];
    std::string role = message["role"].get<std::string>();
    if (role == "developer" && !traits_.developer) message["role"] = role = "system";
    if (!shown.contains(role)) {
      const bool usual = std::ranges::find(kUsualRoles, role) != std::end(kUsualRoles);
      if (role.size() > kMaxRole || shown.size() >= traits_.roles.size() + kMaxRoles)
        return error(Code::kInvalidArgument, "messages[{}].role: too long, or too many other roles", m);
      if (usual || !shows_role(template_, role, edges_)) {
        return error(
            Code::kInvalidArgument,
            "messages[{}].role: this model's chat template leaves out messages of role '{}'; use system, user, "
            "assistant or tool",
            m, role);
      }
      shown.insert(role);
    }
    leave_out_empty(message);
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    const bool silent = !has_text(message);
    if (silent ? !traits_.calls : traits_.text_hides_calls) {
      return error(Code::kInvalidArgument,
                   "messages[{}].tool_calls: this model's chat template leaves out an assistant's calls; write them "
                   "into its content",
                   m);
    }
    if (silent && (traits_.null_content || traits_.needs_content))
      message["content"] = traits_.null_content ? Json() : Json("");
    for (Json& call : message["tool_calls"]) {
      if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
      if (traits_.arguments_as_object) {
        read_arguments(call["function"], arguments);
      } else {
        write_arguments(call["function"]);
      }
    }
  }
  return {};
}

Result<ChatPrompts::Inputs> ChatPrompts::inputs(const Json& request) const {
  if (!request.is_object()) return wrong("request", "must be an object");
  if (!request.contains("messages") || !request["messages"].is_array()) return wrong("messages", "must be an array");
  Inputs out;
  ChatInputs& in = out.chat;
  in.messages = request["messages"];
  if (in.messages.empty()) return wrong("messages", "must not be empty");
  if (folds_) out.folded = fold_volatile_lines(in.messages);
  KVILT_TRY(border_messages(out));
  KVILT_TRY(check_cache_marks(request));
  KVILT_TRY(settle_messages(in.messages));
  for (const char* key : {"tools", "documents"}) {
    if (request.contains(key) && !request[key].is_null() && !request[key].is_array())
      return wrong(key, "must be an array");
  }
  if (wants_tools(request)) in.tools = request["tools"];
  if (request.contains("chat_template_kwargs") && !request["chat_template_kwargs"].is_null()) {
    if (!request["chat_template_kwargs"].is_object()) return wrong("chat_template_kwargs", "must be an object");
    in.extra = request["chat_template_kwargs"];
  }
  if (const Json* add = given(request, "add_generation_prompt")) {
    if (!add->is_boolean()) return wrong("add_generation_prompt", "must be true or false");
    in.add_generation_prompt = add->get<bool>();
  }
  KVILT_TRY(check_final_message(request, out));
  in.bos_token = edges_.bos;
  in.eos_token = edges_.eos;
  if (const Json* separator = given(request, "part_separator")) {  // bounded: it joins any number of parts
    if (!separator->is_string() || separator->get_ref<const std::string&>().size() > kMaxSeparator)
      return wrong("part_separator", "must be a string of at most 64 bytes");
  }
  const auto takes_parts = [this](std::string_view role) { return template_.takes_parts(role); };
  // What is put together has the separator that flattening puts between parts.
  const auto between = [&](const char* role) { return takes_parts(role) ? separator_of(request) : std::string(); };
  split_calls(traits_, in);
  place_reasoning(traits_, between("assistant"), in);
  place_late_system(traits_, between("user"), in);
  KVILT_TRY(flatten_parts(in, separator_of(request), takes_parts));
  KVILT_TRY(add_documents(request, out));
  out.cache_marks = take_cache_marks(in, static_cast<int32_t>(out.parts.size()));
  KVILT_TRY(check_marks("messages", out.pieces() + out.cache_marks.size()));
  out.keeps_all = whole_retention(request);
  return out;
}

// What vLLM and transformers call so: the answer goes on from the last message, which has no end of its own then.
Status ChatPrompts::check_final_message(const Json& request, Inputs& out) {
  const Json* asked = given(request, "continue_final_message");
  if (!asked) return {};
  if (!asked->is_boolean()) return wrong("continue_final_message", "must be true or false");
  if (!asked->get<bool>()) return {};
  if (const Json* add = given(request, "add_generation_prompt"); add && add->get<bool>())
    return wrong("continue_final_message",
                 "the answer goes on from the last message, or is a new one "
                 "(add_generation_prompt): one of both");
  const Json& last = out.chat.messages.back();
  const auto index = static_cast<int32_t>(out.chat.messages.size()) - 1;
  const bool texts =
      !out.parts.empty() && out.parts.back().of == PromptPart::Of::kMessage && out.parts.back().index == index;
  if (last["role"] != "assistant" || given(last, "tool_calls") || !texts)
    return wrong("continue_final_message", "the last message must be the assistant's, with text and without calls");
  out.chat.add_generation_prompt = false;
  out.ends = static_cast<int32_t>(out.parts.size()) - 1;
  return {};
}

// Documents go where the template puts them, or else to the start of the first user message, where they stay as the
// conversation grows; each is a mark.
Status ChatPrompts::add_documents(const Json& request, Inputs& out) const {
  if (!request.contains("documents") || request["documents"].empty()) return {};
  const Json& documents = request["documents"];
  KVILT_TRY(check_marks("documents", out.pieces() + documents.size()));
  ChatInputs& in = out.chat;
  const auto border = [&out](int32_t i) {
    out.parts.push_back({PromptPart::Of::kDocument, i, -1, true});
    return static_cast<int32_t>(out.parts.size()) - 1;
  };
  std::string joined;
  std::vector<std::pair<size_t, size_t>> ranges;
  for (size_t i = 0; i < documents.size(); ++i) {
    KVILT_ASSIGN(const std::string text, document_text(documents[i], i));
    ranges.emplace_back(joined.size(), joined.size() + text.size());
    joined += text;
  }
  if (traits_.documents) {
    out.documents = DocumentsPlace::kTemplate;
    in.documents = Json::array();
    for (size_t i = 0; i < documents.size(); ++i) {
      Json document = documents[i].is_object() ? documents[i] : Json{{"title", ""}, {"text", documents[i]}};
      if (!given(document, "text")) document["text"] = document["content"];
      if (!given(document, "title")) document.erase("title");  // a template would print the null
      const size_t size = document["text"].get_ref<const std::string&>().size();
      in.documents.push_back(std::move(document));
      if (size > 0)
        in.marks.push_back({Json::json_pointer("/documents") / i / "text", 0, size, border(static_cast<int32_t>(i))});
    }
    return {};
  }
  const size_t before = in.messages.size();
  const size_t at = first_user_message(in);
  const bool made = in.messages.size() > before;
  out.documents = made ? DocumentsPlace::kMadeUserMessage : DocumentsPlace::kFirstUserMessage;
  // As one string, also for templates that take parts: they all take strings.
  ChatInputs flat = in;
  KVILT_TRY(flatten_parts(flat, separator_of(request)));
  in = std::move(flat);
  Json& content = in.messages[at]["content"];
  if (!content.is_string()) content = "";
  const auto where = Json::json_pointer("/messages") / at / "content";
  for (Mark& mark : in.marks) {
    if (mark.where == where) {
      mark.begin += joined.size();
      mark.end += joined.size();
    }
  }
  for (size_t i = 0; i < ranges.size(); ++i)
    in.marks.push_back({where, ranges[i].first, ranges[i].second, border(static_cast<int32_t>(i))});
  content = joined + content.get<std::string>();
  return {};
}

namespace {

// Cuts off what follows the text of a mark. False: there is none of it.
bool end_with(RenderedPrompt& rendered, int32_t mark) {
  size_t end = 0;
  for (const RenderedSpan& span : rendered.untrusted) {
    if (span.mark == mark) end = std::max(end, span.end);
  }
  rendered.text.resize(end);
  std::erase_if(rendered.untrusted, [&](const RenderedSpan& span) { return span.begin >= end; });
  return end > 0;
}

}  // namespace

// What is kept for a time beyond texts that say so themselves: up to where each cache mark stands in the prompt, and all
// of it. ends: for each, behind how many tokens; 0: the template does not show it.
void ChatPrompts::keep(const Inputs& inputs, const std::vector<int32_t>& ends, Prompt& prompt) {
  const auto add = [&prompt](int32_t tokens, Retention retention) {
    if (tokens == 0) return;
    if (prompt.kept.empty() || prompt.kept.back().tokens != tokens) return prompt.kept.push_back({tokens, retention});
    prompt.kept.back().retention = std::max(prompt.kept.back().retention, retention);  // many tools, each with its own
  };
  // Tools stand at the head, with the system's text: it ends where the first turn's begins.
  const auto turn = std::ranges::find_if(prompt.parts, [&](const PromptPart& part) {
    return part.of == PromptPart::Of::kDocument || part.index >= inputs.first_turn;
  });
  const int32_t head = turn == prompt.parts.end() ? 0 : turn->begin;
  for (size_t i = 0; i < ends.size(); ++i)
    add(ends[i] == 0 && inputs.cache_marks[i].tool ? head : ends[i], inputs.cache_marks[i].retention);
  if (inputs.keeps_all != Retention::kNone && !prompt.parts.empty()) add(prompt.parts.back().end, inputs.keeps_all);
}

Result<Prompt> ChatPrompts::tokenize(const RenderedPrompt& rendered, const Inputs& inputs) const {
  if (const auto most = tokenizer_->most_bytes(context_); most && context_ > 0 && std::ssize(rendered.text) > *most) {
    return error(Code::kTooLong, "messages: the prompt has {} bytes; {} tokens, this model's context, hold {} at most",
                 rendered.text.size(), context_, *most);
  }
  // The text between borders; neighbouring spans of one mark are one part.
  struct Part {
    size_t begin, end;
    int32_t mark;
  };
  std::vector<Part> parts;
  const auto borders = static_cast<int32_t>(inputs.parts.size());
  std::vector<std::pair<size_t, size_t>> marked;  // where a cache mark's text ends, and which one it is
  size_t at = 0;
  for (const RenderedSpan& span : rendered.untrusted) {
    if (span.mark >= borders) marked.emplace_back(span.end, static_cast<size_t>(span.mark - borders));
    if (span.mark < 0 || span.mark >= borders) continue;
    if (!parts.empty() && parts.back().mark == span.mark && parts.back().end == span.begin) {
      parts.back().end = at = span.end;
      continue;
    }
    if (span.begin > at) parts.push_back({at, span.begin, -1});
    parts.push_back({span.begin, span.end, span.mark});
    at = span.end;
  }
  if (at < rendered.text.size()) parts.push_back({at, rendered.text.size(), -1});
  Prompt prompt;
  std::vector<int32_t> ends(inputs.cache_marks.size());
  auto mark = marked.begin();               // the first one that ends in the part or behind it
  auto first = rendered.untrusted.begin();  // the first span that reaches into the part: both are in order
  for (const Part& part : parts) {
    const std::string_view text = std::string_view(rendered.text).substr(part.begin, part.end - part.begin);
    std::vector<ByteRange> trusted;
    size_t from = part.begin;
    while (first != rendered.untrusted.end() && first->end <= part.begin) ++first;
    for (auto span = first; span != rendered.untrusted.end() && span->begin < part.end; ++span) {
      if (span->begin > from) trusted.push_back({from - part.begin, span->begin - part.begin});
      from = std::max(from, span->end);
    }
    if (from < part.end) trusted.push_back({from - part.begin, part.end - part.begin});
    EncodeOptions options;
    options.continues = part.begin > 0;
    // A message begins behind its marker as it does in one text. A document does not: it has the same ids behind others.
    const bool document =
        part.mark >= 0 && inputs.parts[static_cast<size_t>(part.mark)].of == PromptPart::Of::kDocument;
    options.after_special = !document && !prompt.ids.empty() && tokenizer_->is_special(prompt.ids.back());
    options.trusted = trusted;  // empty: nothing is trusted, and parse_special is off
    KVILT_ASSIGN(const std::vector<int32_t> ids, tokenizer_->encode(text, options));
    const auto begin = static_cast<int32_t>(prompt.ids.size());
    prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
    const auto end = static_cast<int32_t>(prompt.ids.size());
    for (; mark != marked.end() && mark->first <= part.end; ++mark) ends[mark->second] = end;
    if (part.mark < 0 || end == begin) continue;
    const Bordered& of = inputs.parts[static_cast<size_t>(part.mark)];
    if (of.piece) prompt.marks.push_back({begin, end});
    prompt.parts.push_back({of.of, of.index, of.part, begin, end});
    if (of.retention != Retention::kNone) prompt.kept.push_back({end, of.retention});
  }
  if (prompt.ids.empty()) return wrong("messages", "they render to an empty prompt");
  keep(inputs, ends, prompt);
  return prompt;
}

Result<Prompt> ChatPrompts::prompt(const Json& request) const { return of(request).own_prompt(request); }

Result<Prompt> ChatPrompts::own_prompt(const Json& request) const {
  KVILT_ASSIGN(const Inputs in, inputs(request));
  KVILT_ASSIGN(RenderedPrompt rendered, template_.render(in.chat));
  if (in.ends >= 0 && !end_with(rendered, in.ends))
    return wrong("continue_final_message", "this model's chat template leaves out the last message's text");
  KVILT_ASSIGN(Prompt prompt, tokenize(rendered, in));
  prompt.folded = in.folded;
  prompt.documents = in.documents;
  // The caller's own words at the end open nothing.
  const bool forged = !rendered.untrusted.empty() && rendered.untrusted.back().end == rendered.text.size();
  prompt.opens_reasoning = !forged && opens_reasoning(rendered.text, answers_);
  return prompt;
}

Result<std::vector<Prompt>> ChatPrompts::document_prompts(const Json& request) const {
  if (!request.is_object() || !request.contains("documents") || !request["documents"].is_array()) {
    return wrong("documents", "must be an array");
  }
  if (const ChatPrompts& its = of(request); &its != this) return its.document_prompts(request);
  Json one = request;
  if (!one.contains("messages") || one["messages"].empty())
    one["messages"] = Json::array({{{"role", "user"}, {"content", ""}}});
  std::vector<Prompt> out;
  size_t bytes = 0;
  for (size_t i = 0; i < request["documents"].size(); ++i) {
    one["documents"] = Json::array({request["documents"][i]});
    KVILT_ASSIGN(const Inputs in, inputs(one));
    const bool empty = in.parts.empty() || in.parts.back().of != PromptPart::Of::kDocument;
    const int32_t last = empty ? -1 : static_cast<int32_t>(in.parts.size()) - 1;
    KVILT_ASSIGN(RenderedPrompt rendered, template_.render(in.chat));
    if (last < 0 || !end_with(rendered, last)) return wrong(fmt::format("documents[{}]", i), "is empty");
    bytes += rendered.text.size();
    if (bytes > kMaxWarmBytes) {
      return error(Code::kTooLong, "documents: with the messages before them they make more than {} MiB; send fewer",
                   kMaxWarmBytes >> 20);
    }
    KVILT_ASSIGN(Prompt prompt, tokenize(rendered, in));
    // A vocabulary may have no token for anything in it.
    if (prompt.marks.empty()) return wrong(fmt::format("documents[{}]", i), "has no tokens");
    prompt.marks = {prompt.marks.back()};
    prompt.folded = in.folded;
    out.push_back(std::move(prompt));
  }
  return out;
}

}  // namespace kvilt
