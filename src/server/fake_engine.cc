#include "server/fake_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <nlohmann/json.hpp>

#include "base/begun_literal.h"
#include "base/error.h"
#include "base/line_limits.h"

namespace kvilt::server {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

uint64_t mix(uint64_t h) {  // splitmix64's finaliser
  h ^= h >> 30;
  h *= 0xbf58476d1ce4e5b9ull;
  h ^= h >> 27;
  h *= 0x94d049bb133111ebull;
  return h ^ (h >> 31);
}

// Holds sequences of two, three and four bytes, so that a test notices half a character.
const std::vector<std::string> kWords = {
    "red ",  "blue ", "seven ", "quilt ", "caf\xc3\xa9 ", "10\xe2\x82\xac ", "river ", "stone ", "\xf0\x9f\x99\x82 ",
    "north "};

void append(const std::string& text, Prompt& prompt) {
  for (const char c : text) prompt.ids.push_back(static_cast<unsigned char>(c));
}

// Parts with cache_control are marks, as in the real engine.
void append_content(const Json& content, Prompt& prompt) {
  if (content.is_string()) append(content.get_ref<const std::string&>(), prompt);
  if (!content.is_array()) return;
  for (const Json& part : content) {
    if (!part.is_object()) continue;
    const auto begin = static_cast<int32_t>(prompt.ids.size());
    append(part.value("text", ""), prompt);
    if (part.contains("cache_control")) prompt.marks.push_back({begin, static_cast<int32_t>(prompt.ids.size())});
  }
}

// A template that thinks only if it is told to, and writes down what it is told.
void append_template_words(const Json& request, Prompt& prompt) {
  const Json words = request.value("chat_template_kwargs", Json());
  if (words.is_object() && !words.empty() && words != Json{{"enable_thinking", false}}) append(words.dump(), prompt);
}

// Every token is the most likely one.
TokenLogprob logprob_of(int32_t id, int top) {
  TokenLogprob out{id, -0.25f};
  for (int i = 0; i < top; ++i) out.top.push_back({(id + i) % FakeEngine::kVocab, -0.25f - static_cast<float>(i)});
  return out;
}

}  // namespace

struct FakeEngine::Running {
  RequestId id = 0;
  Request request;
  std::shared_ptr<TokenSink> sink;
  Clock::time_point start = Clock::now();
  Completion completion;
  std::string answer;  // the whole text, known from the start
  LineLimits lines;
  bool ended_by_lines = false;
  std::string held;   // generated, not yet certain: half a character, or the start of a stop string
  bool says = false;  // the answer was told, and ends with it
  size_t at = 0;      // tokens made
  bool told = false;  // on_prompt() was called
  bool running = false, cancelled = false;
};

AnswerSyntax FakeOptions::takes_tools() {
  AnswerSyntax out;
  out.tools = true;
  return out;
}

AnswerSyntax FakeOptions::calls_tools() {
  AnswerSyntax out = takes_tools();
  out.reasoning_begin = "<think>";
  out.reasoning_end = "</think>";
  out.calls.form = CallSyntax::Form::kObject;
  out.calls.begin = "<tool_call>";
  out.calls.end = "</tool_call>";
  out.calls.between = "</tool_call>\n<tool_call>";
  out.calls.name_key = "name";
  out.calls.arguments_key = "arguments";
  return out;
}

FakeEngine::FakeEngine(FakeOptions options) : options_(options) {
  info_.name = "fake";
  info_.arch = "fake";
  info_.description = "a test double: deterministic text, no model";
  info_.backend = "reference";
  info_.fingerprint = "fake";
  info_.context = options.context;
  info_.kv_bytes_per_token = 1;
  info_.kv_pool_bytes = options.pool_tokens;
  info_.longest_prompt = 4 * int64_t{options.context};
  info_.vocab = kVocab;
  info_.width = 16;
  info_.threads = 1;
  info_.answers = options.answers;
  info_.chat_template = "{{ messages }}";
  info_.bos_token = "<s>";
  info_.eos_token = "</s>";
  info_.sampling = options.sampling;
  info_.policies = {"auto", "full", "prefix", "naive", "sparsex"};
  stats_.kv_pages = 1000;
  stats_.request_pages = {1, 2, 3, 4};
  thread_ = std::thread([this] { loop(); });
}

FakeEngine::~FakeEngine() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    for (auto& [id, running] : requests_) running->cancelled = true;
  }
  changed_.notify_all();
  thread_.join();
}

