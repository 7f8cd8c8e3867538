// The tokenizers on small vocabularies made here: segmentation, special tokens and trust, decoding, hostile input.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "text/merge.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

using Ids = std::vector<int32_t>;

// 256 bytes, some merges, specials 300 and up.
TokenizerSpec byte_spec() {
  TokenizerSpec spec;
  spec.model = "bpe";
  spec.pre = "gpt-2";
  for (int b = 0; b < 256; ++b) spec.tokens.push_back(spell_bytes(std::string(1, static_cast<char>(b))));
  const std::vector<std::pair<std::string, std::string>> merges = {{"t", "h"},   {"th", "e"}, {" ", "the"}, {"a", "b"},
                                                                   {"ab", "ab"}, {"i", "n"},  {"e", "r"}};
  for (const auto& [a, b] : merges) {
    spec.merges.push_back(spell_bytes(a) + " " + spell_bytes(b));
    spec.tokens.push_back(spell_bytes(a + b));
  }
  spec.kinds.assign(spec.tokens.size(), TokenKind::kNormal);
  for (const char* special : {"<|im_start|>", "<|im_end|>", "<s>"}) {
    spec.tokens.push_back(special);
    spec.kinds.push_back(TokenKind::kControl);
  }
  spec.bos = static_cast<int32_t>(spec.tokens.size() - 1);
  spec.eos = *spec.bos - 1;
  spec.add_bos = true;
  return spec;
}

std::unique_ptr<Tokenizer> make(TokenizerSpec spec) {
  auto made = Tokenizer::create(std::move(spec));
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return std::move(made).value();
}

Ids ids_of(const Tokenizer& t, std::string_view text, const EncodeOptions& options = {}) {
  auto ids = t.encode(text, options);
  EXPECT_TRUE(ids.ok()) << (ids.ok() ? "" : ids.error().message);
  return ids.ok() ? *ids : Ids();
}

TEST(Tokenizer, MergesTheBestRankFirst) {
  const auto t = make(byte_spec());
  const Ids expected = {*t->id_of(" the"), *t->id_of("the"), 'x'};
  EXPECT_EQ(ids_of(*t, " the"), Ids({expected[0]}));
  EXPECT_EQ(ids_of(*t, "thex"), Ids({expected[1], expected[2]}));
  EXPECT_EQ(ids_of(*t, "ababab"), Ids({*t->id_of("abab"), *t->id_of("ab")}));
  EXPECT_EQ(t->id_of("\xC4\xA0the"), t->id_of(" the")) << "the vocabulary's own spelling names it too";
}

TEST(Tokenizer, UserTextNeverBecomesASpecialToken) {
  const auto t = make(byte_spec());
  const std::string text = "<|im_end|>in<|im_start|>";
  for (const int32_t id : ids_of(*t, text)) EXPECT_FALSE(t->is_special(id));
  EXPECT_EQ(t->decode(ids_of(*t, text)), text);
  EXPECT_EQ(ids_of(*t, text, {.parse_special = true}),
            Ids({*t->id_of("<|im_end|>"), *t->id_of("in"), *t->id_of("<|im_start|>")}));
}

TEST(Tokenizer, TrustLimitsSpecialTokens) {
  const auto t = make(byte_spec());
  const std::string text = "<|im_end|><|im_end|>";
  const int32_t end = *t->id_of("<|im_end|>");
  const auto count = [&](std::vector<ByteRange> trusted, bool parse = false) {
    const Ids ids = ids_of(*t, text, {.parse_special = parse, .trusted = trusted});
    EXPECT_EQ(t->decode(ids), text);
    return std::ranges::count(ids, end);
  };
  EXPECT_EQ(count({{0, 10}}), 1);
  EXPECT_EQ(count({{10, 20}}), 1);
  EXPECT_EQ(count({{0, 20}}), 2);
  EXPECT_EQ(count({{0, 9}}), 0) << "wholly inside";
  EXPECT_EQ(count({{1, 20}}), 1);
  EXPECT_EQ(count({{0, 5}, {5, 10}}), 0) << "wholly inside one of them";
  EXPECT_EQ(count({{10, 20}, {0, 10}}), 2) << "in any order";
  EXPECT_EQ(count({{0, 10}}, true), 1) << "trust limits parse_special";
  EXPECT_EQ(count({{0, 999}}), 2) << "beyond the text";
  EXPECT_EQ(count({{7, 3}}), 0) << "upside down";
}

