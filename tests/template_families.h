// tests/template_families.h: the chat templates that are here, with how each writes tool calls, and what an answer's text
// says when it is read by that.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/answer_syntax.h"
#include "engine/template_traits.h"
#include "server/answer_parser.h"

namespace kvilt {

using Json = nlohmann::ordered_json;
using server::AnswerEvent;
using server::AnswerParser;
using Kind = AnswerEvent::Kind;

inline const EdgeTokens kEdges{"<s>", "</s>"};

struct Family {
  ChatTemplate chat_template;
  TemplateTraits traits;
  AnswerSyntax syntax;
  bool speaks_of_tools = false;  // in its source
};

inline Family open_family(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream source;
  source << file.rdbuf();
  Family out{ChatTemplate::parse(source.str()).value(), {}, {}};
  out.speaks_of_tools = source.str().find("tool") != std::string::npos;
  out.traits = traits_of(out.chat_template, source.str(), kEdges);
  out.syntax = answer_syntax_of(out.chat_template, kEdges, out.traits.arguments_as_object);
  return out;
}

inline std::map<std::string, Family> families_in(const std::filesystem::path& root) {
  std::map<std::string, Family> out;
  for (const char* folder : {"llama.cpp", "from-tokenizer-configs"}) {
    if (!std::filesystem::exists(root / folder)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(root / folder)) {
      if (entry.path().extension() == ".jinja") out.emplace(entry.path().stem(), open_family(entry.path()));
    }
  }
  return out;
}

struct Call {
  std::string name;
  Json arguments;
  bool operator==(const Call&) const = default;
};

struct Answer {
  std::string content, reasoning;
  std::vector<Call> calls;
  bool broken = false;  // arguments that are no JSON
};

inline Answer answer_of(const AnswerParser::Events& events) {
  Answer out;
  for (const AnswerEvent& event : server::joined(events)) {
    if (event.kind == Kind::kContent) out.content += event.text;
    if (event.kind == Kind::kReasoning) out.reasoning += event.text;
    if (event.kind == Kind::kCallStart) out.calls.push_back({event.text, nullptr});
    if (event.kind == Kind::kArguments) {
      out.calls.back().arguments = Json::parse(event.text, nullptr, false);
      out.broken |= out.calls.back().arguments.is_discarded();
    }
  }
  return out;
}

inline AnswerParser::Events read(const server::AnswerReading& reading, const std::string& text,
                                 const std::vector<size_t>& cuts = {}) {
  AnswerParser parser(reading);
  AnswerParser::Events events;
  size_t at = 0;
  for (const size_t cut : cuts) {
    parser.push(std::string_view(text).substr(at, cut - at), events);
    at = cut;
  }
  parser.push(std::string_view(text).substr(at), events);
  parser.finish(events);
  return events;
}

}  // namespace kvilt