EngineStats FakeEngine::stats() const {
  MutexLock lock(mutex_);
  EngineStats stats = stats_;
  for (const auto& [id, running] : requests_) ++(running->running ? stats.running : stats.waiting);
  return stats;
}

Result<std::vector<int32_t>> FakeEngine::tokenize(std::string_view text, bool special, bool add_special) const {
  std::vector<int32_t> ids;
  if (add_special) ids.push_back(kBos);
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

Result<std::string> FakeEngine::detokenize(const std::vector<int32_t>& ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= kVocab) return error(Code::kInvalidArgument, "token {} is not from 0 to {}", id, kVocab - 1);
    text += token_text(id);
  }
  return text;
}

std::string FakeEngine::token_text(int32_t id) const {
  if (id >= 0 && id < 256) return std::string(1, static_cast<char>(id));
  return id == kBos ? "<s>" : id == kEos ? "</s>" : "<role>";
}

Result<Prompt> FakeEngine::chat_prompt(const Json& request) const {
  Prompt prompt;
  prompt.ids.push_back(kBos);
  append_template_words(request, prompt);
  const auto messages = request.find("messages");
  if (messages == request.end()) return error(Code::kInvalidArgument, "messages: is required");
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    const Json content = message.value("content", Json());  // clients leave it out beside calls
    if (!content.is_string() && !content.is_array() && !content.is_null()) {
      return error(Code::kInvalidArgument, "messages[{}].content: must be a string or a list of parts", i);
    }
    prompt.ids.push_back(kRole);
    const auto begin = static_cast<int32_t>(prompt.ids.size());
    append_content(content, prompt);
    const auto end = static_cast<int32_t>(prompt.ids.size());
    if (content.is_string())
      prompt.parts.push_back({PromptPart::Of::kMessage, static_cast<int32_t>(i), -1, begin, end});
  }
  if (const auto documents = request.find("documents"); documents != request.end() && documents->is_array()) {
    if (!documents->empty()) prompt.documents = DocumentsPlace::kFirstUserMessage;
    for (size_t i = 0; i < documents->size(); ++i) {
      const Json& document = (*documents)[i];
      const auto begin = static_cast<int32_t>(prompt.ids.size());
      if (document.is_object() && document.contains("text")) append_content(document["text"], prompt);
      const auto end = static_cast<int32_t>(prompt.ids.size());
      if (end > begin) prompt.parts.push_back({PromptPart::Of::kDocument, static_cast<int32_t>(i), -1, begin, end});
    }
  }
  const bool goes_on = request.value("continue_final_message", Json()) == true;
  if (goes_on && messages->back().value("role", Json()) != "assistant")
    return error(Code::kInvalidArgument, "continue_final_message: the last message must be the assistant's");
  if (!goes_on && request.value("add_generation_prompt", Json()) != false) prompt.ids.push_back(kRole);
  return prompt;
}

