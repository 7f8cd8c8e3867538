// template/jinja/statements.cc: the statements' half of the parser.
#include "template/jinja/parser.h"

namespace kvilt::jinja {

Template parse_template(std::string_view source) { return Parser(tokenize(source)).parse(); }

Template Parser::parse() {
  const Token opener;
  return {parse_body({}, opener)};
}

StmtPtr Parser::make_statement(StmtKind kind, Position at) const {
  auto statement = std::make_unique<Stmt>();
  statement->kind = kind;
  statement->at = at;
  return statement;
}

Body Parser::parse_body(Ends ends, const Token& opener) {
  const Level level(*this);
  Body body;
  while (true) {
    const Token& token = next();
    switch (token.kind) {
      case TokenKind::kData: {
        StmtPtr data = make_statement(StmtKind::kData, token.at);
        data->text = Value(std::make_shared<const Text>(Text::trusted(token.text)));
        body.push_back(std::move(data));
        break;
      }
      case TokenKind::kVariableBegin: {
        StmtPtr output = make_statement(StmtKind::kOutput, token.at);
        output->expr = parse_tuple(false);
        expect_kind(TokenKind::kVariableEnd, "'}}'");
        body.push_back(std::move(output));
        break;
      }
      case TokenKind::kBlockBegin: {
        for (std::string_view end : ends)
          if (is_name(end)) return body;
        StmtPtr statement = parse_statement();
        if (statement) body.push_back(std::move(statement));
        break;
      }
      default:
        if (ends.size() == 0) return body;
        fail_at(opener, fmt::format("'{}' is not closed: expected {{% {} %}}", opener.text, *(ends.end() - 1)));
    }
  }
}

void Parser::end_block(std::string_view word) {
  if (!skip_name(word)) fail_at(peek(), fmt::format("expected '{}', got {}", word, describe(peek())));
  expect_kind(TokenKind::kBlockEnd, "'%}'");
}

StmtPtr Parser::parse_statement() {
  const Token& tag = peek();
  if (tag.kind != TokenKind::kName) fail_at(tag, fmt::format("expected the name of a tag, got {}", describe(tag)));
  if (tag.text == "if") return parse_if();
  if (tag.text == "for") return parse_for();
  if (tag.text == "set") return parse_set();
  if (tag.text == "macro") return parse_macro();
  if (tag.text == "call") return parse_call_block();
  if (tag.text == "filter") return parse_filter_block();
  if (tag.text == "with") return parse_with();
  if (tag.text == "generation") {
    next();
    expect_kind(TokenKind::kBlockEnd, "'%}'");
    StmtPtr scope = make_statement(StmtKind::kScope, tag.at);
    scope->body = parse_body({"endgeneration"}, tag);
    end_block("endgeneration");
    return scope;
  }
  if (tag.text == "break" || tag.text == "continue") {
    if (loops_ == 0) fail_at(tag, fmt::format("'{}' stands outside of a loop", tag.text));
    next();
    expect_kind(TokenKind::kBlockEnd, "'%}'");
    return make_statement(tag.text == "break" ? StmtKind::kBreak : StmtKind::kContinue, tag.at);
  }
  for (std::string_view word : {"include", "import", "from", "extends", "block"})
    if (tag.text == word)
      throw Fault{Code::kUnsupported, fmt::format("'{}' needs other templates; a chat template stands alone", word),
                  tag.at};
  fail_at(tag, fmt::format("unknown tag '{}'", tag.text));
}

StmtPtr Parser::parse_if() {
  const Token& tag = next();
  StmtPtr statement = make_statement(StmtKind::kIf, tag.at);
  ExprPtr condition = parse_tuple(false);
  expect_kind(TokenKind::kBlockEnd, "'%}'");
  while (true) {
    Body body = parse_body({"elif", "else", "endif"}, tag);
    statement->branches.emplace_back(std::move(condition), std::move(body));
    if (skip_name("elif")) {
      condition = parse_tuple(false);
      expect_kind(TokenKind::kBlockEnd, "'%}'");
      continue;
    }
    if (skip_name("else")) {
      expect_kind(TokenKind::kBlockEnd, "'%}'");
      statement->branches.emplace_back(nullptr, parse_body({"endif"}, tag));
    }
    end_block("endif");
    return statement;
  }
}

StmtPtr Parser::parse_for() {
  const Token& tag = next();
  StmtPtr statement = make_statement(StmtKind::kFor, tag.at);
  statement->target = parse_target(false);
  if (!skip_name("in")) fail_at(peek(), fmt::format("expected 'in', got {}", describe(peek())));
  // No ternary here: `if` starts the loop's filter.
  statement->expr = parse_or();
  if (is_op(",")) {
    ExprPtr tuple = make(ExprKind::kTuple, statement->expr->at);
    add(*tuple, std::move(statement->expr));
    while (skip_op(",")) add(*tuple, parse_or());
    statement->expr = std::move(tuple);
  }
  if (skip_name("if")) statement->condition = parse_expression();
  statement->recursive = skip_name("recursive");
  expect_kind(TokenKind::kBlockEnd, "'%}'");
  ++loops_;
  statement->body = parse_body({"else", "endfor"}, tag);
  --loops_;
  if (skip_name("else")) {
    expect_kind(TokenKind::kBlockEnd, "'%}'");
    statement->otherwise = parse_body({"endfor"}, tag);
  }
  end_block("endfor");
  return statement;
}

// name | (target, ...) | ns.attribute where allowed.
ExprPtr Parser::parse_target_item(bool with_attribute) {
  const Level level(*this);
  const Token& token = peek();
  if (skip_op("(")) {
    ExprPtr inner = parse_target(with_attribute);
    expect_op(")");
    return inner;
  }
  ExprPtr target = make(ExprKind::kName, token.at);
  target->name = expect_name();
  for (std::string_view word : {"true", "false", "none", "True", "False", "None"})
    if (target->name == word) fail_at(token, fmt::format("cannot assign to '{}'", word));
  if (!with_attribute || !skip_op(".")) return target;
  ExprPtr attribute = make(ExprKind::kAttribute, token.at);
  add(*attribute, std::move(target));
  attribute->name = expect_name();
  return attribute;
}

ExprPtr Parser::parse_target(bool with_attribute) {
  const Position at = peek().at;
  ExprPtr first = parse_target_item(with_attribute);
  if (!is_op(",")) return first;
  ExprPtr tuple = make(ExprKind::kTuple, at);
  add(*tuple, std::move(first));
  while (skip_op(",")) {
    if (peek().kind != TokenKind::kName && !is_op("(")) break;
    if (is_name("in")) break;
    add(*tuple, parse_target_item(with_attribute));
  }
  return tuple;
}

StmtPtr Parser::parse_set() {
  const Token& tag = next();
  StmtPtr statement = make_statement(StmtKind::kSet, tag.at);
  statement->target = parse_target(true);
  if (skip_op("=")) {
    statement->expr = parse_tuple(false);
    expect_kind(TokenKind::kBlockEnd, "'%}'");
    return statement;
  }
  statement->kind = StmtKind::kSetBlock;
  ExprPtr filters;
  while (skip_op("|")) filters = parse_filter(std::move(filters));
  statement->expr = std::move(filters);
  expect_kind(TokenKind::kBlockEnd, "'%}'");
  statement->body = parse_body({"endset"}, tag);
  end_block("endset");
  return statement;
}

void Parser::parse_parameters(Stmt& macro) {
  expect_op("(");
  while (!is_op(")")) {
    std::string name = expect_name();
    ExprPtr fallback = skip_op("=") ? parse_expression() : nullptr;
    if (!fallback && !macro.parameters.empty() && macro.parameters.back().second)
      fail_at(peek(), "a parameter without a default follows one with a default");
    macro.parameters.emplace_back(std::move(name), std::move(fallback));
    if (!skip_op(",")) break;
  }
  expect_op(")");
}

StmtPtr Parser::parse_macro() {
  const Token& tag = next();
  StmtPtr macro = make_statement(StmtKind::kMacro, tag.at);
  macro->name = expect_name();
  parse_parameters(*macro);
  expect_kind(TokenKind::kBlockEnd, "'%}'");
  const size_t begin = at_;
  const int loops = std::exchange(loops_, 0);
  macro->body = parse_body({"endmacro"}, tag);
  loops_ = loops;
  for (size_t i = begin; i < at_; ++i) {  // Jinja: extra arguments are an error unless the body names these
    if (tokens_[i].kind != TokenKind::kName) continue;
    macro->uses_caller |= tokens_[i].text == "caller";
    macro->uses_kwargs |= tokens_[i].text == "kwargs";
    macro->uses_varargs |= tokens_[i].text == "varargs";
  }
  end_block("endmacro");
  return macro;
}

StmtPtr Parser::parse_call_block() {
  const Token& tag = next();
  StmtPtr statement = make_statement(StmtKind::kCallBlock, tag.at);
  statement->name = "caller";
  if (is_op("(")) parse_parameters(*statement);
  statement->expr = parse_unary(true);
  if (statement->expr->kind != ExprKind::kCall) fail_at(tag, "expected a call");
  expect_kind(TokenKind::kBlockEnd, "'%}'");
  const int loops = std::exchange(loops_, 0);
  statement->body = parse_body({"endcall"}, tag);
  loops_ = loops;
  end_block("endcall");
  return statement;
}

StmtPtr Parser::parse_filter_block() {
  const Token& tag = next();
  StmtPtr statement = make_statement(StmtKind::kFilterBlock, tag.at);
  ExprPtr filters = parse_filter(nullptr);
  while (skip_op("|")) filters = parse_filter(std::move(filters));
  statement->expr = std::move(filters);
  expect_kind(TokenKind::kBlockEnd, "'%}'");
  statement->body = parse_body({"endfilter"}, tag);
  end_block("endfilter");
  return statement;
}

StmtPtr Parser::parse_with() {
  const Token& tag = next();
  StmtPtr statement = make_statement(StmtKind::kWith, tag.at);
  while (peek().kind != TokenKind::kBlockEnd) {
    std::string name = expect_name();
    expect_op("=");
    statement->parameters.emplace_back(std::move(name), parse_expression());
    if (!skip_op(",")) break;
  }
  expect_kind(TokenKind::kBlockEnd, "'%}'");
  statement->body = parse_body({"endwith"}, tag);
  end_block("endwith");
  return statement;
}

}  // namespace kvilt::jinja
