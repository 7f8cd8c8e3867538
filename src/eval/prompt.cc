#include "eval/prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "base/check.h"
#include "base/error.h"
#include "base/random.h"
#include "kvilt/season.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

void append(std::vector<int32_t>& to, const std::vector<int32_t>& ids) { to.insert(to.end(), ids.begin(), ids.end()); }

std::vector<const CasePart*> known_parts(const EvalCase& from) {
  std::vector<const CasePart*> out;
  for (const CaseTurn& turn : from.turns) {
    for (const CasePart& part : turn.parts) {
      if (part.known) out.push_back(&part);
    }
  }
  return out;
}

// Parts follow each other; special tokens are written in the text by their names.
Result<Prompt> plain_prompt(const Engine& engine, const EvalCase& from) {
  Prompt out;
  for (const CaseTurn& turn : from.turns) {
    for (const CasePart& part : turn.parts) {
      std::vector<int32_t> ids = part.ids;
      if (ids.empty()) {
        KVILT_ASSIGN(ids, engine.tokenize(part.text, true, out.ids.empty()));
      }
      if (part.known) {
        if (ids.empty()) return error(Code::kInvalidArgument, "a piece has no tokens: '{}'", part.text);
        out.add_marked(ids);
      } else {
        append(out.ids, ids);
      }
    }
  }
  return out;
}

// Puts the chat template around the parts. Where a part is given as ids, they replace the ids of its text.
Result<Prompt> chat_prompt(const Engine& engine, const EvalCase& from) {
  Json messages = Json::array();
  for (const CaseTurn& turn : from.turns) {
    Json parts = Json::array();
    for (const CasePart& part : turn.parts) {
      Json entry{{"type", "text"}, {"text", part.ids.empty() ? part.text : "x"}};
      if (part.known) entry["cache_control"] = {{"type", "ephemeral"}};
      parts.push_back(std::move(entry));
    }
    messages.push_back({{"role", turn.role}, {"content", std::move(parts)}});
  }
  KVILT_ASSIGN(const Prompt drawn, engine.chat_prompt({{"messages", std::move(messages)}, {"part_separator", ""}}));
  const auto known = known_parts(from);
  if (drawn.marks.size() != known.size()) {
    return error(Code::kUnsupported, "the chat template prints {} of {} pieces; try --prompt plain", drawn.marks.size(),
                 known.size());
  }
  Prompt out;
  auto at = drawn.ids.begin();
  for (size_t i = 0; i < known.size(); ++i) {
    const auto begin = drawn.ids.begin() + drawn.marks[i].begin, end = drawn.ids.begin() + drawn.marks[i].end;
    out.ids.insert(out.ids.end(), at, begin);
    out.add_marked(known[i]->ids.empty() ? std::vector<int32_t>(begin, end) : known[i]->ids);
    at = end;
  }
  out.ids.insert(out.ids.end(), at, drawn.ids.end());
  return out;
}

struct Warmed {
  Prompt head;  // what precedes the first mark
  std::vector<std::vector<int32_t>> pieces;
};
// A part that was edited is warmed as it was.
Result<Warmed> warmed_parts(const Engine& engine, const EvalCase& from, const Prompt& prompt) {
  const auto known = known_parts(from);
  CHECK(known.size() == prompt.marks.size());
  Warmed out;
  for (size_t i = 0; i < known.size(); ++i) {
    const auto [begin, end] = prompt.marks[i];
    if (!known[i]->warmed) continue;
    out.pieces.emplace_back(prompt.ids.begin() + begin, prompt.ids.begin() + end);
    if (known[i]->was.empty()) continue;
    KVILT_ASSIGN(out.pieces.back(), engine.tokenize(known[i]->was, false, false));
  }
  if (!prompt.marks.empty()) out.head.ids.assign(prompt.ids.begin(), prompt.ids.begin() + prompt.marks[0].begin);
  return out;
}

}  // namespace

Result<Warm> parse_warm(const std::string& name) {
  if (name == "alone") return Warm::kAlone;
  if (name == "system") return Warm::kSystem;
  if (name == "context") return Warm::kContext;
  if (name == "prompt") return Warm::kPrompt;
  return error(Code::kInvalidArgument, "--warm: '{}' is not alone, system, context or prompt", name);
}

