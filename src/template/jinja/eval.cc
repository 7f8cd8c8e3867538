// template/jinja/eval.cc: expressions, attributes and calls.
#include "template/jinja/interpreter.h"

#include <charconv>

namespace kvilt::jinja {

Value Interpreter::eval(const Expr& expr, const ScopePtr& scope) {
  const Nesting nesting(meter_);
  meter_.step();
  try {
    return eval_inner(expr, scope);
  } catch (Fault& fault) {
    if (fault.at.line == 0) fault.at = expr.at;
    throw;
  }
}

Value Interpreter::eval_inner(const Expr& expr, const ScopePtr& scope) {
  const auto child = [&](size_t i) { return eval(*expr.children[i], scope); };
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.value;
    case ExprKind::kName:
      return eval_name(expr, scope);
    case ExprKind::kTuple:
      return make_list(meter_, eval_all(expr, scope), Flavor::kTuple);
    case ExprKind::kList:
      return make_list(meter_, eval_all(expr, scope));
    case ExprKind::kDict:
      return eval_dict(expr, scope);
    case ExprKind::kAttribute:
      return attribute(child(0), expr.name);
    case ExprKind::kItem:
      return eval_item(expr, scope);
    case ExprKind::kSlice:
      break;
    case ExprKind::kCall:
      return eval_call(expr, scope);
    case ExprKind::kFilter:
      return eval_filter(expr, scope, nullptr);
    case ExprKind::kTest: {
      const Value self = child(0);
      return Value(test(expr.name, self, eval_arguments(expr, scope)));
    }
    case ExprKind::kNot:
      return Value(!truthy(child(0)));
    case ExprKind::kNegate:
      return negate(child(0));
    case ExprKind::kPlus: {
      const Value value = child(0);
      return value.is(Kind::kBool) ? Value(value.integer()) : value.is_number() ? value : negate(value);
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value left = child(0);
      return truthy(left) == (expr.kind == ExprKind::kOr) ? left : child(1);
    }
    case ExprKind::kBinary: {
      const Value left = child(0);
      return binary_operator(meter_, expr.name, left, child(1));
    }
    case ExprKind::kConcat:
      return eval_concat(expr, scope);
    case ExprKind::kCompare:
      return eval_compare(expr, scope);
    case ExprKind::kConditional:
      if (truthy(child(1))) return child(0);
      if (expr.children[2]) return child(2);
      return Value::undefined("the inline if-expression evaluated to false and no else section was defined.");
  }
  fail("a slice is outside of []");
}

Value Interpreter::eval_name(const Expr& expr, const ScopePtr& scope) {
  if (const Value* value = scope->find(expr.name)) return *value;
  if (const Builtin* builtin = find_global(expr.name)) {
    auto function = std::make_shared<Function>();
    function->builtin = builtin;
    return Value(std::move(function));
  }
  return Value::undefined(fmt::format("'{}' is undefined", expr.name));
}

Value Interpreter::eval_dict(const Expr& expr, const ScopePtr& scope) {
  DictBuilder dict(meter_);
  for (size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    Value key = eval(*expr.children[i], scope);
    dict.set(std::move(key), eval(*expr.children[i + 1], scope));
  }
  return dict.take();
}

Value Interpreter::eval_concat(const Expr& expr, const ScopePtr& scope) {
  TextBuilder out;
  for (const ExprPtr& part : expr.children) append_str(meter_, eval(*part, scope), out);
  return make_text(meter_, out.take());
}

