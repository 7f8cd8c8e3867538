#include "grammar/compiler.h"

#include <dlpack/dlpack.h>
#include <xgrammar/compiler.h>
#include <xgrammar/grammar.h>
#include <xgrammar/matcher.h>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/error.h"
#include "grammar/budget.h"
#include "grammar/deep_stack.h"
#include "grammar/gbnf.h"
#include "grammar/schema_check.h"
#include "grammar/schema_number.h"
#include "grammar/warning.h"
#include "text/unicode.h"

namespace kvilt {

class Grammar {
 public:
  Grammar(xgrammar::CompiledGrammar compiled, const GrammarLimits& limits)
      : compiled(std::move(compiled)), limits(limits) {}
  const xgrammar::CompiledGrammar compiled;
  const GrammarLimits limits;  // of its matchers
};

namespace {

constexpr int kMostBrackets = 200;  // that are open at once in a regular expression or EBNF
constexpr size_t kMostShown = 300;  // bytes of xgrammar's own words in a message

std::string first_words(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20; }, ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  if (text.size() > kMostShown) text = text.substr(0, kMostShown) + "...";
  std::string out;
  append_repaired(out, text);
  return out;
}

Error refused(const std::string& why) {
  return error(Code::kInvalidArgument, "the constraint cannot be compiled: {}", first_words(why));
}

// How many brackets are open at once; \ escapes, a class in [...] holds none.
int most_open(std::string_view text) {
  int open = 0, most = 0;
  bool in_class = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (in_class) {
      in_class = text[i] != ']';
    } else if (text[i] == '[') {
      in_class = true;
    } else if (text[i] == '(') {
      most = std::max(most, ++open);
    } else if (text[i] == ')' && open > 0) {
      --open;
    }
  }
  return most;
}

Status check_text(const std::string& text, const char* what) {
  if (text.empty()) return error(Code::kInvalidArgument, "the {} is empty", what);
  if (text.find('\0') != std::string::npos) return error(Code::kInvalidArgument, "the {} holds a NUL byte", what);
  if (most_open(text) > kMostBrackets)
    return error(Code::kInvalidArgument, "the {} has more than {} brackets in each other", what, kMostBrackets);
  return {};
}

// Settles the schemas in a tree of parts, and checks its texts.
Status settle(GrammarPart::Json& tree) {
  if (tree.is_array()) {
    for (auto& part : tree) KVILT_TRY(settle(part));
  }
  if (!tree.is_object()) return {};
  const std::string type = tree.value("type", "");
  if (type == "json_schema") {
    KVILT_TRY(settle_schema(tree["json_schema"]));
    return mark_large_integers(tree["json_schema"]);
  }
  if (type == "regex") {
    auto& pattern = tree["pattern"].get_ref<std::string&>();
    KVILT_TRY(check_text(pattern, "regular expression"));
    pattern = dots_without_line_feed(pattern);
  }
  if (type == "grammar") {
    auto& rules = tree["grammar"].get_ref<std::string&>();
    KVILT_TRY(check_text(rules, "grammar"));
    rules = gbnf_to_ebnf(rules);
  }
  for (const char* inner : {"content", "elements", "tags"}) {
    if (tree.contains(inner)) KVILT_TRY(settle(tree[inner]));
  }
  return {};
}

// The JSON text of a part that is settled. Errors: text that is not UTF-8.
Result<std::string> written(const GrammarPart& part) {
  GrammarPart::Json tree = part.tree();
  KVILT_TRY(settle(tree));
  try {
    return GrammarPart::Json{{"type", "structural_tag"}, {"format", std::move(tree)}}.dump();
  } catch (const GrammarPart::Json::exception&) {
    return error(Code::kInvalidArgument, "the constraint holds text that is not UTF-8");
  }
}

DLTensor tensor_of(std::span<int32_t> mask, int64_t& words) {
  words = std::ssize(mask);
  return {mask.data(), {kDLCPU, 0}, 1, xgrammar::GetBitmaskDLType(), &words, nullptr, 0};
}

}  // namespace

struct GrammarCompiler::Parts {
  xgrammar::TokenizerInfo tokens;
  xgrammar::GrammarCompiler compiler;
};

GrammarCompiler::GrammarCompiler(std::unique_ptr<Parts> parts, const GrammarLimits& limits)
    : parts_(std::move(parts)), limits_(limits) {}
