#include "grammar/part.h"

#include <utility>

namespace kvilt {
namespace {

// White space between JSON's words: as much as a pretty printer needs, and never a whole answer of it.
constexpr int kMostSpace = 32;

GrammarPart::Json trees(const std::vector<GrammarPart>& parts) {
  auto out = GrammarPart::Json::array();
  for (const GrammarPart& part : parts) out.push_back(part.tree());
  return out;
}

}  // namespace

GrammarPart GrammarPart::word(std::string_view text) {
  return GrammarPart({{"type", "const_string"}, {"value", text}});
}

GrammarPart GrammarPart::json(Json schema) {
  return GrammarPart({{"type", "json_schema"}, {"json_schema", std::move(schema)}, {"max_whitespace_cnt", kMostSpace}});
}

GrammarPart GrammarPart::regex(std::string_view pattern) {
  return GrammarPart({{"type", "regex"}, {"pattern", pattern}});
}

GrammarPart GrammarPart::ebnf(std::string_view rules) { return GrammarPart({{"type", "grammar"}, {"grammar", rules}}); }

GrammarPart GrammarPart::space() { return regex("[ \\n]{0,3}"); }

GrammarPart GrammarPart::text() { return GrammarPart(Json{{"type", "any_text"}}); }

GrammarPart GrammarPart::until(std::string_view begin, std::string_view end) {
  return GrammarPart({{"type", "tag"}, {"begin", begin}, {"content", {{"type", "any_text"}}}, {"end", end}});
}

GrammarPart GrammarPart::text_with(std::string_view begin, const GrammarPart& rest, std::string_view end, bool once) {
  const Json tag = {{"type", "tag"}, {"begin", begin}, {"content", rest.tree()}, {"end", end}};
  return GrammarPart({{"type", "triggered_tags"},
                      {"triggers", Json::array({begin})},
                      {"tags", Json::array({tag})},
                      {"at_least_one", false},
                      {"stop_after_first", once}});
}

GrammarPart GrammarPart::sequence(const std::vector<GrammarPart>& parts) {
  return GrammarPart({{"type", "sequence"}, {"elements", trees(parts)}});
}

GrammarPart GrammarPart::one_of(const std::vector<GrammarPart>& parts) {
  return GrammarPart({{"type", "or"}, {"elements", trees(parts)}});
}

GrammarPart GrammarPart::maybe(const GrammarPart& part) {
  return GrammarPart({{"type", "optional"}, {"content", part.tree()}});
}

GrammarPart GrammarPart::separated(const GrammarPart& part, std::string_view separator) {
  const Json tag = {{"type", "tag"}, {"begin", ""}, {"content", part.tree()}, {"end", ""}};
  return GrammarPart({{"type", "tags_with_separator"},
                      {"tags", Json::array({tag})},
                      {"separator", separator},
                      {"at_least_one", true},
                      {"stop_after_first", false}});
}

}  // namespace kvilt
