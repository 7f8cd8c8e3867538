// template/jinja/objects.h: values with identity: namespaces, loops, macros, functions, methods bound to a value.
// Invariants: namespaces and captured scopes may form cycles; the interpreter registers them and takes them apart at
// its end.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "template/jinja/value.h"

namespace kvilt::jinja {

struct Stmt;
class Interpreter;

// Variables of one block. Names live in the syntax tree or in the interpreter.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>> variables;

  void set(std::string_view name, Value value);
  const Value* find(std::string_view name) const;  // here or in a parent
};

struct Namespace : Object {
  std::vector<std::pair<std::string, Value>> fields;
  std::string_view type_name() const override { return "Namespace"; }
  void set(std::string_view name, Value value);
  const Value* find(std::string_view name) const;
};

struct Loop : Object {
  const Stmt* statement = nullptr;
  std::shared_ptr<Scope> scope;  // of the for statement, for recursive loops
  ListPtr items;
  size_t index = 0;
  int depth = 1;
  Value last_changed;  // of loop.changed(...)
  bool has_changed = false;
  std::string_view type_name() const override { return "LoopContext"; }
  bool callable() const override { return true; }
};

struct Macro : Object {
  const Stmt* statement = nullptr;
  std::shared_ptr<Scope> scope;  // where it was defined
  std::string_view type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
};

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  bool foreign_names = false;  // some came from **dict, so they may be the caller's text
};

Value name_of(Meter& meter, const CallArgs& args, std::string_view name);  // a keyword's name as a value

struct Cycler : Object {
  std::vector<Value> items;
  size_t at = 0;
  std::string_view type_name() const override { return "Cycler"; }
};

struct Joiner : Object {
  Value separator;
  bool used = false;
  std::string_view type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
};

struct Builtin;  // builtins.h: a function, method, filter or test written in C++

struct Function : Object {
  const Builtin* builtin = nullptr;
  Value self;  // of a bound method
  int levels = 0;
  int depth() const override { return levels; }
  std::string_view type_name() const override { return "function"; }
  bool callable() const override { return true; }
};

}  // namespace kvilt::jinja
