// embed MODEL: the engine inside another program. Two notes are read once, then sent again in the other order: their KV
// is found by content, and only some of it is computed again.
#include <kvilt/ask.h>

#include <cstdio>

using namespace kvilt;

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: embed MODEL\n"), 2;
  const auto engine = open_engine({.model = argv[1], .min_segment = 8});
  if (!engine.ok()) return std::fprintf(stderr, "%s\n", engine.error().message.c_str()), 1;

  const std::string cat = "Tom the cat sat on the red mat and looked at the big bird in the tree. ";
  const std::string dog = "Lily had a little dog. The dog liked to run and play in the park all day. ";
  const std::string question = "One day, Tom and Lily";
  for (const auto& parts : {std::vector{cat, dog, question}, std::vector{dog, cat, question}}) {
    Request request;
    for (const std::string& part : parts) {
      const auto begin = static_cast<int32_t>(request.prompt.ids.size());
      const auto ids = (*engine)->tokenize(part, false, begin == 0);
      if (!ids.ok()) return std::fprintf(stderr, "%s\n", ids.error().message.c_str()), 1;
      request.prompt.ids.insert(request.prompt.ids.end(), ids->begin(), ids->end());
      const auto end = static_cast<int32_t>(request.prompt.ids.size());
      if (&part != &parts.back()) request.prompt.marks.push_back({begin, end});  // a piece that may come again
    }
    request.sampling = {.max_tokens = 16, .temperature = 0};
    request.policy.name = "mend";  // the default, auto, would rather compute notes as short as these
    const auto answer = ask(**engine, std::move(request));
    if (!answer.ok()) return std::fprintf(stderr, "%s\n", answer.error().message.c_str()), 1;
    const PromptUsage& usage = answer->usage();
    std::printf("%d tokens: %d reused, %d of them recomputed; %s%s\n", usage.prompt, usage.reused, usage.recomputed,
                question.c_str(), answer->text.c_str());
  }
}