Result<std::vector<Prompt>> FakeEngine::document_prompts(const Json& request) const {
  std::vector<Prompt> prompts;
  for (const Json& document : request.at("documents")) {
    Prompt prompt;
    prompt.ids.push_back(kBos);
    append_template_words(request, prompt);
    prompt.ids.push_back(kRole);
    const auto begin = static_cast<int32_t>(prompt.ids.size());
    append(document.value("text", ""), prompt);
    prompt.marks.push_back({begin, static_cast<int32_t>(prompt.ids.size())});
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

Status FakeEngine::set_head_map(const std::string&, std::string_view) { return {}; }
Status FakeEngine::set_sparse_map(const std::string&, std::string_view) { return {}; }

Status FakeEngine::check_policy(const PolicyChoice& policy) const {
  if (!policy.name.empty() && std::ranges::find(info_.policies, policy.name) == info_.policies.end()) {
    return error(Code::kInvalidArgument, "there is no policy '{}'", policy.name);
  }
  for (const auto& [key, value] : policy.params) {
    if (key != "budget" && key != "quality")
      return error(Code::kInvalidArgument, "the policy has no parameter '{}'", key);
    if (key == "quality" && (value == "exact" || value == "balanced" || value == "draft" || value == "auto")) continue;
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (*end || !(number >= 0 && number <= 1))
      return error(Code::kInvalidArgument, "budget '{}' is not from 0 to 1", value);
  }
  return {};
}

// The word is enough to be refused by.
Status FakeEngine::check_constraint(const Constraint& constraint, bool) const {
  if (constraint.text.find("uniqueItems") == std::string::npos) return {};
  return error(Code::kInvalidArgument, "schema: 'uniqueItems' is not supported");
}

Result<RequestId> FakeEngine::submit(Request request, std::shared_ptr<TokenSink> sink) {
  std::vector<Submission> one;
  one.push_back({std::move(request), std::move(sink)});
  KVILT_ASSIGN(const auto ids, submit_all(std::move(one)));
  return ids[0];
}

Result<std::vector<RequestId>> FakeEngine::submit_all(std::vector<Submission> several) {
  for (const Submission& one : several) {
    const std::vector<int32_t>& ids = one.request.prompt.ids;
    const auto length = static_cast<int>(ids.size());
    const std::string_view no_memory = kNoMemory;
    if (std::search(ids.begin(), ids.end(), no_memory.begin(), no_memory.end()) != ids.end()) throw std::bad_alloc();
    if (length == 0) return error(Code::kInvalidArgument, "the prompt has no tokens");
    const int answer = one.request.sampling.max_tokens == 0 ? 0 : 1;  // room for one, if there is one
    if (length > options_.context - answer) {
      return error(Code::kTooLong, "the prompt has {} tokens; this model's context is {}", length, options_.context);
    }
  }
  MutexLock lock(mutex_);
  if (draining_) return error(Code::kUnavailable, "the engine is shutting down");
  const auto most = static_cast<size_t>(options_.max_queue);
  if (several.size() > most) {
    return error(Code::kInvalidArgument, "{} answers are asked for at once; there are places for {}: ask for fewer",
                 several.size(), most);
  }
  if (requests_.size() + several.size() > most) {
    return error(Code::kExhausted, "{} requests wait already: try again soon", requests_.size());
  }
  std::vector<RequestId> ids;
  for (Submission& one : several) {
    auto running = std::make_unique<Running>();
    running->id = next_id_++;
    last_request_ = one.request;
    running->request = std::move(one.request);
    running->sink = std::move(one.sink);
    running->lines = {running->request.sampling.min_indent, running->request.sampling.line_seconds};
    ids.push_back(running->id);
    requests_[ids.back()] = std::move(running);
  }
  changed_.notify_all();
  return ids;
}

void FakeEngine::cancel(RequestId id) {
  MutexLock lock(mutex_);
  const auto it = requests_.find(id);
  if (it != requests_.end()) it->second->cancelled = true;
  changed_.notify_all();
}

void FakeEngine::thaw(const std::string& tenant, const std::vector<std::string>& names) {
  MutexLock lock(mutex_);
  for (const std::string& name : names) thawed_.push_back(tenant + ":" + name);
}

std::vector<std::string> FakeEngine::thawed() const {
  MutexLock lock(mutex_);
  return thawed_;
}

void FakeEngine::clear_cache() {
  MutexLock lock(mutex_);
  cache_.clear();
  means_.clear();
}

void FakeEngine::drain(double seconds) {
  MutexLock lock(mutex_);
  draining_ = true;
  const auto idle = [&]() KVILT_REQUIRES(mutex_) { return requests_.empty(); };
  if (changed_.wait_for(lock, std::chrono::duration<double>(seconds), idle)) return;
  for (auto& [id, running] : requests_) running->cancelled = true;
  changed_.notify_all();
  changed_.wait(lock, idle);
}

int FakeEngine::cancelled() const {
  MutexLock lock(mutex_);
  return static_cast<int>(stats_.requests_cancelled);
}

Request FakeEngine::last_request() const {
  MutexLock lock(mutex_);
  return last_request_;
}

void FakeEngine::hold(bool held) {
  MutexLock lock(mutex_);
  held_ = held;
  changed_.notify_all();
}

std::vector<FakeEngine::Running*> FakeEngine::next_step() const {
  std::vector<Running*> set;
  for (const auto& [id, running] : requests_) {
    if (running->cancelled || (!held_ && static_cast<int>(set.size()) < options_.max_running))
      set.push_back(running.get());
  }
  return set;
}

void FakeEngine::loop() {
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&]() KVILT_REQUIRES(mutex_) { return stop_ || !next_step().empty(); });
    if (requests_.empty()) return;
    const std::vector<Running*> step_set = next_step();
    for (Running* running : step_set) {
      if (!running->running) place(*running);
    }
    lock.unlock();
    std::vector<Running*> finished;
    for (Running* running : step_set) {
      if (step(*running)) finished.push_back(running);
    }
    lock.lock();
    for (const Running* ended : finished) {  // the figures are right before anybody hears of the end
      const Running& done = *ended;
      ++(done.completion.finish == Finish::kCancelled ? stats_.requests_cancelled
         : done.completion.finish == Finish::kError   ? stats_.requests_failed
                                                      : stats_.requests_ok);
      stats_.generated_tokens += static_cast<uint64_t>(done.completion.completion_tokens);
    }
    ++stats_.steps;
    lock.unlock();
    for (Running* done : finished) done->sink->on_finish(done->completion);
    lock.lock();
    for (const Running* done : finished) requests_.erase(RequestId{done->id});
    changed_.notify_all();
    if (options_.seconds_per_token > 0 && !stop_) {
      changed_.wait_for(lock, std::chrono::duration<double>(options_.seconds_per_token),
                        [&]() KVILT_REQUIRES(mutex_) { return stop_; });
    }
  }
}

