#include "apps/bench/rag_prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/random.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

// The prompt before and after the pieces: the chat prompt around a marked placeholder.
Status frame(const Engine& engine, const std::string& system, const std::string& question, RagPrompt& out) {
  Json chat{{"messages", Json::array()}};
  if (!system.empty()) chat["messages"].push_back({{"role", "system"}, {"content", system}});
  chat["messages"].push_back({{"role", "user"}, {"content", question}});
  chat["documents"] = Json::array({"place holder"});
  KVILT_ASSIGN(const Prompt prompt, engine.chat_prompt(chat));
  if (prompt.marks.size() != 1)
    return error(Code::kUnsupported, "this model's chat template prints documents more than once");
  out.head.assign(prompt.ids.begin(), prompt.ids.begin() + prompt.marks[0].begin);
  out.tail.assign(prompt.ids.begin() + prompt.marks[0].end, prompt.ids.end());
  return {};
}

// Words in no order: of look-alikes (index/look_alikes.h) a policy would compute more than of most real texts.
std::string words(std::mt19937_64& rng, int sentences) {
  static const char* const kWords[] = {
      "amber",    "anchor",  "apple",   "arrow",  "autumn",  "barley", "basket", "beacon",  "bell",     "bench",
      "birch",    "bishop",  "blanket", "bottle", "branch",  "bread",  "bridge", "broom",   "bucket",   "butter",
      "cabin",    "candle",  "canal",   "carpet", "castle",  "cedar",  "chalk",  "chapel",  "cherry",   "chimney",
      "cider",    "circle",  "clay",    "cliff",  "clock",   "cloud",  "coast",  "cobbler", "copper",   "corner",
      "cotton",   "cradle",  "creek",   "crown",  "curtain", "dairy",  "diary",  "dome",    "door",     "dragon",
      "drum",     "dune",    "eagle",   "echo",   "ember",   "engine", "fable",  "falcon",  "farmer",   "feather",
      "fence",    "ferry",   "fiddle",  "field",  "flag",    "flame",  "flute",  "forest",  "fountain", "fox",
      "frost",    "garden",  "gate",    "ginger", "glass",   "glove",  "goat",   "grain",   "granite",  "guitar",
      "hammer",   "harbour", "harvest", "hazel",  "hedge",   "helmet", "heron",  "hill",    "honey",    "horn",
      "inn",      "iron",    "island",  "ivory",  "jacket",  "jar",    "kettle", "key",     "kite",     "ladder",
      "lamp",     "lantern", "lark",    "leaf",   "lemon",   "letter", "lime",   "linen",   "lion",     "loom",
      "maple",    "market",  "marsh",   "mason",  "meadow",  "mill",   "mirror", "monk",    "moon",     "morning",
      "mountain", "needle",  "nest",    "oak",    "oar",     "olive",  "onion",  "orchard", "oven",     "owl"};
  std::string out;
  for (int i = 0; i < sentences; ++i) {
    for (int w = 0; w < 11; ++w) out += fmt::format("{} ", kWords[rng() % std::size(kWords)]);
    out.back() = '.';
    out += ' ';
  }
  return out;
}

// Exactly `size` ids.
Result<std::vector<int32_t>> synthetic_piece(const Engine& engine, int size, std::mt19937_64& rng) {
  auto ids = engine.tokenize(words(rng, size / 12 + 4), false, false);
  if (ids.ok() && static_cast<int>(ids->size()) >= size && std::set<int32_t>(ids->begin(), ids->end()).size() > 24) {
    ids->resize(static_cast<size_t>(size));
    return ids;
  }
  std::vector<int32_t> random(static_cast<size_t>(size));
  for (int32_t& id : random) id = static_cast<int32_t>(rng() % static_cast<uint64_t>(engine.info().vocab));
  return random;
}

}  // namespace

Prompt RagPrompt::in_order(const std::vector<int>& order, bool marked) const {
  Prompt out;
  out.ids = head;
  for (const int i : order) {
    const auto& piece = i < 0 ? extra : pieces[i];
    const auto begin = static_cast<int32_t>(out.ids.size());
    out.ids.insert(out.ids.end(), piece.begin(), piece.end());
    if (marked && !piece.empty()) out.marks.push_back({begin, static_cast<int32_t>(out.ids.size())});
  }
  out.ids.insert(out.ids.end(), tail.begin(), tail.end());
  return out;
}

