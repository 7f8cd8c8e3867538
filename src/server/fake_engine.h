// server/fake_engine.h: an Engine without a model, for tests of the server and for clients' first tries (fake_server).
// Idea:       bytes are tokens; an answer is a text that follows from the prompt's hash (and from the seed, when the
//             temperature is not 0). One thread steps all requests, one token each a step, as the real engine does.
// Behaviour:  stop strings, limits of lines, max_tokens, eos, logprobs, a full queue, too long prompts, cancel and drain work as in the
//             real one. A prompt that holds kFailEarly or kFailLate gets an error before or after its first tokens, and
//             for one that holds kNoMemory there is no memory when it is submitted.
//             What follows the last kSay, to the message's end, is the answer. chat_template_kwargs stand in the prompt.
//             A prompt's last state and its logits are numbers that follow from its tokens.
//             Policies are those of info(), with `budget` from 0 to 1. Cached is the longest common prefix with earlier
//             prompts of the same salt.
// Not here:   anything like a model.
#pragma once

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "kvilt/engine.h"

namespace kvilt::server {

struct FakeOptions {
  double seconds_per_token = 0;
  int context = 4096;
  int pool_tokens = 8192;  // that its KV pool seems to hold
  int max_running = 16;
  int max_queue = 64;
  int answer_tokens = 40;  // then eos
  AnswerSyntax answers = takes_tools();
  SamplingDefaults sampling = {};  // what the model advises

  static AnswerSyntax takes_tools();  // and leaves its answers as they are
  static AnswerSyntax calls_tools();  // <think>..., <tool_call>{"name": ..., "arguments": {...}}</tool_call>
};

class FakeEngine : public Engine {
 public:
  static constexpr const char* kFailEarly = "FAKE_FAIL_EARLY";
  static constexpr const char* kFailLate = "FAKE_FAIL_LATE";
  static constexpr const char* kNoMemory = "FAKE_NO_MEMORY";
  static constexpr const char* kSay = "FAKE_SAY ";
  static constexpr int kLeastSeasoned = 4;                      // tokens of a marked part that gets a mean
  static constexpr const char* kLosesMean = "FAKE_LOSES_MEAN";  // in such a part: it has to begin anew each time
  static constexpr int32_t kBos = 256, kEos = 257, kRole = 258, kVocab = 259;

  explicit FakeEngine(FakeOptions options = {});
  ~FakeEngine() override;

  const ModelInfo& info() const override { return info_; }
  EngineStats stats() const override;
  Result<std::vector<int32_t>> tokenize(std::string_view text, bool special, bool add_special) const override;
  Result<std::string> detokenize(const std::vector<int32_t>& ids) const override;
  std::string token_text(int32_t id) const override;
  Result<Prompt> chat_prompt(const nlohmann::ordered_json& request) const override;
  Result<std::vector<Prompt>> document_prompts(const nlohmann::ordered_json& request) const override;
  Status set_head_map(const std::string& name, std::string_view json) override;
  Status set_sparse_map(const std::string& name, std::string_view json) override;
  Status check_policy(const PolicyChoice& policy) const override;
  Status check_constraint(const Constraint& constraint, bool opens_reasoning) const override;
  Result<RequestId> submit(Request request, std::shared_ptr<TokenSink> sink) override;
  Result<std::vector<RequestId>> submit_all(std::vector<Submission> several) override;
  void cancel(RequestId id) override;
  void clear_cache() override;
  void thaw(const std::string& tenant, const std::vector<std::string>& names) override;
  void drain(double seconds) override;

  // For tests: while held, no token is made and nothing ends but what is cancelled.
  void hold(bool held);
  // For tests: how many requests were ended by cancel(), and the last request as it was submitted.
  int cancelled() const;
  Request last_request() const;
  std::vector<std::string> thawed() const;  // tenant and name of each, so far

 private:
  struct Running;
  void loop();
  bool step(Running& running);  // true: finished
  std::vector<Running*> next_step() const KVILT_REQUIRES(mutex_);
  void place(Running& running) KVILT_REQUIRES(mutex_);
  void read(Running& running) const;
  int32_t next_token(Running& running) const;
  void emit(Running& running, int32_t id, bool last);

  const FakeOptions options_;
  ModelInfo info_;
  mutable Mutex mutex_;
  std::vector<std::string> thawed_ KVILT_GUARDED_BY(mutex_);
  Condition changed_;
  std::map<RequestId, std::unique_ptr<Running>> requests_ KVILT_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<std::vector<int32_t>>> cache_
      KVILT_GUARDED_BY(mutex_);                                // prompts by tenant and salt
  std::map<std::string, int> means_ KVILT_GUARDED_BY(mutex_);  // contexts by tenant, salt and text
  EngineStats stats_ KVILT_GUARDED_BY(mutex_);
  Request last_request_ KVILT_GUARDED_BY(mutex_);
  RequestId next_id_ KVILT_GUARDED_BY(mutex_) = 1;
  bool draining_ KVILT_GUARDED_BY(mutex_) = false, stop_ KVILT_GUARDED_BY(mutex_) = false;
  bool held_ KVILT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvilt::server
