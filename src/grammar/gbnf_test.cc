// What llama.cpp's grammars and Python's expressions say otherwise than xgrammar reads it.
#include "grammar/gbnf.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/vocabulary_for_test.h"

namespace kvilt {
namespace {

class Gbnf : public testing::Test {
 protected:
  void takes(const GrammarPart& part, const std::vector<std::string>& good, const std::vector<std::string>& bad) {
    SCOPED_TRACE(part.tree().dump());
    const auto grammar = compiler_->compile(part);
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    const auto is_taken = [&](const std::string& text) {
      GrammarMatcher matcher(*grammar);
      return take_text(matcher, text) && matcher.may_end();
    };
    for (const std::string& text : good) EXPECT_TRUE(is_taken(text)) << text;
    for (const std::string& text : bad) EXPECT_FALSE(is_taken(text)) << text;
  }
  void takes(const char* rules, const std::vector<std::string>& good, const std::vector<std::string>& bad) {
    takes(GrammarPart::ebnf(rules), good, bad);
  }

  const JsonVocabulary v_{};
  const std::unique_ptr<GrammarCompiler> compiler_ = v_.compiler();
};

TEST_F(Gbnf, AnAlternativeMayBeNothing) {
  takes("root ::= \"a\" ws \"b\"\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n", {"ab", "a b", "a\n\tb"}, {"a  b"});
  takes("root ::= (\"a\"| ) (|\"b\") \"c\"", {"c", "ac", "bc", "abc"}, {"", "ab"});
  takes("root ::= \"a\" |\n\n# a | comment ::= (\nother ::= \"b\"", {"", "a"}, {"b"});
  takes("root ::= ( | (\"x\" | | \"y\"))* \"z\" | # the end", {"", "z", "xyz"}, {"x"});
  takes("root ::= \"|)\" [|(.\\]] \"\\\"|\" # (|", {"|)|\"|", "|).\"|", "|)]\"|"}, {"|)x\"|"});
  EXPECT_FALSE(compiler_->compile(GrammarPart::ebnf("root ::= ")).ok()) << "a rule without any alternative";
  EXPECT_FALSE(compiler_->compile(GrammarPart::ebnf("root ::= (\"a\"")).ok());
}

TEST_F(Gbnf, ADotIsAnyCharacter) {
  takes("root ::= \"<\" . \".\" [.] .+", {"<x..y", "<\n..\n\xC3\xA9"}, {"<x..", "<xx.y", "<x.xy"});
  takes("root ::= .. word?\nword ::= .\"!\"", {"ab", "ab\xC3\xA9!"}, {"a", "abc"});
  takes("root ::= a.b .{2}\na.b ::= \"x\"", {"xyz"}, {"xy", "yyy"});  // xgrammar's names may have dots
  const auto unknown = compiler_->compile(GrammarPart::ebnf("root ::= .nobody"));
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("nobody"), std::string::npos) << unknown.error().message;
}

TEST_F(Gbnf, ACountMayHaveNoLeast) {
  takes("root ::= \"a\"{,2} [b]{ ,1} c{,3}\nc ::= \"c\"", {"", "aab", "accc"}, {"aaa", "bb", "cccc"});
  takes("root ::= \"{,\" [{,]{1,}", {"{,{,"}, {"{,", "{0,{"});  // in strings and classes they are text
}

// Constructs of those that llama.cpp is shipped with.
TEST_F(Gbnf, GrammarsAsLlamaCppHasThem) {
  takes(R"(root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
)",
        {R"({"a": [1, "x\n", {}], "b":null})", "{}", "{\n\t\"a\":-1.5e+3}"}, {"[]", "{\"a\":}", "{\"a\":1}}"});
  takes(
      "root ::= item+\n\n# Excludes various line break characters\n"
      "item ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"\n",
      {"- a\n- b.|\n"}, {"- a", "- \n"});
  takes(
      "root  ::= (expr \"=\" ws term \"\\n\")+\nexpr  ::= term ([-+*/] term)*\n"
      "term  ::= ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\nnum   ::= [0-9]+ ws\n"
      "ws    ::= [ \\t\\n]*\n",
      {"x +1= 2\n", "(a*b)/c = d\n"}, {"x=\n", "=1\n"});
}

// As in Python's without flags.
TEST_F(Gbnf, ADotOfAnExpressionIsNoLineFeed) {
  takes(GrammarPart::regex("a.b"),
        {"axb", "a\rb",
         "a\xC3\xA9"
         "b"},
        {"a\nb", "ab"});
  takes(GrammarPart::regex("(.*)[.\\n]\\."), {"..", "ab\n.", "ab.."}, {"a\nb..", "abx", "ab.x"});
  EXPECT_EQ(dots_without_line_feed(R"(.\.[.\].]\\.[^.].)"), R"([^\n]\.[.\].]\\[^\n][^.][^\n])");
  EXPECT_EQ(dots_without_line_feed("a\\"), "a\\");
}

TEST_F(Gbnf, WhatIsReadAlikeStaysAsItIs) {
  for (const char* rules :
       {"root ::= \"a\" (b | [.|{,}()#\"\\]] \"|)\\\"\" )* # |)\n\tb ::= \"\" | (\"x\"){2,3}\r\nb.c ::= b.c \"y\"",
        "root ::= TagDispatch((\"<t>\", x), loop_after_dispatch=true)\nx ::= \"a\"", "root[capture] ::= \"a\"", "",
        "\"open", "[open", "a ::= \\"})
    EXPECT_EQ(gbnf_to_ebnf(rules), rules);
}

}  // namespace
}  // namespace kvilt
