// grammar/part.h: a text's grammar, put together: words, JSON by a schema, regular expressions, EBNF, and what joins them.
// Idea:       a tree that is written as the JSON of xgrammar's structural tags, which is also its name in caches.
// Invariants: value type; nothing is checked here but what would not be JSON (compiler.h checks the rest).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace kvilt {

class GrammarPart {
 public:
  using Json = nlohmann::ordered_json;

  static GrammarPart word(std::string_view text);  // REQUIRES: not empty
  // JSON that fits the schema (an object, or true), with its properties in the schema's order.
  static GrammarPart json(Json schema);
  static GrammarPart regex(std::string_view pattern);
  static GrammarPart ebnf(std::string_view rules);  // from its rule `root`
  static GrammarPart space();                       // a few spaces and line ends, or none
  static GrammarPart text();                        // any, or none
  // begin (may be empty), any text in which `end` does not stand, end.
  static GrammarPart until(std::string_view begin, std::string_view end);
  // Any text; but behind each `begin` comes `rest`.
  static GrammarPart text_with(std::string_view begin, const GrammarPart& rest, std::string_view end, bool once);
  static GrammarPart sequence(const std::vector<GrammarPart>& parts);  // REQUIRES: not empty, as one_of's
  static GrammarPart one_of(const std::vector<GrammarPart>& parts);
  static GrammarPart maybe(const GrammarPart& part);
  static GrammarPart separated(const GrammarPart& part, std::string_view separator);  // once or more

  const Json& tree() const { return tree_; }

 private:
  explicit GrammarPart(Json tree) : tree_(std::move(tree)) {}
  Json tree_;
};

}  // namespace kvilt