// Counts what an earlier prompt left, and prepares the answer.
void FakeEngine::place(Running& running) {
  running.running = true;
  const auto& ids = running.request.prompt.ids;
  std::vector<std::string> names = running.request.namespaces;
  if (names.empty()) names.emplace_back();
  size_t prefix = 0;
  const auto kept_in = [&](const std::string& name) KVILT_REQUIRES(mutex_) -> auto& {
    return cache_[running.request.tenant + '\0' + running.request.cache_salt + '\0' + name];
  };
  for (const std::string& name : names) {
    for (const auto& other : kept_in(name)) {
      const size_t common = std::min(ids.size() - 1, other.size());
      const size_t equal = static_cast<size_t>(
          std::mismatch(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(common), other.begin()).first - ids.begin());
      prefix = std::max(prefix, equal);
    }
  }
  if (running.request.policy.name == "full") prefix = 0;
  if (auto& own = kept_in(names[0]); own.size() < 64) own.push_back(ids);
  PromptUsage& usage = running.completion.usage;
  usage.prompt = static_cast<int>(ids.size());
  usage.prefix = static_cast<int>(prefix);
  usage.fresh = usage.prompt - usage.prefix;
  usage.policy = running.request.policy.name.empty() ? "naive" : running.request.policy.name;
  usage.steps = 1;
  if (running.request.season) {
    for (const TokenMark& mark : running.request.prompt.marks) {
      const std::string text(ids.begin() + mark.begin, ids.begin() + mark.end);
      int& contexts = means_[running.request.tenant + '\0' + running.request.cache_salt + '\0' + text];
      if (text.find(kLosesMean) != std::string::npos) contexts = 0;
      const bool added = mark.end - mark.begin >= kLeastSeasoned && contexts < kMostContexts;
      running.completion.contexts.push_back(added ? ++contexts : 0);
    }
  }
  if (running.request.explain != Explain::kNo) {
    if (usage.prefix > 0)
      running.completion.quilt.push_back({.kind = PatchKind::kPrefix, .count = usage.prefix, .exact = true});
    running.completion.quilt.push_back({.begin = usage.prefix, .count = usage.fresh, .exact = running.request.publish});
  }
  stats_.prompt_tokens += static_cast<uint64_t>(usage.prompt);
  stats_.prefix_tokens += static_cast<uint64_t>(usage.prefix);
  stats_.fresh_tokens += static_cast<uint64_t>(usage.fresh);
  uint64_t h = 1;
  for (const int32_t id : ids) h = mix(h ^ static_cast<uint64_t>(id));
  if (running.request.sampling.temperature > 0) h = mix(h ^ running.request.sampling.seed.value_or(running.id << 32));
  const auto wanted = static_cast<size_t>(std::max(options_.context, options_.answer_tokens));
  const std::string_view say = kSay;
  if (const auto told = std::find_end(ids.begin(), ids.end(), say.begin(), say.end()); told != ids.end()) {
    running.says = true;
    for (auto id = told + std::ssize(say); id != ids.end() && *id < kBos; ++id)
      running.answer += static_cast<char>(*id);
  }
  while (!running.says && running.answer.size() < wanted) {
    h = mix(h + 0x9e3779b97f4a7c15ull);
    running.answer += kWords[h % kWords.size()];
  }
}

// What a prompt's last token has: numbers that follow from the prompt.
void FakeEngine::read(Running& running) const {
  uint64_t h = 1;
  for (const int32_t id : running.request.prompt.ids) h = mix(h ^ static_cast<uint64_t>(id));
  const auto fill = [&](std::vector<float>& values, int count) {
    for (int i = 0; i < count; ++i)
      values.push_back(static_cast<float>(mix(h + static_cast<uint64_t>(i)) % 2001) / 1000 - 1);
  };
  if (running.request.last_hidden) fill(running.completion.last_hidden, info_.width);
  if (running.request.evaluation.first_logits) fill(running.completion.logits.first, kVocab);
}

