#include "apps/bench/agent_streams.h"

#include <cmath>
#include <numeric>

namespace kvilt {
namespace {

// Kinds of text: a key is a kind and a number.
enum Kind : uint64_t { kSystem = 1, kTool, kTurn, kFile, kDocument, kSide, kChunk, kFresh };

class Streams {
 public:
  Streams(const Texts& texts, double scale, uint64_t seed) : texts_(texts), scale_(scale), rng_(seed) {}

  // The text stands before the tools; a line near its beginning has a clock, or a billing header's digits
  // (waybarrios/vllm-mlx pull 277; a first request of 25.4k tokens: 15k of tools, 6k of text).
  Workload volatile_line() {
    Workload out{"clock", {}};
    for (int turn = 0; turn < 5; ++turn) {
      Prompt prompt;
      add(prompt, kSystem, 0, 24);
      fresh(prompt, 12);
      add(prompt, kSystem, 1, sized(6000), true);
      tools(prompt, in_order(tool_count()));
      turns(prompt, turn + 3);
      out.prompts.push_back(std::move(prompt));
    }
    return out;
  }

  // A gateway lists the same tools in another order each time (maximhq/bifrost issue 3362: 261 of 287 differ).
  Workload reordered_tools() {
    Workload out{"tools", {}};
    std::vector<int> order = in_order(tool_count());
    for (int turn = 0; turn < 5; ++turn) {
      Prompt prompt;
      tools(prompt, order);
      add(prompt, kSystem, 1, sized(6000), true);
      turns(prompt, turn + 1);
      out.prompts.push_back(std::move(prompt));
      std::shuffle(order.begin(), order.end(), rng_);
    }
    return out;
  }

  // A session, the request for its summary under another head, and the session behind the summary
  // (anomalyco/opencode issue 25120: 40k to 50k tokens).
  Workload compaction() {
    Workload out{"compaction", {}};
    const int history = 12;
    const auto session = [&](int first, int last, bool summary) {
      Prompt prompt;
      add(prompt, kSystem, 1, sized(6000), true);
      tools(prompt, in_order(tool_count()));
      if (summary) add(prompt, kFresh, 1, sized(1500));
      for (int t = first; t < last; ++t) add(prompt, kTurn, t, sized(2000));
      return prompt;
    };
    out.prompts.push_back(session(0, history - 1, false));
    out.prompts.push_back(session(0, history, false));
    Prompt asks;
    add(asks, kSide, 0, 200);
    for (int t = 0; t < history; ++t) add(asks, kTurn, t, sized(2000));
    fresh(asks, 40);
    out.prompts.push_back(std::move(asks));
    out.prompts.push_back(session(history - 4, history, true));
    out.prompts.push_back(session(history - 4, history + 1, true));
    return out;
  }

  // Old tool results are pruned to a stub, one more in every turn (anomalyco/opencode issues 19081, 32515).
  Workload edited_history() {
    Workload out{"pruning", {}};
    for (int turn = 0; turn < 5; ++turn) {
      Prompt prompt;
      add(prompt, kSystem, 1, sized(6000), true);
      for (int t = 0; t < turn + 12; ++t) {
        add(prompt, kTurn, t, t < turn ? 8 : sized(2000));
        add(prompt, kTurn, 1000 + t, 32);
      }
      out.prompts.push_back(std::move(prompt));
    }
    return out;
  }

  // Each with instructions of its own, then the same files (callanjfox/agentic-coding-analysis: four of 13.2k tokens).
  Workload subagents() {
    Workload out{"subagents", {}};
    for (int agent = 0; agent < 4; ++agent) {
      Prompt prompt;
      fresh(prompt, sized(1200));
      for (int f = 0; f < 6; ++f) {
        add(prompt, kFile, (f + agent) % 6, sized(2000), true);
        add(prompt, kFresh, 100 + agent * 10 + f, 16);
      }
      out.prompts.push_back(std::move(prompt));
    }
    return out;
  }

  // Documents are retrieved per question, in the order of their scores (CacheWeaver, arXiv 2606.19667).
  Workload retrieval() {
    Workload out{"rag", {}};
    for (int q = 0; q < 8; ++q) {
      std::vector<int> all = in_order(12);
      std::shuffle(all.begin(), all.end(), rng_);
      Prompt prompt;
      add(prompt, kSystem, 2, sized(500));
      for (int d = 0; d < 6; ++d) add(prompt, kDocument, all[static_cast<size_t>(d)], sized(1500), true);
      fresh(prompt, 32);
      out.prompts.push_back(std::move(prompt));
    }
    return out;
  }

  // Titles and tags for a conversation that goes on meanwhile (open-webui issue 6677).
  Workload side_requests() {
    Workload out{"side", {}};
    for (int turn = 0; turn < 4; ++turn) {
      Prompt prompt;
      add(prompt, kSystem, 3, sized(4000));
      turns(prompt, turn + 4);
      out.prompts.push_back(prompt);
      Prompt side;
      add(side, kSide, 1 + turn % 2, 200);
      for (int t = turn + 1; t < turn + 4; ++t) add(side, kTurn, t, sized(2000));
      fresh(side, 16);
      out.prompts.push_back(std::move(side));
    }
    return out;
  }

  // A ring of chunks around the cursor: the oldest leaves, all others move up (ggml-org/llama.cpp pull 9787).
  Workload code_ring() {
    Workload out{"completion", {}};
    const int chunks = 8;
    for (int step = 0; step < 6; ++step) {
      Prompt prompt;
      for (int c = step; c < step + chunks; ++c) add(prompt, kChunk, c, sized(1200), true);
      fresh(prompt, 64);
      out.prompts.push_back(std::move(prompt));
    }
    return out;
  }

 private:
  int sized(int tokens) const { return std::max(64, static_cast<int>(std::lround(tokens * scale_))); }
  // 15,000 tokens of schemas, some 400 each.
  int tool_count() const { return std::clamp(static_cast<int>(std::lround(15000 * scale_ / 400)), 4, 40); }
  static std::vector<int> in_order(int n) {
    std::vector<int> out(static_cast<size_t>(n));
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  void add(Prompt& prompt, Kind kind, int number, int tokens, bool marked = false) const {
    append(prompt, texts_.text((static_cast<uint64_t>(kind) << 32) + static_cast<uint64_t>(number), tokens), marked);
  }
  void fresh(Prompt& prompt, int tokens) { add(prompt, kFresh, 100000 + next_++, tokens); }
  void tools(Prompt& prompt, const std::vector<int>& order) const {
    const int each = sized(15000) / static_cast<int>(order.size());
    for (const int tool : order) add(prompt, kTool, tool, std::max(64, each));
  }
  void turns(Prompt& prompt, int n) {
    for (int t = 0; t < n; ++t) add(prompt, kTurn, t, sized(2000));
    fresh(prompt, 32);
  }

  const Texts& texts_;
  const double scale_;
  std::mt19937_64 rng_;
  int next_ = 0;
};

}  // namespace

std::vector<Workload> agent_streams(const Texts& texts, double scale, uint64_t seed) {
  Streams streams(texts, scale, seed);
  std::vector<Workload> out;
  out.push_back(streams.volatile_line());
  out.push_back(streams.reordered_tools());
  out.push_back(streams.compaction());
  out.push_back(streams.edited_history());
  out.push_back(streams.subagents());
  out.push_back(streams.retrieval());
  out.push_back(streams.side_requests());
  out.push_back(streams.code_ring());
  return out;
}

}  // namespace kvilt
