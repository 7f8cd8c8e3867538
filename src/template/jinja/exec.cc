// template/jinja/exec.cc: statements, macros and loops.
#include <algorithm>

#include "template/jinja/interpreter.h"

namespace kvilt::jinja {

void Scope::set(std::string_view name, Value value) {
  for (auto& [known, old] : variables)
    if (known == name) return void(old = std::move(value));
  if (variables.size() >= kMaxVariables) fail("more than {} variables", kMaxVariables);
  variables.emplace_back(name, std::move(value));
}

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope; scope = scope->parent.get())
    for (const auto& [known, value] : scope->variables)
      if (known == name) return &value;
  return nullptr;
}

void Namespace::set(std::string_view name, Value value) {
  for (auto& [known, old] : fields)
    if (known == name) return void(old = std::move(value));
  if (fields.size() >= kMaxVariables) fail("more than {} fields in a namespace", kMaxVariables);
  fields.emplace_back(std::string(name), std::move(value));
}

const Value* Namespace::find(std::string_view name) const {
  for (const auto& [known, value] : fields)
    if (known == name) return &value;
  return nullptr;
}

Interpreter::~Interpreter() {
  // Empties whatever may be part of a cycle while it is still held here, so that nothing leaks and no destructors
  // recurse deeply.
  for (auto& object : namespaces_) object->fields.clear();
  for (auto& scope : captured_) scope->variables.clear();
  for (auto& object : objects_) {
    if (auto* loop = dynamic_cast<Loop*>(object.get())) {
      loop->items.reset();
      loop->last_changed = Value();
    } else if (auto* cycler = dynamic_cast<Cycler*>(object.get())) {
      cycler->items.clear();
    }
  }
  globals_->variables.clear();
}

void Interpreter::define(std::string_view name, Value value) { globals_->set(name, std::move(value)); }

Text Interpreter::run(const Template& tmpl) {
  // The template's own variables are in a scope above the given ones, which macros see and nothing can overwrite.
  const ScopePtr top = std::make_shared<Scope>();
  top->parent = globals_;
  captured_.push_back(top);
  return capture(tmpl.body, top);
}

