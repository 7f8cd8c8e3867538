// template/jinja/parser.cc: recursive descent over the tokens, with Jinja 3.1's precedences. Statements are in
// statements.cc.
#include "template/jinja/parser.h"

#include <charconv>
#include <limits>

namespace kvilt::jinja {

void Parser::fail_at(const Token& token, std::string message) const {
  throw Fault{Code::kInvalidArgument, std::move(message), token.at};
}

std::string Parser::describe(const Token& token) const {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kData:
    case TokenKind::kVariableBegin:
    case TokenKind::kBlockBegin:
      return "a new tag";
    default:
      return "'" + token.text + "'";
  }
}

const Token& Parser::peek(size_t ahead) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }

const Token& Parser::next() {
  const Token& token = peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::is_op(std::string_view op, size_t ahead) const {
  return peek(ahead).kind == TokenKind::kOperator && peek(ahead).text == op;
}

bool Parser::is_name(std::string_view name, size_t ahead) const {
  return peek(ahead).kind == TokenKind::kName && peek(ahead).text == name;
}

bool Parser::skip_op(std::string_view op) { return is_op(op) && (next(), true); }
bool Parser::skip_name(std::string_view name) { return is_name(name) && (next(), true); }

void Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) fail_at(peek(), fmt::format("expected '{}', got {}", op, describe(peek())));
}

void Parser::expect_kind(TokenKind kind, std::string_view what) {
  if (peek().kind != kind) fail_at(peek(), fmt::format("expected {}, got {}", what, describe(peek())));
  next();
}

std::string Parser::expect_name() {
  if (peek().kind != TokenKind::kName) fail_at(peek(), fmt::format("expected a name, got {}", describe(peek())));
  return next().text;
}

ExprPtr Parser::make(ExprKind kind, Position at) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->at = at;
  return expr;
}

void Parser::add(Expr& parent, ExprPtr child) const {
  if (child) {
    parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kMaxParseDepth)
      throw Fault{Code::kInvalidArgument, "an expression is nested too deeply", parent.at};
  }
  parent.children.push_back(std::move(child));
}

Parser::Level::Level(Parser& parser) : parser(parser) {
  if (++parser.depth_ > kMaxParseDepth) {
    --parser.depth_;
    parser.fail_at(parser.peek(), "the template is nested too deeply");
  }
}

ExprPtr Parser::parse_expression() {
  const Level level(*this);
  ExprPtr expr = parse_or();
  while (is_name("if")) {
    ExprPtr conditional = make(ExprKind::kConditional, next().at);
    add(*conditional, std::move(expr));
    add(*conditional, parse_or());
    add(*conditional, skip_name("else") ? parse_expression() : nullptr);
    expr = std::move(conditional);
  }
  return expr;
}

ExprPtr Parser::binary(ExprKind kind, Position at, ExprPtr left, ExprPtr right) const {
  ExprPtr expr = make(kind, at);
  add(*expr, std::move(left));
  add(*expr, std::move(right));
  return expr;
}

ExprPtr Parser::parse_or() {
  ExprPtr left = parse_and();
  while (is_name("or")) {
    const Position at = next().at;
    left = binary(ExprKind::kOr, at, std::move(left), parse_and());
  }
  return left;
}

ExprPtr Parser::parse_and() {
  ExprPtr left = parse_not();
  while (is_name("and")) {
    const Position at = next().at;
    left = binary(ExprKind::kAnd, at, std::move(left), parse_not());
  }
  return left;
}

ExprPtr Parser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Level level(*this);
  ExprPtr expr = make(ExprKind::kNot, next().at);
  add(*expr, parse_not());
  return expr;
}

ExprPtr Parser::parse_compare() {
  ExprPtr first = parse_sum();
  ExprPtr compare;
  while (true) {
    const Position at = peek().at;
    std::string op;
    if (is_name("in")) {
      op = "in";
    } else if (is_name("not") && is_name("in", 1)) {
      op = "not in";
      next();
    } else {
      for (std::string_view known : {"==", "!=", "<", "<=", ">", ">="})
        if (is_op(known)) op = known;
    }
    if (op.empty()) return compare ? std::move(compare) : std::move(first);
    next();
    if (!compare) {
      compare = make(ExprKind::kCompare, at);
      add(*compare, std::move(first));
    }
    compare->names.push_back(std::move(op));
    add(*compare, parse_sum());
  }
}

ExprPtr Parser::parse_chain(std::initializer_list<std::string_view> ops, ExprPtr (Parser::*operand)()) {
  ExprPtr left = (this->*operand)();
  while (true) {
    std::string found;
    for (std::string_view op : ops)
      if (is_op(op)) found = op;
    if (found.empty()) return left;
    const Position at = next().at;
    left = binary(ExprKind::kBinary, at, std::move(left), (this->*operand)());
    left->name = std::move(found);
  }
}

