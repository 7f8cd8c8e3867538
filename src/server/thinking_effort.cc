#include "server/thinking_effort.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_member.h"

namespace kvilt::server {
namespace {

constexpr const char* kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};  // OpenAI's
constexpr const char* kWords = "chat_template_kwargs";

ApiError wrong_word(const std::string& path, const std::string& what, const char* code = "") {
  return {400, path + ": " + what, path, code};
}

std::optional<ApiError> wrong_effort(const Json& effort, const std::string& path) {
  if (!effort.is_string()) return wrong_word(path, fmt::format("must be a string, not {}", type_of(effort)));
  if (std::ranges::find(kEfforts, effort.get_ref<const std::string&>()) != std::end(kEfforts)) return std::nullopt;
  return wrong_word(path, "must be \"none\", \"minimal\", \"low\", \"medium\", \"high\" or \"xhigh\"");
}

// What the fields of one body say together. The first error stays.
class Said {
 public:
  void read(const Json& body) {
    if (const Json* word = given(body, "reasoning_effort")) effort("reasoning_effort", *word);
    if (const Json* on = given(body, "enable_thinking")) flag("enable_thinking", *on);
    if (const Json* settings = given(body, "thinking"); settings && is_object("thinking", *settings)) {
      const Json type = settings->value("type", Json());
      if (type != "enabled" && type != "adaptive" && type != "disabled")
        return fail("thinking.type", R"(must be "enabled", "adaptive" or "disabled")");
      thinks("thinking.type", type != "disabled");
      target("thinking.budget_tokens", given(*settings, "budget_tokens"));
    }
    if (const Json* settings = given(body, "reasoning"); settings && is_object("reasoning", *settings)) {
      if (const Json* word = given(*settings, "effort")) effort("reasoning.effort", *word);
      if (const Json* on = given(*settings, "enabled")) flag("reasoning.enabled", *on);
      const auto most = target("reasoning.max_tokens", given(*settings, "max_tokens"));
      const bool said = given(*settings, "effort") || given(*settings, "enabled");
      if (most && !said) thinks("reasoning.max_tokens", *most != 0);  // as OpenRouter reads it
    }
  }

  std::optional<ApiError> write(Json& body) {
    if (!error_ && effort_) error_ = set_effort(body, *effort_, effort_path_);
    if (!error_ && thinks_) error_ = set_template_word(body, "enable_thinking", *thinks_);
    return error_;
  }

 private:
  void fail(ApiError error) {
    if (!error_) error_ = std::move(error);
  }
  void fail(const std::string& path, const std::string& what, const char* code = "") {
    fail(wrong_word(path, what, code));
  }
  bool is_object(const std::string& path, const Json& value) {
    if (!value.is_object()) fail(path, fmt::format("must be an object, not {}", type_of(value)));
    return value.is_object();
  }
  void effort(const std::string& path, const Json& word) {
    if (auto wrong = wrong_effort(word, path)) return fail(*wrong);
    if (effort_ && *effort_ != word) return fail(path, "says another effort than " + effort_path_);
    effort_ = word;
    effort_path_ = path;
    thinks(path, word != "none");
  }
  // How many tokens to think, of which nothing is bounded: it is a target in the APIs whose clients send it, and some
  // of them ignore it too.
  std::optional<double> target(const std::string& path, const Json* tokens) {
    if (!tokens) return std::nullopt;
    if (tokens->is_number()) return tokens->get<double>();
    fail(path, fmt::format("must be a number of tokens, not {}", type_of(*tokens)));
    return std::nullopt;
  }
  void flag(const std::string& path, const Json& on) {
    if (!on.is_boolean()) return fail(path, fmt::format("must be true or false, not {}", type_of(on)));
    thinks(path, on.get<bool>());
  }
  void thinks(const std::string& path, bool on) {
    if (thinks_ && *thinks_ != on)
      return fail(path, fmt::format("says that the model {}, and {} that it {}", on ? "thinks" : "does not think",
                                    thinks_path_, on ? "does not" : "does"));
    thinks_ = on;
    thinks_path_ = path;
  }

  std::optional<Json> effort_;
  std::optional<bool> thinks_;
  std::string effort_path_, thinks_path_;
  std::optional<ApiError> error_;
};

}  // namespace

std::optional<ApiError> set_template_word(Json& body, const std::string& name, const Json& value) {
  Json& words = body[kWords];
  if (words.is_null()) words = Json::object();
  if (!words.is_object())
    return ApiError{400, fmt::format("{}: must be an object, not {}", kWords, type_of(words)), kWords, ""};
  if (!words.contains(name)) words[name] = value;
  return std::nullopt;
}

std::optional<ApiError> settle_thinking(Json& body) {
  Said said;
  said.read(body);
  return said.write(body);
}

std::optional<ApiError> set_effort(Json& body, const Json& effort, const std::string& path) {
  if (auto wrong = wrong_effort(effort, path)) return wrong;
  if (auto error = set_template_word(body, "reasoning_effort", effort)) return error;
  return set_template_word(body, "enable_thinking", effort != "none");
}

}  // namespace kvilt::server
