// template/jinja/ast.h: the syntax tree of a template. Built by parser.cc, read by the interpreter; immutable and
// shared.
// Invariants: at most kMaxParseDepth levels, so that every recursion over it is bounded.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "template/jinja/value.h"

namespace kvilt::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind {
  kConst,      // value
  kName,       // name
  kTuple,      // children
  kList,       // children
  kDict,       // children: key, value, key, value, ...
  kAttribute,  // children[0] . name
  kItem,       // children[0] [ children[1] ]
  kSlice,      // children: begin, end, step; each may be null. Only as children[1] of kItem
  kCall,       // children[0] ( children[1...], keywords )
  kFilter,     // children[0] | name ( children[1...], keywords ); children[0] is null in a filter block
  kTest,       // children[0] is name ( children[1...], keywords )
  kNot,
  kNegate,
  kPlus,
  kAnd,
  kOr,
  kBinary,       // name: the operator
  kConcat,       // children, each made a string
  kCompare,      // children[0] names[0] children[1] names[1] children[2] ...
  kConditional,  // children: value, condition, other (may be null)
};

struct Expr {
  ExprKind kind;
  Position at;
  std::string name;
  Value value;
  std::vector<ExprPtr> children;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr star, double_star;       // f(*star, **double_star)
  std::vector<std::string> names;  // kCompare: its operators
  int depth = 1;
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

enum class StmtKind {
  kData,         // text
  kOutput,       // expr
  kIf,           // branches: (condition or null for else, body)
  kFor,          // target, expr, condition, body, otherwise
  kSet,          // target = expr
  kSetBlock,     // target = body, expr: filters or null
  kMacro,        // name, parameters, body
  kCallBlock,    // expr: the call; parameters, body: its caller()
  kFilterBlock,  // expr: filters; body
  kWith,         // parameters: names and values; body
  kScope,        // body (generation blocks)
  kBreak,
  kContinue,
};

struct Stmt {
  StmtKind kind;
  Position at;
  std::string name;
  Value text;
  ExprPtr target, expr, condition;
  std::vector<std::pair<ExprPtr, Body>> branches;
  std::vector<std::pair<std::string, ExprPtr>> parameters;  // with defaults or null
  Body body, otherwise;
  bool recursive = false;
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;  // of a macro
};

struct Template {
  Body body;
};

// Throws a Fault with a position for an invalid template, with kUnsupported for include, import and extends.
Template parse_template(std::string_view source);

}  // namespace kvilt::jinja