ExprPtr Parser::parse_sum() { return parse_chain({"+", "-"}, &Parser::parse_concat); }
ExprPtr Parser::parse_product() { return parse_chain({"*", "/", "//", "%"}, &Parser::parse_power); }
ExprPtr Parser::parse_power() { return parse_chain({"**"}, &Parser::parse_filtered); }

ExprPtr Parser::parse_concat() {
  ExprPtr first = parse_product();
  if (!is_op("~")) return first;
  ExprPtr concat = make(ExprKind::kConcat, peek().at);
  add(*concat, std::move(first));
  while (skip_op("~")) add(*concat, parse_product());
  return concat;
}

ExprPtr Parser::parse_filtered() { return parse_unary(true); }

ExprPtr Parser::parse_unary(bool with_filters) {
  const Level level(*this);
  ExprPtr expr;
  if (is_op("-") || is_op("+")) {
    expr = make(is_op("-") ? ExprKind::kNegate : ExprKind::kPlus, peek().at);
    next();
    add(*expr, parse_unary(false));
  } else {
    expr = parse_primary();
  }
  expr = parse_postfix(std::move(expr));
  return with_filters ? parse_filters(std::move(expr)) : std::move(expr);
}

ExprPtr Parser::parse_number(const Token& token) {
  ExprPtr expr = make(ExprKind::kConst, token.at);
  const std::string& text = token.text;
  const char* const end = text.data() + text.size();
  if (token.kind == TokenKind::kFloat) {
    double value = 0;
    const bool outside = std::from_chars(text.data(), end, value).ec == std::errc::result_out_of_range;
    if (outside) value = text.find("e-") == std::string::npos ? std::numeric_limits<double>::infinity() : 0.0;
    expr->value = Value(value);
    return expr;
  }
  const char sign = text.size() > 1 ? text[1] : '0';
  const int base = sign == 'x' ? 16 : sign == 'o' ? 8 : sign == 'b' ? 2 : 10;
  int64_t value = 0;
  const char* const begin = text.data() + (base == 10 ? 0 : 2);
  if (std::from_chars(begin, end, value, base).ec != std::errc()) fail_at(token, "a number is too large");
  expr->value = Value(value);
  return expr;
}

