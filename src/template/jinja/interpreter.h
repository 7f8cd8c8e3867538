// template/jinja/interpreter.h: walks the syntax tree and writes the output with its spans.
// Role:       one object per render. statements: exec.cc; expressions: eval.cc; operators: operators.cc.
// Invariants: as in Jinja, a `set` inside a for, macro or with ends with it; one inside an if stays.
// Threads:    none shared; the Template may be rendered by many at once.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "template/jinja/ast.h"
#include "template/jinja/builtins.h"
#include "template/jinja/objects.h"

namespace kvilt::jinja {

class Interpreter {
 public:
  Interpreter(Meter& meter, int64_t now) : meter_(meter), now_(now) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  void define(std::string_view name, Value value);  // a variable of the outermost scope; `name` must outlive the render
  Text run(const Template& tmpl);

  // --- for builtins ---
  Meter& meter() { return meter_; }
  int64_t now() const { return now_; }
  Value call(const Value& callee, CallArgs args);
  Value filter(std::string_view name, const Value& self, const CallArgs& args);
  bool test(std::string_view name, const Value& self, const CallArgs& args);
  Value attribute(const Value& object, std::string_view name);  // object.name
  Value item(const Value& object, const Value& key);            // object[key]
  // "a.b.0" as filters take it; `otherwise`, if given, replaces what is undefined on the way.
  Value attribute_path(const Value& object, const Value& path, const Value* otherwise = nullptr);
  std::shared_ptr<Namespace> make_namespace();
  void keep(std::shared_ptr<Object> object) { objects_.push_back(std::move(object)); }  // taken apart at the end

 private:
  using ScopePtr = std::shared_ptr<Scope>;
  class Capture;  // where output goes
  enum class Flow { kNext, kBreak, kContinue };

  Flow exec(const Body& body, const ScopePtr& scope);
  Flow exec(const Stmt& statement, const ScopePtr& scope);
  Flow exec_if(const Stmt& statement, const ScopePtr& scope);
  void exec_for(const Stmt& statement, const ScopePtr& scope, const Value& iterable, int depth);
  void exec_set(const Stmt& statement, const ScopePtr& scope);
  void exec_with(const Stmt& statement, const ScopePtr& scope);
  void exec_call_block(const Stmt& statement, const ScopePtr& scope);
  void assign(const Expr& target, Value value, const ScopePtr& scope);
  void output(const Value& value);
  Text capture(const Body& body, const ScopePtr& scope);
  std::shared_ptr<Macro> make_macro(const Stmt& statement, const ScopePtr& scope);
  Value call_macro(const Macro& macro, CallArgs args);
  Value call_loop(Loop& loop, const CallArgs& args);

  Value eval(const Expr& expr, const ScopePtr& scope);
  Value eval_inner(const Expr& expr, const ScopePtr& scope);
  Value eval_name(const Expr& expr, const ScopePtr& scope);
  Value eval_call(const Expr& expr, const ScopePtr& scope);
  Value eval_filter(const Expr& expr, const ScopePtr& scope, const Value* input);
  Value eval_item(const Expr& expr, const ScopePtr& scope);
  Value eval_compare(const Expr& expr, const ScopePtr& scope);
  Value eval_dict(const Expr& expr, const ScopePtr& scope);
  Value eval_concat(const Expr& expr, const ScopePtr& scope);
  std::vector<Value> eval_all(const Expr& expr, const ScopePtr& scope);
  CallArgs eval_arguments(const Expr& expr, const ScopePtr& scope);
  Value loop_attribute(const Loop& loop, std::string_view name);
  Value bind_method(const Value& self, const Builtin& method);

  Meter& meter_;
  const int64_t now_;
  ScopePtr globals_ = std::make_shared<Scope>();
  Capture* out_ = nullptr;
  std::vector<std::shared_ptr<Namespace>> namespaces_;  // may form cycles: taken apart at the end
  std::vector<ScopePtr> captured_;                      // scopes that macros and loops hold
  std::vector<std::shared_ptr<Object>> objects_;        // loops, macros, cyclers: likewise
};

// --- operators.cc: Python's arithmetic ---
Value binary_operator(Meter& meter, std::string_view op, const Value& left, const Value& right);
Value negate(const Value& value);
Value slice(Meter& meter, const Value& value, const Value& begin, const Value& end, const Value& step);

}  // namespace kvilt::jinja