TEST(Tokenizer, TrustSurvivesRepairOfTheTextBefore) {
  const auto t = make(byte_spec());
  const std::string text = "\xFF\xE2\x82<|im_end|>\xC3";
  const int32_t end = *t->id_of("<|im_end|>");
  const std::vector<ByteRange> exact = {{3, 13}}, short_by_one = {{4, 13}}, wide = {{2, 14}};
  const auto has = [&](const std::vector<ByteRange>& trusted) {
    const Ids ids = ids_of(*t, text, {.trusted = trusted});
    return std::ranges::count(ids, end) == 1;
  };
  EXPECT_TRUE(has(exact));
  EXPECT_TRUE(has(wide));
  EXPECT_FALSE(has(short_by_one));
  EXPECT_EQ(t->decode(ids_of(*t, text)), "\xEF\xBF\xBD\xEF\xBF\xBD<|im_end|>\xEF\xBF\xBD");
}

TEST(Tokenizer, AddsBosWhenAsked) {
  const auto t = make(byte_spec());
  EXPECT_EQ(ids_of(*t, "a", {.add_special = true}), Ids({*t->bos(), 'a'}));
  EXPECT_EQ(ids_of(*t, "", {.add_special = true}), Ids({*t->bos()}));
  EXPECT_EQ(ids_of(*t, ""), Ids());
}

TEST(Tokenizer, KnowsWhatEndsAGeneration) {
  TokenizerSpec spec = byte_spec();
  spec.eos = 0;
  const auto t = make(std::move(spec));
  EXPECT_EQ(Ids(t->end_ids().begin(), t->end_ids().end()), Ids({0, *t->id_of("<|im_end|>")}));
}

TEST(Tokenizer, TheEndOfAMessageIsNoEndWhereACallAndAReturnAre) {
  for (const bool harmony : {false, true}) {
    TokenizerSpec spec = byte_spec();
    std::vector<const char*> names{"<|end|>", "<|return|>", "<|call|>"};
    if (harmony) names.push_back("<|channel|>");
    for (const char* special : names) {
      spec.tokens.push_back(special);
      spec.kinds.push_back(TokenKind::kControl);
    }
    spec.eos = static_cast<int32_t>(std::ranges::find(spec.tokens, "<|return|>") - spec.tokens.begin());
    spec.eot = *spec.eos - 1;  // some files call it the end of a turn
    const auto t = make(std::move(spec));
    const auto ends = t->end_ids();
    const auto has = [&](const char* name) { return std::ranges::find(ends, *t->id_of(name)) != ends.end(); };
    EXPECT_EQ(has("<|end|>"), !harmony);
    EXPECT_TRUE(has("<|call|>"));
    EXPECT_TRUE(has("<|return|>"));
  }
}

TEST(Tokenizer, DecodeSkipsSpecialTokensOnRequest) {
  const auto t = make(byte_spec());
  const Ids ids = {*t->bos(), 'a', *t->id_of("<|im_end|>")};
  EXPECT_EQ(t->decode(ids), "<s>a<|im_end|>");
  EXPECT_EQ(t->decode(ids, true), "a");
  EXPECT_EQ(t->decode(Ids({-1, 'a', 1 << 30})), "a") << "ids outside the vocabulary give nothing";
}

TEST(Detokenizer, NeverEmitsHalfACharacter) {
  const auto t = make(byte_spec());
  const std::string text = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\xBAz";
  Detokenizer stream(*t);
  std::string all;
  for (const int32_t id : ids_of(*t, text)) {
    const std::string now = stream.push(id);
    EXPECT_TRUE(is_utf8(now));
    EXPECT_EQ(now.find("\xEF\xBF\xBD"), std::string::npos);
    all += now;
  }
  EXPECT_EQ(all + stream.finish(), text);
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push(0x82), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD") << "a cut character is one replacement";
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push('b'),
            "\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(stream.push(0x82), "\xEF\xBF\xBD") << "it can become nothing";
}

TEST(Tokenizer, HeapAndScanMergeAlike) {
  // Random ranks over four letters: every length on both sides of the limit must give the same symbols.
  std::mt19937 rng(7);
  for (int round = 0; round < 300; ++round) {
    std::map<std::pair<int, int>, Merge> table;
    for (int a = 0; a < 24; ++a) {
      for (int b = 0; b < 24; ++b) {
        if (rng() % 3 == 0) table[{a, b}] = {static_cast<uint32_t>(rng() % 400), static_cast<int32_t>(4 + rng() % 20)};
      }
    }
    const auto find = [&](const Symbol& x, const Symbol& y) {
      const auto at = table.find({x.id, y.id});
      return at == table.end() ? Merge() : at->second;
    };
    std::vector<Symbol> symbols;
    const uint32_t n = 1 + rng() % kScanLimit;
    for (uint32_t i = 0; i < n; ++i) symbols.push_back({static_cast<int32_t>(rng() % 4), i, i + 1});
    std::vector<Symbol> scanned = symbols, heaped = symbols;
    merge_by_scan(scanned, find);
    merge_by_heap(heaped, find);
    ASSERT_EQ(scanned.size(), heaped.size());
    for (size_t i = 0; i < scanned.size(); ++i) {
      ASSERT_EQ(scanned[i].id, heaped[i].id);
      ASSERT_EQ(scanned[i].end, heaped[i].end);
    }
  }
}

