// Lark grammars: what the compiled EBNF takes and refuses, what is outside the subset, and texts that were made to hurt.
#include "grammar/lark.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "grammar/vocabulary_for_test.h"

namespace kvilt {
namespace {

struct Case {
  const char* name;
  std::string grammar;
  std::vector<std::string> texts, others;  // that it takes, and that it refuses
};

std::string repeated(int n, std::string_view text) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

// As coding agents write their changes of files.
constexpr const char* kPatch = R"(start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

%import common.LF
)";

// A calculator, with space between its words.
constexpr const char* kSums = R"lark(
?start: sum            // the first rule
?sum: product
    | sum "+" product   -> add
    | sum "-" product   -> sub

?product: atom
    | product "*" atom  -> mul
!atom: NUMBER -> number
     | "-" atom         # a sign
     | "(" sum ")"
%import common.NUMBER
%import common.WS_INLINE
%ignore WS_INLINE
)lark";

std::vector<Case> cases() {
  return {
      {"words and groups", "start: \"a\" (\"b\" | \"c\")* [\"d\"]", {"a", "abcb", "abd", "ad"}, {"", "b", "add"}},
      {"counts", "start: \"a\"~2 \"b\"~1..3 \"c\"+ \"d\"?", {"aabc", "aabbbccd"}, {"abc", "aabbbbc", "aab", "aabcdd"}},
      {"count of a group", "start: (\"a\" B)~2\nB: \"b\"", {"abab"}, {"ab", "ababab"}},
      {"alternatives on lines", "start: one\n\n  // the second\n  | two\none: \"1\"\ntwo: \"2\"", {"1", "2"}, {"12"}},
      {"nothing", "start: | \"a\" start", {"", "a", "aa"}, {"b"}},
      {"any case", "start: \"select\"i \" \" \"Ä\"", {"SELECT Ä", "SeLeCt Ä"}, {"SELECT ä", "SELEC Ä"}},
      {"escapes", R"(start: "\"" "\\" "\n" "\x41" "\u00e9" "\d")", {"\"\\\nA\u00e9\\d"}, {"\"\\\nA\u00e97"}},
      {"ranges",
       R"(start: A B
A: "a".."c"
B: "0".."9" | "ä".."ü")",
       {"a0", "c9", "bö"},
       {"d0", "ax"}},
      {"an expression",
       R"(start: /[a-c]+(?:-[0-9]{2,3})?\./)",
       {"abc.", "a-12.", "b-123."},
       {".", "a-1.", "a-1234.", "ax"}},
      {"flags", R"(start: /yes|[n]o/i /./s /./)", {"YES\nx", "No!?", "yesab"}, {"yes!\n", "ye"}},
      {"classes", R"(start: /\d\D\w\W\s\S[^\s\d][\w.-]/)", {"1a_! ab-", "0x9-\tz_."}, {"aa_! ab-", "1a_! a3-"}},
      {"a slash and more", R"(start: /a\/b\x41\u00e9\t{x}[]a]/)", {"a/bA\u00e9\t{x}]"}, {"a/bA\u00e9\t{x}b"}},
      {"beyond ASCII", R"(start: /[^a]ü[ä-ö]/)", {"€üå", "büä"}, {"aüä", "büa"}},
      {"terminals of terminals",
       "start: HEX+\nHEX.2: \"0x\" (DIGIT | LOW)~2\nDIGIT: \"0\"..\"9\"\nLOW: /[a-f]/",
       {"0x1f", "0xab0x00"},
       {"0x1", "0x1g"}},
      {"left recursion and space", kSums, {"1+2*3", " 1 + ( 2.5 -3 )* -4 ", "-1"}, {"", "1+", "1 2", "(1", "1++2"}},
      {"no space within a terminal", "start: AB\nAB: \"a\" \"b\"\n%ignore \" \"", {"ab", " ab "}, {"a b"}},
      {"two that are ignored", "start: \"a\"+\n%ignore /[ \\n]+/\n%ignore /#[^\\n]*/", {"a #x\n a", "aa#"}, {"a x"}},
      {"a patch",
       kPatch,
       {"*** Begin Patch\n*** Add File: a b.txt\n+one\n+\n*** Delete File: c\n*** End Patch"},
       {"*** Begin Patch\n*** End Patch", "*** Begin Patch\n*** Add File: \n+one\n*** End Patch"}},
      {"names that EBNF has too",
       "start: root true\nroot: \"r\"\ntrue: TOKEN ignored\nTOKEN: \"t\"\nignored: \"i\"",
       {"rti"},
       {"rt"}},
      {"no start", "list: \"a\" list?", {"a", "aaa"}, {""}},
      {"imports of several",
       "start: INT \",\" W\n%import common (INT, SIGNED_INT)\n%import common.WORD -> W",
       {"12,ab"},
       {"-1,ab", "1,"}},
      {"what nobody uses", "start: \"a\"\nother: \"b\" THIRD\nTHIRD: \"c\"", {"a"}, {"b"}},
      {"one character after a code", R"(start: "\x0aa" /\x0aa[\x0a-\x0c]/)", {"\na\na\v"}, {"\na\naa"}},
  };
}

