// template/jinja/parser.h: tokens to syntax tree. Private to parser.cc (expressions) and statements.cc; others use
// ast.h.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "template/jinja/ast.h"
#include "template/jinja/lexer.h"

namespace kvilt::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Template parse();

 private:
  struct Level {  // one level of recursion
    explicit Level(Parser& parser);
    ~Level() { --parser.depth_; }
    Parser& parser;
  };
  // The words that may end a block.
  using Ends = std::initializer_list<std::string_view>;

  [[noreturn]] void fail_at(const Token& token, std::string message) const;
  std::string describe(const Token& token) const;
  const Token& peek(size_t ahead = 0) const;
  const Token& next();
  bool is_op(std::string_view op, size_t ahead = 0) const;
  bool is_name(std::string_view name, size_t ahead = 0) const;
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect_kind(TokenKind kind, std::string_view what);
  std::string expect_name();

  ExprPtr make(ExprKind kind, Position at) const;
  void add(Expr& parent, ExprPtr child) const;
  ExprPtr binary(ExprKind kind, Position at, ExprPtr left, ExprPtr right) const;

  ExprPtr parse_expression();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_chain(std::initializer_list<std::string_view> ops, ExprPtr (Parser::*operand)());
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_filtered();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  ExprPtr parse_number(const Token& token);
  ExprPtr parse_tuple(bool in_parentheses);
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr object);
  ExprPtr parse_index();
  void parse_arguments(Expr& call);
  ExprPtr parse_filter(ExprPtr expr);
  ExprPtr parse_filters(ExprPtr expr);
  ExprPtr parse_test(ExprPtr expr);
  bool starts_test_argument() const;

  Body parse_body(Ends ends, const Token& opener);  // stops at one of the words, which is then the current token
  void end_block(std::string_view word);            // the word and its %}
  StmtPtr make_statement(StmtKind kind, Position at) const;
  StmtPtr parse_statement();
  StmtPtr parse_if();
  StmtPtr parse_for();
  StmtPtr parse_set();
  StmtPtr parse_macro();
  StmtPtr parse_call_block();
  StmtPtr parse_filter_block();
  StmtPtr parse_with();
  ExprPtr parse_target(bool with_attribute);
  ExprPtr parse_target_item(bool with_attribute);
  void parse_parameters(Stmt& macro);

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;  // break and continue need one
};

}  // namespace kvilt::jinja