TEST(Tokenizer, LongWordsAreNotQuadratic) {
  const auto t = make(byte_spec());
  const std::string word(1 << 20, 'a');
  EXPECT_EQ(ids_of(*t, word).size(), word.size());
  std::string ab;
  for (int i = 0; i < 1 << 19; ++i) ab += "ab";
  EXPECT_EQ(ids_of(*t, ab).size(), ab.size() / 4);
  EXPECT_EQ(ids_of(*t, std::string(1 << 20, ' ')).size(), size_t{1} << 20);
  EXPECT_EQ(ids_of(*t, std::string(1 << 20, '\xFF')).size(), size_t{3} << 20);
}

TokenizerSpec spm_spec() {
  TokenizerSpec spec;
  spec.model = "llama";
  spec.add_space_prefix = true;
  const auto add = [&](std::string text, float score, TokenKind kind) {
    spec.tokens.push_back(std::move(text));
    spec.scores.push_back(score);
    spec.kinds.push_back(kind);
  };
  add("<unk>", 0, TokenKind::kUnknown);
  add("<s>", 0, TokenKind::kControl);
  add("</s>", 0, TokenKind::kControl);
  for (int b = 0; b < 256; ++b) add(fmt::format("<0x{:02X}>", b), 0, TokenKind::kByte);
  for (const char* piece : {"he", "llo", "▁hello", "▁he", "hello", "ll", "lo", "▁▁"}) {
    add(piece, -static_cast<float>(spec.tokens.size()), TokenKind::kNormal);
  }
  for (const char* piece : {"▁", "h", "e", "l", "o", "s", "<", ">", "/"}) {
    add(piece, -static_cast<float>(spec.tokens.size()), TokenKind::kNormal);
  }
  spec.unknown = 0;
  spec.bos = 1;
  spec.eos = 2;
  return spec;
}

// A text cut into marked parts has the same ids as each part by itself, and no space comes between them.
TEST(Tokenizer, ContinuedTextGetsNoLeadingSpace) {
  auto made = Tokenizer::create(spm_spec());
  ASSERT_TRUE(made.ok()) << made.error().message;
  const Tokenizer& t = **made;
  EncodeOptions continues;
  continues.continues = true;
  const auto start = t.encode("hello").value(), after = t.encode("hello", continues).value();
  ASSERT_EQ(start.size(), 1u);
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(t.token_bytes(start[0]), " hello");
  EXPECT_EQ(t.token_bytes(after[0]), "hello");
}

TEST(Tokenizer, SpmMergesTheHighestScoreAndFallsBackToBytes) {
  const auto t = make(spm_spec());
  EXPECT_EQ(ids_of(*t, "hello"), Ids({*t->id_of("▁hello")}));
  EXPECT_EQ(ids_of(*t, "helo"), Ids({*t->id_of("▁he"), *t->id_of("lo")}));
  EXPECT_EQ(ids_of(*t, "ä"), Ids({*t->id_of("▁"), 3 + 0xC3, 3 + 0xA4}));
  EXPECT_EQ(ids_of(*t, ""), Ids());
  EXPECT_EQ(t->decode(ids_of(*t, "  hello ä\n")), "  hello ä\n");
  EXPECT_EQ(t->token_bytes(*t->id_of("▁he")), " he");
  EXPECT_EQ(t->token_bytes(3 + 0xC3), "\xC3");
}

TEST(Tokenizer, SpmTextOfASpecialOrByteTokenIsText) {
  const auto t = make(spm_spec());
  for (const int32_t id : ids_of(*t, "</s><s><unk>")) EXPECT_FALSE(t->is_special(id));
  const Ids ids = ids_of(*t, "<0x41>");
  EXPECT_EQ(t->decode(ids), "<0x41>");
  const std::vector<ByteRange> trusted = {{0, 3}};
  EXPECT_EQ(ids_of(*t, "<s>he", {.trusted = trusted}), Ids({1, *t->id_of("▁he")}));
}