int32_t FakeEngine::next_token(Running& running) const {
  const auto& sampling = running.request.sampling;
  if (running.says && running.at >= running.answer.size()) return kEos;
  const auto least = static_cast<size_t>(std::max(options_.answer_tokens, sampling.min_tokens));
  if (!running.says && !sampling.ignore_eos && running.at >= least) {
    // Ends with a whole character.
    const auto next = static_cast<unsigned char>(running.answer[running.at]);
    if ((next & 0xC0) != 0x80) return kEos;
  }
  return static_cast<unsigned char>(running.answer[running.at]);
}

// Emits what has become certain: whole characters, and nothing that could be the start of a stop string.
void FakeEngine::emit(Running& running, int32_t id, bool last) {
  const auto& sampling = running.request.sampling;
  TokenDelta delta;
  if (id != kEos) running.held += token_text(id);
  delta.ids = {id};
  if (sampling.logprobs >= 0) {
    delta.logprobs.push_back(logprob_of(id, sampling.logprobs));
  }
  size_t certain = running.held.size();
  for (const std::string& stop : sampling.stop) {
    if (!last) certain = std::min(certain, running.held.size() - begun_literal(running.held, stop));
  }
  size_t lead = certain;  // back over continuation bytes to the last lead byte: is its character whole?
  while (lead > 0 && (static_cast<unsigned char>(running.held[lead - 1]) & 0xC0) == 0x80) --lead;
  if (lead > 0) {
    const auto byte = static_cast<unsigned char>(running.held[lead - 1]);
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    if (lead - 1 + length > certain) certain = lead - 1;
  }
  delta.text = running.held.substr(0, certain);
  running.held.erase(0, certain);
  running.ended_by_lines = running.lines.ends(delta.text, 0);
  running.sink->on_tokens(delta);
}

bool FakeEngine::step(Running& running) {
  const auto& sampling = running.request.sampling;
  const auto& ids = running.request.prompt.ids;
  Completion& completion = running.completion;
  bool cancelled = false;
  {
    MutexLock lock(mutex_);
    cancelled = running.cancelled;
  }
  const auto holds = [&](const char* word) {
    const std::string_view text(word);
    return std::search(ids.begin(), ids.end(), text.begin(), text.end()) != ids.end();
  };
  if (const int top = running.request.prompt_logprobs; top >= 0 && !cancelled && !running.told) {
    std::vector<TokenLogprob> prompt;
    for (const int32_t id : ids) prompt.push_back(logprob_of(id, top));
    running.sink->on_prompt(std::move(prompt));
    running.told = true;
  }
  std::optional<Finish> end;
  if (cancelled) end = Finish::kCancelled;
  if (!end && (holds(kFailEarly) || (running.at >= 3 && holds(kFailLate)))) {
    end = Finish::kError;
    completion.error = Error{Code::kExhausted, "the KV pool is full (asked for by the test)"};
  }
  if (!end && sampling.max_tokens == 0) {
    end = Finish::kLength;
    read(running);
  }
  if (!end) {
    const int32_t id = next_token(running);
    if (const PromptUsage& usage = completion.usage; running.at == 0 && running.request.progress) {
      running.sink->on_progress({usage.prompt, usage.prefix, usage.prefix + usage.fresh / 2, 0.001});
      running.sink->on_progress({usage.prompt, usage.prefix, usage.prompt, 0.002});
    }
    if (running.at++ == 0) completion.usage.ttft_s = seconds_since(running.start);
    ++completion.completion_tokens;
    if (id == kEos || std::ranges::find(sampling.stop_ids, id) != sampling.stop_ids.end()) {
      end = Finish::kStop;
    } else if (static_cast<int>(running.at) == sampling.max_tokens ||
               static_cast<int>(ids.size() + running.at) >= options_.context) {
      end = Finish::kLength;
    }
    for (const std::string& stop : sampling.stop) {
      const std::string now = running.held + (id == kEos ? "" : token_text(id));
      if (!now.ends_with(stop) || static_cast<int>(running.at) <= sampling.min_tokens) continue;
      completion.stop_text = stop;
      running.held = now.substr(0, now.size() - stop.size());
      end = Finish::kStop;
      emit(running, kEos, true);
      break;
    }
    if (completion.stop_text.empty()) emit(running, id, end.has_value());
    if (running.ended_by_lines && completion.stop_text.empty()) end = Finish::kLength;
  }
  if (!end) return false;
  completion.finish = *end;
  completion.total_s = seconds_since(running.start);
  return true;
}

}  // namespace kvilt::server