// Redirects the output while it lives, and charges what it holds.
class Interpreter::Capture {
 public:
  explicit Capture(Interpreter& in) : in_(in), outer_(std::exchange(in.out_, this)) {}
  ~Capture() {
    in_.meter_.release(held_);
    in_.out_ = outer_;
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  void write(const Value& value) {
    append_str(in_.meter_, value, builder_);
    const size_t most = in_.meter_.limits().output_bytes;
    if (builder_.size() > most) fail("the chat template writes more than {} bytes", most);
    in_.meter_.hold(builder_.size() - held_);
    held_ = builder_.size();
  }
  Text take() { return builder_.take(); }

 private:
  Interpreter& in_;
  Capture* const outer_;
  TextBuilder builder_;
  size_t held_ = 0;
};

Text Interpreter::capture(const Body& body, const ScopePtr& scope) {
  Capture inner(*this);
  exec(body, scope);
  return inner.take();
}

void Interpreter::output(const Value& value) { out_->write(value); }

Interpreter::Flow Interpreter::exec(const Body& body, const ScopePtr& scope) {
  for (const StmtPtr& statement : body) {
    meter_.step();
    try {
      const Flow flow = exec(*statement, scope);
      if (flow != Flow::kNext) return flow;
    } catch (Fault& fault) {
      if (fault.at.line == 0) fault.at = statement->at;
      throw;
    }
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::exec(const Stmt& statement, const ScopePtr& scope) {
  const Nesting nesting(meter_);
  switch (statement.kind) {
    case StmtKind::kData:
      output(statement.text);
      break;
    case StmtKind::kOutput:
      output(eval(*statement.expr, scope));
      break;
    case StmtKind::kIf:
      return exec_if(statement, scope);
    case StmtKind::kFor:
      exec_for(statement, scope, eval(*statement.expr, scope), 1);
      break;
    case StmtKind::kSet:
    case StmtKind::kSetBlock:
      exec_set(statement, scope);
      break;
    case StmtKind::kMacro:
      scope->set(statement.name, Value(make_macro(statement, scope)));
      break;
    case StmtKind::kCallBlock:
      exec_call_block(statement, scope);
      break;
    case StmtKind::kFilterBlock: {
      const Value text = make_text(meter_, capture(statement.body, scope));
      output(eval_filter(*statement.expr, scope, &text));
      break;
    }
    case StmtKind::kWith:
      exec_with(statement, scope);
      break;
    case StmtKind::kScope:
      return exec(statement.body, scope);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::exec_if(const Stmt& statement, const ScopePtr& scope) {
  for (const auto& [condition, body] : statement.branches)
    if (!condition || truthy(eval(*condition, scope))) return exec(body, scope);
  return Flow::kNext;
}

void Interpreter::exec_for(const Stmt& statement, const ScopePtr& scope, const Value& iterable, int depth) {
  // A loop that something (say, a namespace) keeps is registered, even if an error ends it.
  struct Keeper {
    std::vector<std::shared_ptr<Object>>& objects;
    std::shared_ptr<Loop> loop = std::make_shared<Loop>();
    ~Keeper() {
      if (loop.use_count() > 1) objects.push_back(loop);
    }
  } keeper{objects_};
  meter_.step(4);
  const std::shared_ptr<Loop>& loop = keeper.loop;
  loop->statement = &statement;
  loop->scope = scope;
  loop->depth = depth;
  loop->items = iterate_shared(meter_, iterable);
  if (statement.condition) {
    std::vector<Value> kept;
    for (const Value& item : loop->items->items) {
      const ScopePtr inner = std::make_shared<Scope>();
      inner->parent = scope;
      assign(*statement.target, item, inner);
      if (truthy(eval(*statement.condition, inner))) kept.push_back(item);
    }
    loop->items = std::get<ListPtr>(make_list(meter_, std::move(kept)).data);
  }
  const std::vector<Value>& items = loop->items->items;
  for (size_t i = 0; i < items.size(); ++i) {
    meter_.step();
    loop->index = i;
    const ScopePtr inner = std::make_shared<Scope>();
    inner->parent = scope;
    inner->set("loop", Value(ObjectPtr(loop)));
    assign(*statement.target, items[i], inner);
    if (exec(statement.body, inner) == Flow::kBreak) break;
  }
  if (items.empty()) exec(statement.otherwise, scope);
}

void Interpreter::assign(const Expr& target, Value value, const ScopePtr& scope) {
  if (target.kind == ExprKind::kName) return scope->set(target.name, std::move(value));
  if (target.kind == ExprKind::kAttribute) {
    const Value* object = scope->find(target.children[0]->name);
    auto* space = object && object->is(Kind::kObject) ? dynamic_cast<Namespace*>(object->object().get()) : nullptr;
    if (!space) fail("cannot assign attribute on non-namespace object");
    if (!space->find(target.name)) meter_.hold(sizeof(Value) + target.name.size() + 32);
    return space->set(target.name, std::move(value));
  }
  const std::vector<Value> items = iterate(meter_, value);
  const size_t wanted = target.children.size();
  if (items.size() < wanted) fail("not enough values to unpack (expected {}, got {})", wanted, items.size());
  if (items.size() > wanted) fail("too many values to unpack (expected {})", wanted);
  for (size_t i = 0; i < wanted; ++i) assign(*target.children[i], items[i], scope);
}

void Interpreter::exec_set(const Stmt& statement, const ScopePtr& scope) {
  if (statement.kind == StmtKind::kSet) return assign(*statement.target, eval(*statement.expr, scope), scope);
  const ScopePtr inner = std::make_shared<Scope>();
  inner->parent = scope;
  Value text = make_text(meter_, capture(statement.body, inner));
  if (statement.expr) text = eval_filter(*statement.expr, scope, &text);
  assign(*statement.target, std::move(text), scope);
}

void Interpreter::exec_with(const Stmt& statement, const ScopePtr& scope) {
  const ScopePtr inner = std::make_shared<Scope>();
  inner->parent = scope;
  for (const auto& [name, expr] : statement.parameters) inner->set(name, eval(*expr, scope));
  exec(statement.body, inner);
}

std::shared_ptr<Macro> Interpreter::make_macro(const Stmt& statement, const ScopePtr& scope) {
  meter_.hold(sizeof(Macro) + sizeof(Scope) + 128);
  auto macro = std::make_shared<Macro>();
  macro->statement = &statement;
  macro->scope = scope;
  if (captured_.empty() || captured_.back() != scope) captured_.push_back(scope);
  return macro;
}

void Interpreter::exec_call_block(const Stmt& statement, const ScopePtr& scope) {
  const Expr& call_expr = *statement.expr;
  const Value callee = eval(*call_expr.children[0], scope);
  CallArgs args = eval_arguments(call_expr, scope);
  args.named.emplace_back("caller", Value(make_macro(statement, scope)));
  output(call(callee, std::move(args)));
}

Value Interpreter::call_macro(const Macro& macro, CallArgs args) {
  const Nesting nesting(meter_);
  const Stmt& statement = *macro.statement;
  const ScopePtr inner = std::make_shared<Scope>();
  inner->parent = macro.scope;
  const size_t given = std::min(args.positional.size(), statement.parameters.size());
  for (size_t i = 0; i < given; ++i) inner->set(statement.parameters[i].first, std::move(args.positional[i]));
  DictBuilder extra(meter_);
  for (auto& [name, value] : args.named) {
    meter_.step(statement.parameters.size() / 8 + 1);
    size_t i = 0;
    while (i < statement.parameters.size() && statement.parameters[i].first != name) ++i;
    if (i < given) fail("macro '{}' got multiple values for argument '{}'", statement.name, name);
    if (i < statement.parameters.size()) {
      inner->set(statement.parameters[i].first, std::move(value));
    } else if (name == "caller" && statement.kind == StmtKind::kMacro && statement.uses_caller) {
      inner->set("caller", std::move(value));
    } else if (statement.uses_kwargs) {
      extra.set(name_of(meter_, args, name), std::move(value));
    } else {
      fail("macro '{}' takes no keyword argument '{}'", statement.name, name);
    }
  }
  if (args.positional.size() > given && !statement.uses_varargs)
    fail("macro '{}' takes not more than {} argument(s)", statement.name, statement.parameters.size());
  for (size_t i = given; i < statement.parameters.size(); ++i) {
    const auto& [name, fallback] = statement.parameters[i];
    const auto known = [&, &name = name](const auto& variable) { return variable.first == name; };
    if (std::ranges::any_of(inner->variables, known)) continue;
    inner->set(name, fallback ? eval(*fallback, inner)
                              : Value::undefined(fmt::format("parameter '{}' was not provided", name)));
  }
  if (statement.uses_caller && !inner->find("caller")) inner->set("caller", Value::undefined("No caller defined"));
  if (statement.uses_kwargs) inner->set("kwargs", extra.take());
  if (statement.uses_varargs) {
    const auto rest = args.positional.begin() + static_cast<std::ptrdiff_t>(given);
    inner->set("varargs", make_list(meter_, {rest, args.positional.end()}, Flavor::kTuple));
  }
  return make_text(meter_, capture(statement.body, inner));
}

Value Interpreter::call_loop(Loop& loop, const CallArgs& args) {
  if (!loop.statement->recursive) fail("The loop must have the 'recursive' marker to be called recursively.");
  if (args.positional.size() != 1 || !args.named.empty()) fail("loop() takes the items of the next level");
  Capture inner(*this);
  exec_for(*loop.statement, loop.scope, args.positional[0], loop.depth + 1);
  return make_text(meter_, inner.take());
}

std::shared_ptr<Namespace> Interpreter::make_namespace() {
  meter_.hold(sizeof(Namespace) + 64);
  namespaces_.push_back(std::make_shared<Namespace>());
  return namespaces_.back();
}

}  // namespace kvilt::jinja