TEST(Detokenizer, KeepsTheSpaceAfterAPrompt) {
  const auto t = make(spm_spec());
  const int32_t he = *t->id_of("▁he");
  EXPECT_EQ(Detokenizer(*t).push(he), " he");
  EXPECT_EQ(Detokenizer(*t, {.at_start = true}).push(he), "he");
  EXPECT_EQ(t->decode(Ids({he, he})), "he he");
}

TEST(Tokenizer, UserDefinedMarkersNeedTrustAndRunsOfSpacesDoNot) {
  TokenizerSpec spec = byte_spec();
  for (const char* text : {"    ", "<tool_call>"}) {
    spec.tokens.push_back(text);
    spec.kinds.push_back(TokenKind::kUserDefined);
  }
  const auto count = [](const Tokenizer& t, const EncodeOptions& options, std::string_view token) {
    const Ids ids = ids_of(t, "a    <tool_call>", options);
    return std::ranges::count(ids, *t.id_of(token));
  };
  const auto t = make(spec);
  EXPECT_EQ(count(*t, {}, "    "), 1);
  EXPECT_EQ(count(*t, {}, "<tool_call>"), 0);
  EXPECT_EQ(count(*t, {.parse_special = true}, "<tool_call>"), 1);
  spec.user_defined_is_text = true;
  EXPECT_EQ(count(*make(spec), {}, "<tool_call>"), 1);
}

// gemma's vocabularies have HTML's elements as user-defined tokens; Transformers finds them in any text.
TEST(Tokenizer, ElementsOfHtmlAreTextToVocabulariesOverCharacters) {
  const auto count = [](TokenizerSpec spec, const char* token) {
    spec.tokens.push_back(token);
    spec.kinds.resize(spec.tokens.size() - 1, TokenKind::kNormal);
    spec.kinds.push_back(TokenKind::kUserDefined);
    if (!spec.scores.empty()) spec.scores.push_back(0);
    const auto t = make(spec);
    return std::ranges::count(ids_of(*t, std::string("he") + token + "he"), *t->id_of(token));
  };
  for (const char* element : {"<table>", "</td>", "<h1>", "<code>"}) {
    EXPECT_EQ(count(spm_spec(), element), 1) << element;
    EXPECT_EQ(count(byte_spec(), element), 0) << element;
  }
  for (const char* marker : {"<think>", "</think>", "<tool_call>", "<start_of_turn>", "</s>", "<mask>", "[code]"})
    EXPECT_EQ(count(spm_spec(), marker), 0) << marker;
}

TEST(Tokenizer, WholePiecesAndMergesMakeNoMarker) {
  // ignore_merges looks whole pieces up, here without a split before: the marker is a piece and must not be found.
  TokenizerSpec spec = byte_spec();
  spec.pre.clear();
  spec.ignore_merges = true;
  spec.merges.push_back("< >");  // into a marker that the vocabulary has
  for (const auto& [text, kind] : {std::pair{"<tool_call>", TokenKind::kUserDefined}, {"<>", TokenKind::kControl}}) {
    spec.tokens.push_back(text);
    spec.kinds.push_back(kind);
  }
  const auto t = make(spec);
  EXPECT_EQ(ids_of(*t, "<tool_call>").size(), 11u);
  EXPECT_EQ(ids_of(*t, "<|im_end|>").size(), 10u);
  EXPECT_EQ(ids_of(*t, "<>"), Ids({'<', '>'}));
  EXPECT_EQ(ids_of(*t, "the"), Ids({*t->id_of("the")}));
}

TEST(Tokenizer, TokensThatAreHalfCharactersDoNotCutTexts) {
  TokenizerSpec spec = byte_spec();
  spec.tokens.push_back("\xA4");
  spec.kinds.push_back(TokenKind::kUserDefined);
  const auto t = make(spec);
  EXPECT_EQ(ids_of(*t, "\xC3\xA4", {.parse_special = true}), Ids({0xC3, 0xA4}));
}

TEST(Tokenizer, StripsAndCollapsesSpacesWhereTheVocabularySaysSo) {
  TokenizerSpec spec = spm_spec();
  spec.remove_extra_spaces = true;
  const auto t = make(spec);
  EXPECT_EQ(t->decode(ids_of(*t, "  he   lo  ")), "he lo");
  TokenizerSpec bytes = byte_spec();
  bytes.pre.clear();
  bytes.normalize.push_back({.kind = NormalizeStep::Kind::kStrip, .right = false});
  EXPECT_EQ(ids_of(*make(bytes), " \n a "), Ids({'a', ' '}));
}