TEST(Lark, TakesTheTextsOfItsGrammar) {
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  for (const Case& one : cases()) {
    EXPECT_TRUE(is_lark(one.grammar)) << one.name;
    const auto ebnf = lark_to_ebnf(one.grammar);
    ASSERT_TRUE(ebnf.ok()) << one.name << ": " << ebnf.error().message;
    const auto grammar = compiler->compile(GrammarPart::ebnf(*ebnf));
    ASSERT_TRUE(grammar.ok()) << one.name << ": " << grammar.error().message << "\n" << *ebnf;
    const auto takes = [&](const std::string& text) {
      GrammarMatcher matcher(*grammar);
      return take_text(matcher, text) && matcher.may_end();
    };
    for (const std::string& text : one.texts) EXPECT_TRUE(takes(text)) << one.name << ": " << text << "\n" << *ebnf;
    for (const std::string& text : one.others) EXPECT_FALSE(takes(text)) << one.name << ": " << text << "\n" << *ebnf;
  }
}

// Each text as JSON writes it. Power: as it is, a text with what JSON escapes is refused, and so is what no grammar takes.
TEST(Lark, TakesTheSameTextsInAStringOfJson) {
  using Json = GrammarPart::Json;
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  int escaped = 0;
  std::vector<Case> all = cases();
  all.push_back({"what JSON escapes",
                 R"(start: /[^a]/ /./s /[\x00-\x1f"\\]+/ "\"\\"i)",
                 {"b\n\"\"\\", std::string("\"\0\x01\x0b\x1f\b\f\r\t\\\n\"\\", 13), "\\\x7f\x02\"\\", "ü€\t\"\\"},
                 {"a\n\"\"\\", "b\n\x7f\"\\"}});
  for (const Case& one : all) {
    const auto ebnf = lark_to_ebnf(one.grammar, Spelling::kInJson);
    ASSERT_TRUE(ebnf.ok()) << one.name << ": " << ebnf.error().message;
    const auto grammar = compiler->compile(GrammarPart::sequence(
        {GrammarPart::word("{\"input\": \""), GrammarPart::ebnf(*ebnf), GrammarPart::word("\"}")}));
    ASSERT_TRUE(grammar.ok()) << one.name << ": " << grammar.error().message << "\n" << *ebnf;
    const auto takes = [&](const std::string& written) {
      GrammarMatcher matcher(*grammar);
      return take_text(matcher, "{\"input\": " + written + "}") && matcher.may_end();
    };
    for (const std::string& text : one.texts) {
      const std::string written = Json(text).dump();
      EXPECT_TRUE(takes(written)) << one.name << ": " << written << "\n" << *ebnf;
      if (written.size() == text.size() + 2) continue;
      ++escaped;
      EXPECT_FALSE(takes('"' + text + '"')) << one.name << ": " << written;
    }
    for (const std::string& text : one.others) EXPECT_FALSE(takes(Json(text).dump())) << one.name << ": " << text;
  }
  EXPECT_GT(escaped, 10);
}