Value Interpreter::eval_compare(const Expr& expr, const ScopePtr& scope) {
  Value left = eval(*expr.children[0], scope);
  for (size_t i = 0; i < expr.names.size(); ++i) {
    Value right = eval(*expr.children[i + 1], scope);
    const std::string& op = expr.names[i];
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equals(meter_, left, right) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(meter_, right, left) == (op == "in");
    } else {
      const int order = compare(meter_, left, right, op);
      const bool less = order == -1, same = order == 0, greater = order == 1;
      holds = op == "<" ? less : op == "<=" ? less || same : op == ">" ? greater : greater || same;
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

std::vector<Value> Interpreter::eval_all(const Expr& expr, const ScopePtr& scope) {
  std::vector<Value> values;
  values.reserve(expr.children.size());
  for (const ExprPtr& child : expr.children) values.push_back(eval(*child, scope));
  return values;
}

CallArgs Interpreter::eval_arguments(const Expr& expr, const ScopePtr& scope) {
  CallArgs args;
  for (size_t i = 1; i < expr.children.size(); ++i) args.positional.push_back(eval(*expr.children[i], scope));
  if (expr.star)
    for (Value& value : iterate(meter_, eval(*expr.star, scope))) args.positional.push_back(std::move(value));
  for (const auto& [name, value] : expr.keywords) args.named.emplace_back(name, eval(*value, scope));
  if (expr.double_star) {
    const Value more = eval(*expr.double_star, scope);
    if (!more.is_dict()) fail("argument after ** must be a mapping, not {}", type_name(more));
    args.foreign_names = true;
    for (const auto& [name, value] : more.dict().items) {
      if (!name.is_text()) fail("keywords must be strings");
      meter_.step(name.text().bytes.size() / 64);
      args.named.emplace_back(name.text().bytes, value);
    }
  }
  return args;
}

Value Interpreter::eval_filter(const Expr& expr, const ScopePtr& scope, const Value* input) {
  // The innermost filter of a block has no operand of its own; it gets the block's text.
  Value self;
  if (!expr.children[0]) {
    self = *input;
  } else if (input && expr.children[0]->kind == ExprKind::kFilter) {
    self = eval_filter(*expr.children[0], scope, input);
  } else {
    self = eval(*expr.children[0], scope);
  }
  return filter(expr.name, self, eval_arguments(expr, scope));
}

Value Interpreter::eval_call(const Expr& expr, const ScopePtr& scope) {
  const Value callee = eval(*expr.children[0], scope);
  return call(callee, eval_arguments(expr, scope));
}

Value Interpreter::eval_item(const Expr& expr, const ScopePtr& scope) {
  const Value object = eval(*expr.children[0], scope);
  const Expr& index = *expr.children[1];
  if (index.kind != ExprKind::kSlice) return item(object, eval(index, scope));
  Value parts[3];
  for (size_t i = 0; i < 3; ++i)
    if (index.children[i]) parts[i] = eval(*index.children[i], scope);
  return slice(meter_, object, parts[0], parts[1], parts[2]);
}

Value Interpreter::call(const Value& callee, CallArgs args) {
  const Nesting nesting(meter_);
  meter_.step();
  if (callee.is_undefined()) fail("{}", why_undefined(callee));
  Object* object = callee.is(Kind::kObject) ? callee.object().get() : nullptr;
  if (auto* function = dynamic_cast<Function*>(object))
    return call_builtin(*this, *function->builtin, function->self, args);
  if (auto* macro = dynamic_cast<Macro*>(object)) return call_macro(*macro, std::move(args));
  if (auto* loop = dynamic_cast<Loop*>(object)) return call_loop(*loop, args);
  if (auto* joiner = dynamic_cast<Joiner*>(object))
    return std::exchange(joiner->used, true) ? joiner->separator : make_trusted(meter_, "");
  fail("'{}' object is not callable", type_name(callee));
}

Value Interpreter::filter(std::string_view name, const Value& self, const CallArgs& args) {
  const Builtin* builtin = find_filter(name);
  if (!builtin) fail("No filter named '{}' found.", name);
  return call_builtin(*this, *builtin, self, args);
}

bool Interpreter::test(std::string_view name, const Value& self, const CallArgs& args) {
  const Builtin* builtin = find_test(name);
  if (!builtin) fail("No test named '{}' found.", name);
  return truthy(call_builtin(*this, *builtin, self, args));
}

Value Interpreter::bind_method(const Value& self, const Builtin& method) {
  auto function = std::make_shared<Function>();
  function->builtin = &method;
  function->self = self;
  function->levels = nesting_of(self) + 1;
  if (function->levels > kMaxValueDepth) fail("values are nested more than {} deep", kMaxValueDepth);
  return Value(std::move(function));
}

Value Interpreter::loop_attribute(const Loop& loop, std::string_view name) {
  const auto number = [](size_t n) { return Value(static_cast<int64_t>(n)); };
  const std::vector<Value>& items = loop.items->items;
  const size_t size = items.size(), i = loop.index;
  if (name == "index") return number(i + 1);
  if (name == "index0") return number(i);
  if (name == "revindex") return number(size - i);
  if (name == "revindex0") return number(size - i - 1);
  if (name == "first") return Value(i == 0);
  if (name == "last") return Value(i + 1 >= size);
  if (name == "length") return number(size);
  if (name == "depth") return number(static_cast<size_t>(loop.depth));
  if (name == "depth0") return number(static_cast<size_t>(loop.depth - 1));
  if (name == "previtem") return i > 0 ? items[i - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem") return i + 1 < size ? items[i + 1] : Value::undefined("there is no next item");
  return Value::undefined("");
}

Value Interpreter::attribute(const Value& object, std::string_view name) {
  meter_.step(4);  // may make a bound method or a message
  if (object.is_undefined()) fail("{}", why_undefined(object));
  if (object.is(Kind::kObject)) {
    const Object* target = object.object().get();
    if (const auto* space = dynamic_cast<const Namespace*>(target)) {
      const Value* field = space->find(name);
      return field ? *field : Value::undefined(fmt::format("'Namespace object' has no attribute '{}'", shorten(name)));
    }
    if (const auto* loop = dynamic_cast<const Loop*>(target)) {
      Value value = loop_attribute(*loop, name);
      if (!value.is_undefined() || !why_undefined(value).empty()) return value;
    }
    if (const auto* macro = dynamic_cast<const Macro*>(target); macro && name == "name")
      return make_trusted(meter_, macro->statement->name);
    if (const auto* cycler = dynamic_cast<const Cycler*>(target); cycler && name == "current")
      return cycler->items[cycler->at];
  }
  if (const Builtin* method = find_method(object, name)) return bind_method(object, *method);
  if (object.is_dict())
    if (const Value* value = find_key(meter_, object.dict(), name)) return *value;
  return Value::undefined(fmt::format("'{} object' has no attribute '{}'", type_name(object), shorten(name)));
}

Value Interpreter::item(const Value& object, const Value& key) {
  meter_.step(4);
  if (object.is_undefined()) fail("{}", why_undefined(object));
  if (object.is_dict()) {
    if (const Value* value = find_key(meter_, object.dict(), key)) return *value;
  } else if (key.is_integral() && (object.is_list() || object.is_text())) {
    const bool indexed = object.is_text() || object.list().flavor == Flavor::kList ||
                         object.list().flavor == Flavor::kTuple || object.list().flavor == Flavor::kRange;
    const int64_t size = indexed ? static_cast<int64_t>(*length_of(meter_, object)) : 0;
    int64_t i = key.integer();
    if (i < 0) i += size;
    if (i >= 0 && i < size) {
      if (object.is_list()) return object.list().items[i];
      return slice(meter_, object, Value(i), Value(i + 1), Value());
    }
  } else if (key.is_text()) {
    return attribute(object, key.text().bytes);
  }
  if (key.is_text()) {  // a dict without that key: Jinja tries the attribute next
    if (const Builtin* method = find_method(object, key.text().bytes)) return bind_method(object, *method);
    return Value::undefined(
        fmt::format("'{} object' has no attribute '{}'", type_name(object), shorten(key.text().bytes)));
  }
  TextBuilder shown;
  append_repr(meter_, key, shown);
  return Value::undefined(fmt::format("'{} object' has no element {}", type_name(object), shorten(shown.take().bytes)));
}

Value Interpreter::attribute_path(const Value& object, const Value& path, const Value* otherwise) {
  const auto step = [&](const Value& from, const Value& key) {
    Value value = item(from, key);
    return value.is_undefined() && otherwise && !otherwise->is_none() ? *otherwise : value;
  };
  if (!path.is_text()) return step(object, path);
  Value value = object;
  const std::string& all = path.text().bytes;
  for (size_t begin = 0; begin <= all.size();) {
    const size_t end = std::min(all.find('.', begin), all.size());
    const std::string_view part = std::string_view(all).substr(begin, end - begin);
    int64_t index = 0;
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos &&
                        std::from_chars(part.data(), part.data() + part.size(), index).ec == std::errc();
    value = step(value, digits ? Value(index) : make_trusted(meter_, part));
    begin = end + 1;
  }
  return value;
}

}  // namespace kvilt::jinja