GrammarCompiler::~GrammarCompiler() = default;

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::create(const Tokenizer& tokenizer,
                                                                 std::span<const int32_t> end_ids,
                                                                 std::span<const int32_t> known, int vocab,
                                                                 GrammarLimits limits) {
  std::vector<std::string> texts(static_cast<size_t>(vocab));  // an empty one is never allowed
  for (int32_t id = 0; id < std::min(vocab, tokenizer.vocab_size()); ++id) {
    if (!tokenizer.is_special(id) || std::ranges::find(known, id) != known.end())
      texts[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  try {
    const xgrammar::TokenizerInfo info(texts, xgrammar::VocabType::RAW, vocab,
                                       std::vector<int32_t>(end_ids.begin(), end_ids.end()));
    // One thread: the caller's share of the machine. No cache: this class has its own, which is bounded and ordered.
    auto parts = std::make_unique<Parts>(Parts{info, xgrammar::GrammarCompiler(info, 1, false)});
    return std::unique_ptr<GrammarCompiler>(new GrammarCompiler(std::move(parts), limits));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return error(Code::kUnsupported, "answers of this model cannot be constrained: {}", first_words(e.what()));
  }
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile(const GrammarPart& part) {
  KVILT_ASSIGN(const std::string text, written(part));
  if (text.size() > limits_.bytes)
    return error(Code::kInvalidArgument, "the constraint has {} bytes; at most {} are taken", text.size(),
                 limits_.bytes);
  if (auto found = cache_.find(text)) return found;
  if (auto why = refused_.find(text)) return *why;
  return queue_.run(text, [&] { return compile_in_turn(text); });
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile_in_turn(const std::string& text) {
  if (auto found = cache_.find(text)) return found;  // whoever was before us has compiled it
  if (auto why = refused_.find(text)) return *why;
  std::optional<Result<std::shared_ptr<const Grammar>>> out;
  const bool ran = run_on_deep_stack([&] {
    try {
      out = compile_new(text);
    } catch (const std::bad_alloc&) {  // not even for the error
    }
  });
  if (!ran) return error(Code::kExhausted, "the system refused a thread to compile a constraint; try again");
  if (!out) throw std::bad_alloc();  // here, where it is caught
  if (out->ok()) cache_.keep(text, out->value(), text.size() + out->value()->compiled.MemorySizeBytes());
  return std::move(*out);
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile_new(const std::string& text) {
  ++compiled_;
  take_grammar_warning();
  try {
    const Budget budget(limits_.seconds, limits_.states);
    const auto read = xgrammar::Grammar::FromStructuralTag(text, parts_->tokens);
    if (const auto* wrong = std::get_if<xgrammar::StructuralTagError>(&read))
      return refused(std::visit([](const auto& e) { return std::string(e.what()); }, *wrong));
    if (const std::string warning = take_grammar_warning(); !warning.empty()) return refused(warning);
    auto compiled = parts_->compiler.CompileGrammar(std::get<xgrammar::Grammar>(read));
    if (const std::string warning = take_grammar_warning(); !warning.empty()) return refused(warning);
    return std::make_shared<const Grammar>(std::move(compiled), limits_);
  } catch (const OverBudget& over) {
    const std::string what = over.what_ran_out == OverBudget::What::kSize
                                 ? fmt::format("it has more than {} states", limits_.states)
                                 : fmt::format("it takes more than {} s of work", limits_.seconds);
    const Error why = refused(what + ": use smaller counts and fewer alternatives");
    refused_.add(text, why);
    return why;
  } catch (const std::bad_alloc&) {
    return error(Code::kExhausted, "no memory is left to compile a constraint");
  } catch (const std::exception& e) {
    return refused(e.what());
  }
}

struct GrammarMatcher::Parts {
  std::shared_ptr<const Grammar> grammar;
  xgrammar::GrammarMatcher matcher;
  int64_t tokens = 0;  // that were taken
  double used = 0;     // seconds that all steps have worked, each on its thread

  // For the next step, of what all steps have.
  double left() const {
    const GrammarLimits& limits = grammar->limits;
    return limits.answer_seconds + static_cast<double>(tokens + 1) * limits.token_seconds - used;
  }
  Error over_budget() const {
    const GrammarLimits& limits = grammar->limits;
    if (left() > 0) {
      return error(
          Code::kExhausted,
          "the constraint is too ambiguous: the next token could not be found within {} s of work; write its rules so "
          "that a text can be read in one way",
          limits.mask_seconds);
    }
    return error(Code::kExhausted,
                 "the constraint is too ambiguous: what it allows after {} tokens took more than {} s and {} s a token "
                 "to find; write its rules so that a text can be read in one way",
                 tokens, limits.answer_seconds, limits.token_seconds);
  }

  // A step of the matcher within its time.
  template <class Step>
  Result<decltype(std::declval<Step>()())> within_budget(Step step) {
    const double all = left();
    if (all <= 0) return over_budget();
    const Budget budget(std::min(grammar->limits.mask_seconds, all), INT64_MAX);
    try {
      auto out = step();
      used += budget.seconds();
      return out;
    } catch (const OverBudget&) {
      used += budget.seconds();
      return over_budget();
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& e) {
      return error(Code::kInternal, "the constraint failed: {}", first_words(e.what()));
    }
  }
};

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar) {
  CHECK(grammar);
  xgrammar::GrammarMatcher matcher(grammar->compiled);
  parts_ = std::make_unique<Parts>(Parts{std::move(grammar), std::move(matcher)});
}
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;
GrammarMatcher::~GrammarMatcher() = default;

Status GrammarMatcher::fill(std::span<int32_t> mask) {
  auto filled = parts_->within_budget([&] {
    int64_t words = 0;
    DLTensor tensor = tensor_of(mask, words);
    if (!parts_->matcher.FillNextTokenBitmask(&tensor)) std::ranges::fill(mask, -1);  // all may come
    return true;
  });
  if (!filled.ok()) return filled.error();
  return {};
}

Result<bool> GrammarMatcher::accept(int32_t id) {
  auto taken = parts_->within_budget([&] { return parts_->matcher.AcceptToken(id); });
  if (taken.ok() && *taken) ++parts_->tokens;
  return taken;
}

Result<bool> GrammarMatcher::accept_text(std::string_view text) {
  CHECK(!text.empty());
  return parts_->within_budget([&] { return parts_->matcher.AcceptString(std::string(text)); });
}

void GrammarMatcher::rollback(int tokens) { parts_->matcher.Rollback(tokens); }

Result<std::bitset<256>> GrammarMatcher::next_bytes() {
  return parts_->within_budget([&] {
    bool may[256] = {};
    parts_->matcher.NextBytes(may);
    std::bitset<256> out;
    for (size_t byte = 0; byte < out.size(); ++byte) out[byte] = may[byte];
    return out;
  });
}

bool GrammarMatcher::may_end() const { return parts_->matcher.IsCompleted(); }

}  // namespace kvilt
