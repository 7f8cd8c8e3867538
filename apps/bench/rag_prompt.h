// apps/bench/rag_prompt.h: RAG cases (docs/formats/json.md#input-rag-cases-json-lines) and synthetic ones as token ids:
// head | pieces | tail, each tokenised by itself, so that a piece has the same ids in every order.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "eval/case.h"
#include "kvilt/engine.h"

namespace kvilt {

struct RagPrompt {
  std::string id;
  std::vector<int32_t> head, tail;
  std::vector<std::vector<int32_t>> pieces;
  std::vector<int32_t> extra;  // a piece that the cache has not seen, for --order insert

  // head, the pieces in this order (-1: extra), tail; the pieces are marked.
  Prompt in_order(const std::vector<int>& order, bool marked) const;
};
// Errors: kInvalidArgument for a dialogue.
Result<RagPrompt> rag_prompt(const Engine& engine, const EvalCase& from);
// `count` pieces of `size` tokens each, words in no order (random ids if the tokenizer knows no English).
Result<RagPrompt> synthetic_prompt(const Engine& engine, int count, int size, uint64_t seed);
// `count` pieces of `size` tokens each, cut one after the other out of the text file, from its round-th stretch on.
// Errors: kInvalidArgument: the file is too short, or cannot be read.
Result<RagPrompt> text_prompt(const Engine& engine, const std::string& path, int count, int size, int round);

// same, reverse, shuffle, insert (extra in front), drop (without the first), or pieces by number from 1 as 3-1-2.
// Errors: kInvalidArgument.
Result<std::vector<int>> piece_order(const std::string& name, int count, uint64_t seed);

}  // namespace kvilt