ExprPtr Parser::parse_primary() {
  const Token& token = peek();
  switch (token.kind) {
    case TokenKind::kName: {
      const std::string& name = next().text;
      ExprPtr expr = make(ExprKind::kConst, token.at);
      if (name == "true" || name == "True" || name == "false" || name == "False") {
        expr->value = Value(name == "true" || name == "True");
      } else if (name != "none" && name != "None") {
        expr->kind = ExprKind::kName;
        expr->name = name;
      }
      return expr;
    }
    case TokenKind::kString: {
      ExprPtr expr = make(ExprKind::kConst, token.at);
      std::string text = next().text;
      while (peek().kind == TokenKind::kString) text += next().text;
      expr->value = Value(std::make_shared<const Text>(Text{std::move(text), {}, false}));
      return expr;
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return parse_number(next());
    default:
      break;
  }
  if (skip_op("(")) {
    ExprPtr expr = parse_tuple(true);
    expect_op(")");
    return expr;
  }
  if (is_op("[")) return parse_list();
  if (is_op("{")) return parse_dict();
  fail_at(token, fmt::format("unexpected {}", describe(token)));
}

ExprPtr Parser::parse_tuple(bool in_parentheses) {
  const Position at = peek().at;
  const auto ends = [&] {
    return is_op(")") || peek().kind == TokenKind::kBlockEnd || peek().kind == TokenKind::kVariableEnd;
  };
  if (ends()) {
    if (!in_parentheses) fail_at(peek(), fmt::format("expected an expression, got {}", describe(peek())));
    return make(ExprKind::kTuple, at);
  }
  ExprPtr first = parse_expression();
  if (!is_op(",")) return first;
  ExprPtr tuple = make(ExprKind::kTuple, at);
  add(*tuple, std::move(first));
  while (skip_op(",")) {
    if (ends()) break;
    add(*tuple, parse_expression());
  }
  return tuple;
}

ExprPtr Parser::parse_list() {
  ExprPtr list = make(ExprKind::kList, next().at);
  while (!is_op("]")) {
    add(*list, parse_expression());
    if (!skip_op(",")) break;
  }
  expect_op("]");
  return list;
}

ExprPtr Parser::parse_dict() {
  ExprPtr dict = make(ExprKind::kDict, next().at);
  while (!is_op("}")) {
    add(*dict, parse_expression());
    expect_op(":");
    add(*dict, parse_expression());
    if (!skip_op(",")) break;
  }
  expect_op("}");
  return dict;
}

ExprPtr Parser::parse_postfix(ExprPtr expr) {
  while (true) {
    if (is_op(".") || is_op("[")) {
      expr = parse_subscript(std::move(expr));
    } else if (is_op("(")) {
      ExprPtr call = make(ExprKind::kCall, peek().at);
      add(*call, std::move(expr));
      parse_arguments(*call);
      expr = std::move(call);
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_subscript(ExprPtr object) {
  const Position at = peek().at;
  if (skip_op(".")) {
    const Token& token = next();
    ExprPtr expr;
    if (token.kind == TokenKind::kName) {
      expr = make(ExprKind::kAttribute, at);
      expr->name = token.text;
      add(*expr, std::move(object));
    } else if (token.kind == TokenKind::kInteger) {
      expr = binary(ExprKind::kItem, at, std::move(object), parse_number(token));
    } else {
      fail_at(token, fmt::format("expected a name or a number after '.', got {}", describe(token)));
    }
    return expr;
  }
  expect_op("[");
  ExprPtr index = parse_index();
  if (is_op(",")) {
    ExprPtr tuple = make(ExprKind::kTuple, at);
    add(*tuple, std::move(index));
    while (skip_op(",") && !is_op("]")) add(*tuple, parse_expression());
    index = std::move(tuple);
  }
  expect_op("]");
  return binary(ExprKind::kItem, at, std::move(object), std::move(index));
}

ExprPtr Parser::parse_index() {
  const Position at = peek().at;
  ExprPtr begin;
  if (!is_op(":")) {
    begin = parse_expression();
    if (!is_op(":")) return begin;
  }
  ExprPtr slice = make(ExprKind::kSlice, at);
  add(*slice, std::move(begin));
  for (int part = 0; part < 2; ++part) {
    const bool there = skip_op(":") && !is_op(":") && !is_op("]") && !is_op(",");
    add(*slice, there ? parse_expression() : nullptr);
  }
  return slice;
}

void Parser::parse_arguments(Expr& call) {
  const auto keep = [&](ExprPtr child) {  // children count for the depth wherever they are
    call.depth = std::max(call.depth, child->depth + 1);
    return child;
  };
  const Token& open = peek();
  expect_op("(");
  while (!is_op(")")) {
    if (skip_op("*")) {
      if (call.star || call.double_star) fail_at(open, "a call takes one *argument, before **");
      call.star = keep(parse_expression());
    } else if (skip_op("**")) {
      if (call.double_star) fail_at(open, "a call takes one **argument");
      call.double_star = keep(parse_expression());
    } else if (peek().kind == TokenKind::kName && is_op("=", 1)) {
      std::string name = next().text;
      next();
      call.keywords.emplace_back(std::move(name), keep(parse_expression()));
    } else {
      if (call.star || call.double_star || !call.keywords.empty())
        fail_at(peek(), "an argument without a name follows one with a name");
      add(call, parse_expression());
    }
    if (!skip_op(",")) break;
  }
  expect_op(")");
  if (call.depth > kMaxParseDepth) fail_at(open, "an expression is nested too deeply");
}

ExprPtr Parser::parse_filter(ExprPtr expr) {  // after the '|'
  ExprPtr filter = make(ExprKind::kFilter, peek().at);
  filter->name = expect_name();
  while (skip_op(".")) filter->name.append(".").append(expect_name());
  add(*filter, std::move(expr));
  if (is_op("(")) parse_arguments(*filter);
  return filter;
}

ExprPtr Parser::parse_filters(ExprPtr expr) {
  while (true) {
    if (skip_op("|")) {
      expr = parse_filter(std::move(expr));
    } else if (is_name("is")) {
      expr = parse_test(std::move(expr));
    } else if (is_op("(")) {
      ExprPtr call = make(ExprKind::kCall, peek().at);
      add(*call, std::move(expr));
      parse_arguments(*call);
      expr = std::move(call);
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_test(ExprPtr expr) {
  const Position at = next().at;
  const bool negated = skip_name("not");
  ExprPtr test = make(ExprKind::kTest, at);
  test->name = expect_name();
  while (skip_op(".")) test->name.append(".").append(expect_name());
  add(*test, std::move(expr));
  if (is_op("(")) {
    parse_arguments(*test);
  } else if (starts_test_argument()) {
    if (is_name("is")) fail_at(peek(), "tests cannot be chained with 'is'");
    add(*test, parse_postfix(parse_primary()));
  }
  if (!negated) return test;
  ExprPtr inverse = make(ExprKind::kNot, at);
  add(*inverse, std::move(test));
  return inverse;
}

bool Parser::starts_test_argument() const {
  switch (peek().kind) {
    case TokenKind::kName:  // Jinja takes any other name as the argument; `if`, `in` and `not` can never be one
      for (std::string_view word : {"else", "or", "and", "if", "in", "not", "recursive"})
        if (is_name(word)) return false;
      return true;
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return true;
    default:
      return is_op("[") || is_op("{");
  }
}

}  // namespace kvilt::jinja