// Whatever a grammar of all characters writes is a string of JSON that says a text of it.
TEST(Lark, RandomTextsAreStringsOfJson) {
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  const auto plain = pattern_to_ebnf("[^x]{3,9}", Spelling::kPlain),
             inside = pattern_to_ebnf("[^x]{3,9}", Spelling::kInJson);
  ASSERT_TRUE(plain.ok() && inside.ok());
  const auto texts = compiler->compile(GrammarPart::ebnf(*plain));
  const auto strings = compiler->compile(GrammarPart::ebnf(*inside));
  ASSERT_TRUE(texts.ok() && strings.ok());
  std::mt19937 random{5};
  int whole = 0, with_escapes = 0;
  for (int i = 0; i < 200; ++i) {
    const auto written = random_text(v, *strings, random);
    if (!written) continue;
    const auto read = GrammarPart::Json::parse('"' + *written + '"', nullptr, false);
    if (read.is_discarded())
      continue;  // bytes that are half of a surrogate pair: EBNF lets them pass as it does in plain
    ++whole;
    with_escapes += written->find('\\') != std::string::npos;
    GrammarMatcher matcher(*texts);
    EXPECT_TRUE(take_text(matcher, read.get<std::string>()) && matcher.may_end()) << *written;
  }
  EXPECT_GT(whole, 150);
  EXPECT_GT(with_escapes, 5) << "power";
  const auto anchored = pattern_to_ebnf("^a$", Spelling::kInJson);
  ASSERT_FALSE(anchored.ok());
  EXPECT_NE(anchored.error().message.find("anchor"), std::string::npos);
}

TEST(Lark, CommonTerminals) {
  struct Terminal {
    const char* name;
    std::vector<std::string> texts, others;
  };
  const std::vector<Terminal> all = {
      {"CNAME", {"a", "_b1"}, {"1a", ""}},
      {"CPP_COMMENT", {"// a", "//"}, {"/ a", "//\n"}},
      {"CR", {"\r"}, {"\n"}},
      {"C_COMMENT", {"/**/", "/* a * / b\n***/"}, {"/* */ */", "/*/"}},
      {"DECIMAL", {"1.", ".5", "1.25"}, {"1", "."}},
      {"DIGIT", {"7"}, {"77", "a"}},
      {"ESCAPED_STRING", {"\"\"", "\"a\\\"b\\\\\""}, {"\"a\"b\"", "\"a\\\"", "\"\n\""}},
      {"FLOAT", {"1.5", "1e5", ".5E-2", "1."}, {"15", "e5"}},
      {"HEXDIGIT", {"f", "A", "0"}, {"g"}},
      {"INT", {"0", "007"}, {"-1", ""}},
      {"LCASE_LETTER", {"a"}, {"A"}},
      {"LETTER", {"a", "Z"}, {"1"}},
      {"LF", {"\n"}, {"\r"}},
      {"NEWLINE", {"\n", "\r\n\n"}, {"\r", ""}},
      {"NUMBER", {"1", "1.5", "1e5", ".5"}, {"-1", "."}},
      {"SH_COMMENT", {"#", "# a"}, {"a", "#\n"}},
      {"SIGNED_FLOAT", {"-1.5", "+1e5"}, {"-1"}},
      {"SIGNED_INT", {"-1", "+1", "1"}, {"--1"}},
      {"SIGNED_NUMBER", {"-1", "+1.5e-3"}, {"-"}},
      {"SQL_COMMENT", {"-- a"}, {"- a"}},
      {"UCASE_LETTER", {"A"}, {"a"}},
      {"WORD", {"ab"}, {"a1", ""}},
      {"WS", {" \t\n\r"}, {"", "a"}},
      {"WS_INLINE", {" \t"}, {"\n", ""}},
  };
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  for (const Terminal& one : all) {
    const std::string text = std::string("start: ") + one.name + "\n%import common." + one.name;
    const auto ebnf = lark_to_ebnf(text);
    ASSERT_TRUE(ebnf.ok()) << ebnf.error().message;
    const auto grammar = compiler->compile(GrammarPart::ebnf(*ebnf));
    ASSERT_TRUE(grammar.ok()) << one.name << ": " << grammar.error().message;
    const auto takes = [&](const std::string& text) {
      GrammarMatcher matcher(*grammar);
      return take_text(matcher, text) && matcher.may_end();
    };
    for (const std::string& good : one.texts) EXPECT_TRUE(takes(good)) << one.name << ": " << good;
    for (const std::string& bad : one.others) EXPECT_FALSE(takes(bad)) << one.name << ": " << bad;
  }
}