// A system turn or none, and a user's turn of pieces followed by the question: as case_file.h makes of 'segments'.
Result<RagPrompt> rag_prompt(const Engine& engine, const EvalCase& from) {
  const bool has_system = !from.turns.empty() && from.turns[0].role == "system";
  const std::string system = has_system ? from.turns[0].parts[0].text : "";
  const size_t asked = has_system ? 1 : 0;
  if (from.turns.size() != asked + 1)
    return error(Code::kInvalidArgument, "case '{}' is a dialogue: give cases with 'segments'", from.id);
  const std::vector<CasePart>& parts = from.turns[asked].parts;
  const std::string& question = parts.back().text;
  RagPrompt out;
  out.id = from.id;
  KVILT_TRY(frame(engine, system, question, out));
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    KVILT_ASSIGN(auto ids, engine.tokenize(parts[i].text, false, false));
    out.pieces.push_back(std::move(ids));
  }
  std::mt19937_64 rng(question.size() + 1);
  KVILT_ASSIGN(out.extra, synthetic_piece(engine, 200, rng));
  return out;
}

Result<RagPrompt> synthetic_prompt(const Engine& engine, int count, int size, uint64_t seed) {
  RagPrompt out;
  out.id = fmt::format("{}x{}", count, size);
  const auto framed = frame(engine, "You answer questions about the notes that you are given.",
                            "\nWhat is said of the harbour? Answer in one sentence.", out);
  if (!framed.ok()) {  // a model without a tokenizer or template: a few ids around the pieces
    for (int32_t i = 0; i < 8; ++i) out.head.push_back(1 + i), out.tail.push_back(20 + i);
  }
  std::mt19937_64 rng(seed);
  for (int i = 0; i < count; ++i) {
    KVILT_ASSIGN(auto piece, synthetic_piece(engine, size, rng));
    out.pieces.push_back(std::move(piece));
  }
  KVILT_ASSIGN(out.extra, synthetic_piece(engine, size, rng));
  return out;
}

Result<RagPrompt> text_prompt(const Engine& engine, const std::string& path, int count, int size, int round) {
  KVILT_ASSIGN(const std::string text, read_file(path, size_t{1} << 30));
  RagPrompt out;
  out.id = fmt::format("{}x{}", count, size);
  const size_t wanted = static_cast<size_t>(count) * static_cast<size_t>(size);
  const size_t bytes = 12 * wanted;  // few texts have more than six bytes a token
  const size_t from = bytes * static_cast<size_t>(round);
  if (from >= text.size())
    return error(Code::kInvalidArgument, "'{}' has {} bytes, too few for round {}", path, text.size(), round + 1);
  size_t begin = from;
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) ++begin;
  size_t end = std::min(text.size(), begin + bytes);
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  KVILT_ASSIGN(const auto ids, engine.tokenize(text.substr(begin, end - begin), false, false));
  if (ids.size() < wanted)
    return error(Code::kInvalidArgument, "'{}' gives {} tokens for round {}; {} are wanted", path, ids.size(),
                 round + 1, wanted);
  for (int i = 0; i < count; ++i) out.pieces.emplace_back(ids.begin() + i * size, ids.begin() + (i + 1) * size);
  return out;
}

Result<std::vector<int>> piece_order(const std::string& name, int count, uint64_t seed) {
  std::vector<int> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (name == "same") return order;
  if (name == "reverse") {
    std::ranges::reverse(order);
    return order;
  }
  if (name == "shuffle") {
    std::mt19937_64 rng(seed);
    shuffle(order, rng);
    if (count > 1 && order[0] == 0) std::swap(order[0], order[1]);  // the first piece would be a plain prefix hit
    return order;
  }
  if (name == "insert") {
    order.insert(order.begin(), -1);
    return order;
  }
  if (name == "drop") {
    order.erase(order.begin());
    return order;
  }
  if (name.find('-') != std::string::npos) {  // "3-1-2"
    order.clear();
    int number = 0;
    for (const char c : name + "-") {
      if (c >= '0' && c <= '9' && number <= count) {
        number = number * 10 + (c - '0');
      } else if (c == '-' && number >= 1 && number <= count) {
        order.push_back(std::exchange(number, 0) - 1);
      } else {
        return error(Code::kInvalidArgument, "order '{}' is not numbers from 1 to {} joined by '-'", name, count);
      }
    }
    return order;
  }
  return error(Code::kInvalidArgument,
               "no order '{}'; there are same, reverse, shuffle, insert, drop, or one like 3-1-2", name);
}

}  // namespace kvilt
