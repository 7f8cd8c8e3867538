#include "server/infill_prompt.h"

#include <algorithm>
#include <span>

namespace kvilt::server {
namespace {

constexpr const char* kPrefixes[] = {"<|fim_prefix|>",
                                     "<fim_prefix>",
                                     "<fim-prefix>",
                                     "<PRE>",
                                     "<|code_prefix|>",
                                     "<\xef\xbd\x9c"
                                     "fim\xe2\x96\x81"
                                     "begin\xef\xbd\x9c>"};
constexpr const char* kSuffixes[] = {"<|fim_suffix|>",
                                     "<fim_suffix>",
                                     "<fim-suffix>",
                                     "<SUF>",
                                     "<|code_suffix|>",
                                     "<\xef\xbd\x9c"
                                     "fim\xe2\x96\x81"
                                     "hole\xef\xbd\x9c>"};
constexpr const char* kMiddles[] = {"<|fim_middle|>",
                                    "<fim_middle>",
                                    "<fim-middle>",
                                    "<MID>",
                                    "<|code_middle|>",
                                    "<\xef\xbd\x9c"
                                    "fim\xe2\x96\x81"
                                    "end\xef\xbd\x9c>"};
constexpr const char* kRepos[] = {"<|repo_name|>", "<|fim_repo|>", "<repo_name>", "<reponame>", "<REPO>"};
constexpr const char* kFiles[] = {"<|file_sep|>", "<|file_separator|>", "<file_sep>"};
constexpr const char* kPads[] = {"<|fim_pad|>", "<fim_pad>", "<PAD>"};
constexpr const char* kProject = "project\n";  // the API has no name for the repository
constexpr const char* kThisFile = "filename\n";

constexpr const char* kNobodys = "<|nobodys_token|>";

std::optional<int32_t> one_token(const Engine& engine, const char* text) {
  const auto ids = engine.tokenize(text, true, false);
  return ids.ok() && ids.value().size() == 1 ? std::optional(ids.value()[0]) : std::nullopt;
}

// The first of these texts that the vocabulary has a token for; one that stands for all unknown words is none.
std::optional<int32_t> token_of(const Engine& engine, std::span<const char* const> texts) {
  const auto unknown = one_token(engine, kNobodys);
  for (const char* text : texts) {
    if (const auto id = one_token(engine, text); id && id != unknown) return id;
  }
  return std::nullopt;
}

Status add_text(const Engine& engine, const std::string& text, std::vector<int32_t>& ids) {
  if (text.empty()) return {};
  KVILT_ASSIGN(const std::vector<int32_t> more, engine.tokenize(text, false, false));
  ids.insert(ids.end(), more.begin(), more.end());
  return {};
}

// What the tokenizer puts before a text.
Result<std::vector<int32_t>> begin_of(const Engine& engine) {
  KVILT_ASSIGN(std::vector<int32_t> around, engine.tokenize("a", false, true));
  KVILT_ASSIGN(const std::vector<int32_t> alone, engine.tokenize("a", false, false));
  around.erase(std::ranges::search(around, alone).begin(), around.end());
  return around;
}

}  // namespace

Result<InfillTokens> InfillTokens::find(const Engine& engine) {
  InfillTokens out;
  const auto prefix = token_of(engine, kPrefixes), suffix = token_of(engine, kSuffixes),
             middle = token_of(engine, kMiddles);
  if (!prefix || !suffix || !middle)
    return Error{Code::kUnsupported,
                 "this model's vocabulary has no tokens for prefix, suffix and middle: it was not "
                 "made to fill in text"};
  out.prefix = *prefix;
  out.suffix = *suffix;
  out.middle = *middle;
  out.repo = token_of(engine, kRepos);
  out.file = token_of(engine, kFiles);
  for (const auto& end : {prefix, suffix, middle, out.repo, out.file, token_of(engine, kPads)}) {
    if (end) out.ends.push_back(*end);
  }
  return out;
}

Result<InfillPrompt> infill_prompt(const Engine& engine, const InfillTokens& tokens, const InfillText& text, int most) {
  std::vector<int32_t> head, tail;
  KVILT_ASSIGN(head, begin_of(engine));
  if (tokens.repo && !text.extra.empty()) {
    head.push_back(*tokens.repo);
    KVILT_TRY(add_text(engine, kProject, head));
  }
  std::vector<std::vector<int32_t>> files;
  size_t size = head.size();
  for (const InfillFile& extra : text.extra) {
    std::vector<int32_t> file;
    if (tokens.file) file.push_back(*tokens.file);
    KVILT_TRY(add_text(engine, extra.name + "\n" + extra.text, file));
    size += file.size();
    files.push_back(std::move(file));
  }
  if (tokens.file && !text.extra.empty()) {
    tail.push_back(*tokens.file);
    KVILT_TRY(add_text(engine, kThisFile, tail));
  }
  tail.push_back(tokens.prefix);
  KVILT_TRY(add_text(engine, text.prefix + text.prompt, tail));
  tail.push_back(tokens.suffix);
  KVILT_TRY(add_text(engine, text.suffix, tail));
  tail.push_back(tokens.middle);
  size += tail.size();

  InfillPrompt out;
  out.prompt.ids = std::move(head);
  auto file = files.begin();
  for (; file != files.end() && size > static_cast<size_t>(std::max(most, 0)); ++file, ++out.left_out)
    size -= file->size();
  for (; file != files.end(); ++file) out.prompt.add_marked(*file);
  out.prompt.ids.insert(out.prompt.ids.end(), tail.begin(), tail.end());
  return out;
}

}  // namespace kvilt::server