Result<Prompt> case_prompt(const Engine& engine, const EvalCase& from) {
  auto out = from.chat ? chat_prompt(engine, from) : plain_prompt(engine, from);
  if (!out.ok()) return error(out.error().code, "case '{}' of {}: {}", from.id, from.suite, out.error().message);
  if (!from.lead.empty()) {
    KVILT_ASSIGN(const auto lead, engine.tokenize(from.lead, false, false));
    append(out->ids, lead);
  }
  append(out->ids, from.begun);
  return out;
}

std::vector<size_t> other_order(size_t n, uint64_t seed) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937_64 rng(seed);
  shuffle(order, rng);
  if (n > 1 && order[0] == 0) std::swap(order[0], order[1]);
  return order;
}

Result<std::vector<PastRequest>> warm_requests(const Engine& engine, const EvalCase& from, const Prompt& prompt,
                                               Warm warm, uint64_t seed) {
  if (warm == Warm::kContext && !from.history.empty()) return from.history;
  if (warm == Warm::kPrompt) return std::vector<PastRequest>{{prompt, {}}};
  KVILT_ASSIGN(auto warmed, warmed_parts(engine, from, prompt));
  auto& [head, pieces] = warmed;
  if (warm == Warm::kAlone) head = {};
  std::vector<PastRequest> out;
  if (warm != Warm::kContext || pieces.size() < 2) {
    for (const auto& piece : pieces) out.emplace_back(PastRequest{head, {}}).prompt.add_marked(piece);
    return out;
  }
  for (const CasePart& part : from.warm_only) {
    KVILT_ASSIGN(auto ids, engine.tokenize(part.text, false, false));
    pieces.push_back(std::move(ids));
  }
  for (const size_t i : other_order(pieces.size(), seed)) head.add_marked(pieces[i]);
  return std::vector<PastRequest>{{head, {}}};
}

Result<SeasonWith> parse_season_with(const std::string& name) {
  if (name == "related") return SeasonWith::kRelated;
  if (name == "random") return SeasonWith::kRandom;
  return error(Code::kInvalidArgument, "--season-with: '{}' is not related or random", name);
}

Result<std::vector<Request>> season_requests(const Engine& engine, const EvalCase& from, const Prompt& prompt,
                                             const Seasoning& seasoning, std::span<const EvalCase> others) {
  KVILT_ASSIGN(auto warmed, warmed_parts(engine, from, prompt));
  auto& [head, pieces] = warmed;
  std::vector<Request> out;
  if (seasoning.with == SeasonWith::kRelated) {
    std::vector<Prompt> documents(pieces.size(), head);
    for (size_t i = 0; i < pieces.size(); ++i) documents[i].add_marked(pieces[i]);
    for (Prompt& all : season_prompts(documents, {seasoning.contexts, seasoning.seed, engine.info().context}))
      out.push_back(season_request(std::move(all)));
    return out;
  }
  std::mt19937_64 rng(seasoning.seed);
  const auto add = [&](Prompt made) -> Request& {
    Request& request = out.emplace_back(season_request(std::move(made)));
    request.policy.name = "prefix";
    return request;
  };
  for (int c = 0; c < seasoning.contexts; ++c) {
    std::vector<const CasePart*> texts;
    for (const EvalCase& other : others) {
      for (const CasePart* part : known_parts(other)) texts.push_back(part);
    }
    shuffle(texts, rng);
    Prompt before = head;
    const size_t length = head.ids.size() + 200 + rng() % 451;
    for (size_t i = 0; i < texts.size() && before.ids.size() < length; ++i) {
      KVILT_ASSIGN(const auto ids, engine.tokenize(texts[i]->text, false, false));
      append(before.ids, ids);
    }
    Request& once = add(before);  // the pieces after it find it as a prefix
    once.publish = true;
    once.season = false;
    for (const auto& piece : pieces) {
      Prompt one = before;
      one.add_marked(piece);
      add(std::move(one));
    }
  }
  return out;
}

}  // namespace kvilt