// Each with words of the message, which names the line.
TEST(Lark, RefusesWhatIsOutsideTheSubset) {
  const std::vector<std::pair<std::string, const char*>> bad = {
      {"start: \"a\"\n_sep{x}: x", "line 2: rules with parameters"},
      {"start: _sep{\"a\"}", "line 1: rules with parameters"},
      {"start[lazy]: \"a\"", "line 1: attributes"},
      {"start: A\n%declare A", "line 2: %declare is not supported"},
      {"start: A\n%import python.A", "line 2: only terminals of 'common'"},
      {"start: A\n%import common.ABC", "line 2: 'ABC' is not in common, which has CNAME"},
      {"start: INT", "line 1: 'INT' is not defined: add %import common.INT"},
      {"start: other", "line 1: 'other' is not defined"},
      {"start: \"a\"\nstart: \"b\"", "line 2: 'start' is defined a second time"},
      {"start: A\nA: b\nb: \"b\"", "line 2: a terminal cannot have the rule 'b'"},
      {"start: A\nA: \"a\" B\nB: \"b\" A?", "the terminal 'A' is a part of itself"},
      {"start: A\nA: A", "the terminal 'A' is a part of itself"},
      {"%ignore \" \"", "has no rule"},
      {"start: (\"a\"", "line 1: a ) must stand here, not the end"},
      {"start: \"a\" )", "line 1: the end of a rule must stand here, not ')'"},
      {"start: \"a", "line 1: a string has no \""},
      {"start: /a", "line 1: a regular expression has no /"},
      {"start: \"a\"~3..2", "line 1: ~3..2: the first is the larger one"},
      {"start: \"a\"~2000000000", "line 1: a repetition is from 0 to"},
      {"start: \"a\"~99999999999999999999", "line 1: a repetition is from 0 to"},
      {"start: \"b\"..\"a\"", "line 1: a range must be"},
      {"start: \"ab\"..\"c\"", "line 1: a range must be"},
      {"start ::= \"a\"", "\"::=\" is EBNF"},
      {"start: \"\\x4\"", "line 1: \\x needs 2"},
      {"start: \"\\ud800\"", "line 1: \\u needs 4"},
      {"start: \xFF", "not UTF-8"},
      {"start: $", "line 1: '$' has no meaning"},
      {"\n\nstart: /a(?=b)/", "line 3: its regular expression has a group that begins with (?"},
      {"start: /(?<!a)b/", "has a group that begins with (?"},
      {"start: /(?i)b/", "flags behind the last slash"},
      {"start: /^a/", "the anchor ^"},
      {"start: /a$/", "the anchor $"},
      {"start: /\\ba/", "has \\b"},
      {"start: /(a)\\1/", "has \\1"},
      {"start: /\".*?\"/", "lazy or possessive"},
      {"start: /a++/", "lazy or possessive"},
      {"start: /a{3,2}/", "of which the first is the larger one"},
      {"start: /a{2000000}/", "repeats more than"},
      {"start: /*a/", "a * behind nothing"},
      {"start: /(a/", "a ( that is not closed"},
      {"start: /a)/", "a ) too many"},
      {"start: /[a/", "a [ that is not closed"},
      {"start: /[b-a]/", "a range whose ends"},
      {"start: /a/x", "line 1: the flag x"},
      {"start: /ä/i", "letters beyond ASCII"},
      {"start: /[ä]/i", "characters beyond ASCII"},
      {"start: " + repeated(60, "(") + "\"a\"" + repeated(60, ")"), "brackets in each other"},
      {"start: /" + repeated(60, "(") + "a" + repeated(60, ")") + "/", "brackets in each other"},
  };
  for (const auto& [text, message] : bad) {
    const auto made = lark_to_ebnf(text);
    ASSERT_FALSE(made.ok()) << text << "\n" << *made;
    EXPECT_EQ(made.error().code, Code::kInvalidArgument);
    EXPECT_NE(made.error().message.find(message), std::string::npos) << text << "\n" << made.error().message;
  }
}