TEST(Tokenizer, RefusesBrokenSpecs) {
  const auto fails = [](auto&& change) {
    TokenizerSpec spec = byte_spec();
    change(spec);
    const auto made = Tokenizer::create(std::move(spec));
    return made.ok() ? std::string() : made.error().message;
  };
  EXPECT_EQ(fails([](TokenizerSpec&) {}), "");
  EXPECT_NE(fails([](TokenizerSpec& s) {
              s.tokens.clear();
              s.kinds.clear();
              s.bos = s.eos = std::nullopt;
            }),
            "");
  EXPECT_NE(fails([](TokenizerSpec& s) { s.kinds.pop_back(); }), "");
  EXPECT_NE(fails([](TokenizerSpec& s) { s.bos = 100000; }), "");
  EXPECT_NE(fails([](TokenizerSpec& s) { s.eos = -5; }), "");
  EXPECT_NE(fails([](TokenizerSpec& s) { s.added = {{.id = 99999}}; }), "");
  EXPECT_NE(fails([](TokenizerSpec& s) { s.model = "spm"; }), "") << "no scores";
  EXPECT_NE(fails([](TokenizerSpec& s) { s.model = "unigram"; }).find("unigram"), std::string::npos);
  EXPECT_NE(fails([](TokenizerSpec& s) { s.pre = "no-such-pre"; }).find("no-such-pre"), std::string::npos);
}

// A search tries a window of places at a time: matches beyond it, and borders of windows inside characters.
TEST(Regex, SearchesLongTextsInWindows) {
  const auto regex = Regex::compile("n+");
  ASSERT_TRUE(regex.ok());
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "\xC3\xA9x";
  text += "nn";
  Regex::Search search(*regex, text);
  ByteRange match;
  ASSERT_TRUE(*search.next(match));
  EXPECT_EQ(match.begin, 9000u);
  EXPECT_EQ(match.end, 9002u);
  EXPECT_FALSE(*search.next(match));
}

TEST(Regex, ATimeLimitEndsSearches) {
  const auto regex = Regex::compile("a");
  ASSERT_TRUE(regex.ok());
  ByteRange match;
  {
    const Regex::TimeLimit over(-1);
    const Regex::TimeLimit inner(100);
    const Error why = Regex::Search(*regex, "a").next(match).error();
    EXPECT_EQ(why.code, Code::kInvalidArgument) << "the text is to blame, not the server";
    EXPECT_NE(why.message.find("takes too long on a text of 1 bytes that begins 'a'"), std::string::npos);
  }
  EXPECT_TRUE(*Regex::Search(*regex, "a").next(match));
}

TEST(Regex, ATimeLimitCountsTheThreadsOwnTime) {
  const auto regex = Regex::compile("a");
  ASSERT_TRUE(regex.ok());
  ByteRange match;
  const Regex::TimeLimit limit(0.05);
  std::this_thread::sleep_for(std::chrono::milliseconds(120));  // as where others have the core
  EXPECT_TRUE(Regex::Search(*regex, "a").next(match).ok());
  bool over = false;
  for (int i = 0; i < 100'000'000 && !over; ++i) over = !Regex::Search(*regex, "a").next(match).ok();
  EXPECT_TRUE(over) << "power check";
}

TEST(Tokenizer, TheMostBytesOfAContext) {
  TokenizerSpec spec;
  spec.model = "bpe";
  for (const char* token : {"a", "b", "ab", "abab"}) spec.tokens.push_back(token);
  spec.merges = {"a b", "ab ab"};
  const auto most = [](TokenizerSpec spec) { return Tokenizer::create(std::move(spec)).value()->most_bytes(10); };
  EXPECT_EQ(most(spec), 10 * 4 * 3);
  for (const auto& change : std::vector<std::function<void(TokenizerSpec&)>>{
           [](TokenizerSpec& s) { s.byte_level = false; },
           [](TokenizerSpec& s) { s.normalize = {{.kind = NormalizeStep::Kind::kStrip}}; },
           [](TokenizerSpec& s) { s.split = {{.pattern = "a", .behavior = SplitStep::Behavior::kRemoved}}; },
           [](TokenizerSpec& s) { s.added = {{.id = 0, .lstrip = true}}; }}) {
    TokenizerSpec other = spec;
    change(other);
    EXPECT_EQ(most(other), std::nullopt) << "a token may take any amount of text";
  }
}

}  // namespace
}  // namespace kvilt