TEST(Lark, IsToldFromEbnf) {
  for (const char* lark : {"start: \"a\"", "# ::=\n\n// x\nstart : a", "%import common.INT", "?start: a",
                           "A.2: \"::=\"", "_list{x}: x", "start\n: \"a\""})
    EXPECT_TRUE(is_lark(lark)) << lark;
  for (const char* ebnf : {"root ::= \"a\"", "# start: x\nroot ::= [:]", "root::=a", "a-b.c ::= \":\"", "", "hello",
                           "root[lazy] ::= \"a\"", "\"a\": b"})
    EXPECT_FALSE(is_lark(ebnf)) << ebnf;
}

// Each is refused, or makes EBNF of a size that follows from its own, and a grammar or a clear error of that.
TEST(Lark, HostileTexts) {
  const JsonVocabulary v;
  const auto compiler = v.compiler({.seconds = 2});
  std::string chain = "start: A0\n", rules = "start: r0\n", classes = "start: /";
  for (int i = 0; i < 8000; ++i) chain += fmt::format("A{}: A{}\n", i, i + 1);
  for (int i = 0; i < 3000; ++i) rules += fmt::format("r{}: r{} | \"a\"\n", i, i + 1);
  for (int i = 0; i < 30000; ++i) classes += "\\W";
  const std::vector<std::string> all = {
      chain + "A8000: \"a\"",
      rules + "r3000: \"b\"",
      classes + "/",
      "start: start",
      "start: a\na: b\nb: a",
      "start: start start | \"a\" |",
      "start: (((\"a\"~1000000)~1000000)~1000000)~1000000",
      "start: /((((a{1000}){1000}){1000}){1000})/",
      "start: /((((a*)*)*)*)*b/",
      "start: \"a\"\n" + repeated(4000, "%ignore /a*/\n"),
      "start: " + repeated(20000, "\"a\"i? "),
      "start: " + repeated(20000, "("),
      "start:" + repeated(60000, "\n"),
      "start: /[" + repeated(20000, "zya") + "]/",
      std::string("start: \"a\0b\"", 12),
      "start: /[\\x00-\\x1f]/",
      "start: /[\\s\\S]*/",
  };
  for (const std::string& text : all) {
    const auto ebnf = lark_to_ebnf(text);
    if (!ebnf.ok()) {
      EXPECT_FALSE(ebnf.error().message.empty());
      continue;
    }
    EXPECT_LT(ebnf->size(), 100 + text.size() * 64) << text.substr(0, 60);
    const auto grammar = compiler->compile(GrammarPart::ebnf(*ebnf));
    if (!grammar.ok()) {
      EXPECT_EQ(grammar.error().code, Code::kInvalidArgument) << grammar.error().message;
      continue;
    }
    GrammarMatcher matcher(*grammar);
    std::vector<int32_t> mask(GrammarMatcher::mask_words(v.vocab));
    (void)matcher.fill(mask);
  }
  EXPECT_TRUE(compiler->compile(GrammarPart::word("ab")).ok()) << "it lives";
}

}  // namespace
}  // namespace kvilt
