#include "server/infill_prompt.h"

#include <algorithm>
#include <span>
#include <utility>

namespace kvilt::server {
namespace {

// The texts of a family's tokens, all of which its vocabularies have. suffix_first: its models saw the suffix before the
// prefix, and no middle token means that the answer goes on from the prefix.
struct Family {
  const char *prefix, *suffix, *middle;
  bool suffix_first = false;
};
constexpr Family kFamilies[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},     // Qwen2.5-Coder, CodeGemma
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},           // StarCoder, Granite
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},           // SantaCoder
    {"\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"},              // CodeLlama
    {"<PRE>", "<SUF>", "<MID>"},                                // the same, as some files spell them
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},  // GLM-4.5
    {"<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"},  // DeepSeek-Coder
    {"<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", true},                                   // Seed-Coder
    {"[PREFIX]", "[SUFFIX]", nullptr, true},                                                        // Codestral
};
constexpr const char* kRepos[] = {"<|repo_name|>", "<|fim_repo|>", "<repo_name>", "<reponame>", "<REPO>"};
constexpr const char* kFiles[] = {"<|file_sep|>", "<|file_separator|>", "<file_sep>"};
constexpr const char* kPads[] = {"<|fim_pad|>", "<fim_pad>", "<PAD>"};
constexpr const char* kEnds[] = {"\u2581<EOT>", "<EOT>"};  // of the middle; not the vocabulary's EOS
constexpr const char* kProject = "project\n";              // the API has no name for the repository
constexpr const char* kThisFile = "filename\n";

constexpr const char* kNobodys = "<|nobodys_token|>";
constexpr const char* kAlone = "\u263a";  // which is no part of another token

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

// The same without the space that SentencePiece's vocabularies put before a text. CodeLlama's suffixes had none (arXiv
// 2308.12950, 2.3), nor had Codestral's, and their own code keeps it away as this does: by a sign before the text.
Status add_suffix(const Engine& engine, const std::string& text, std::vector<int32_t>& ids) {
  KVILT_ASSIGN(const std::vector<int32_t> letter, engine.tokenize("a", false, false));
  const bool spaced = !letter.empty() && engine.token_text(letter[0]).starts_with(' ');
  if (!spaced || text.empty()) return add_text(engine, text, ids);
  KVILT_ASSIGN(const std::vector<int32_t> sign, engine.tokenize(kAlone, false, false));
  KVILT_ASSIGN(const std::vector<int32_t> both, engine.tokenize(kAlone + text, false, false));
  const bool apart = both.size() >= sign.size() && std::equal(sign.begin(), sign.end(), both.begin());
  if (!apart) return add_text(engine, text, ids);
  ids.insert(ids.end(), both.begin() + std::ssize(sign), both.end());
  return {};
}

// What the tokenizer puts before a text.
Result<std::vector<int32_t>> begin_of(const Engine& engine) {
  KVILT_ASSIGN(std::vector<int32_t> around, engine.tokenize("a", false, true));
  KVILT_ASSIGN(const std::vector<int32_t> alone, engine.tokenize("a", false, false));
  around.erase(std::search(around.begin(), around.end(), alone.begin(), alone.end()), around.end());
  return around;
}

// The first file that is worth tokenising: those up to the one before it do not fit beside the ones behind it, however
// their tokens fall. most_bytes: of what fits (ModelInfo::longest_prompt); 0: not known.
size_t first_that_may_fit(const std::vector<InfillFile>& files, int64_t most_bytes) {
  size_t first = files.size(), bytes = 0;
  for (; first > 0; --first) {
    bytes += files[first - 1].name.size() + files[first - 1].text.size();
    if (most_bytes > 0 && std::cmp_greater(bytes, most_bytes)) break;
  }
  return first;
}

}  // namespace

Result<InfillTokens> InfillTokens::find(const Engine& engine) {
  for (const Family& family : kFamilies) {
    const auto prefix = token_of(engine, {&family.prefix, 1}), suffix = token_of(engine, {&family.suffix, 1});
    const auto middle = family.middle ? token_of(engine, {&family.middle, 1}) : std::nullopt;
    if (!prefix || !suffix || (family.middle && !middle)) continue;
    InfillTokens out{.prefix = *prefix, .suffix = *suffix, .middle = middle, .suffix_first = family.suffix_first};
    out.repo = token_of(engine, kRepos);
    out.file = token_of(engine, kFiles);
    for (const auto& end :
         {prefix, suffix, middle, out.repo, out.file, token_of(engine, kPads), token_of(engine, kEnds)}) {
      if (end) out.ends.push_back(*end);
    }
    return out;
  }
  return Error{Code::kUnsupported,
               "this model's vocabulary has no tokens for prefix, suffix and middle: it was not "
               "made to fill in text"};
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
  const size_t skipped = first_that_may_fit(text.extra, engine.info().longest_prompt);
  for (const InfillFile& extra : std::span(text.extra).subspan(skipped)) {
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
  std::vector<int32_t> first{tokens.prefix}, second{tokens.suffix};
  KVILT_TRY(add_text(engine, text.prefix + text.prompt, first));
  KVILT_TRY(add_suffix(engine, text.suffix, second));
  if (tokens.suffix_first) first.swap(second);
  for (const std::vector<int32_t>* half : {&first, &second}) tail.insert(tail.end(), half->begin(), half->end());
  if (tokens.middle) tail.push_back(*tokens.middle);
  size += tail.size();

  InfillPrompt out;
  out.prompt.ids = std::move(head);
  out.left_out = static_cast<int>(skipped);
  auto file = files.begin();
  for (; file != files.end() && size > static_cast<size_t>(std::max(most, 0)); ++file, ++out.left_out)
    size -= file->size();
  for (; file != files.end(); ++file) out.prompt.add_marked(*file);
  out.prompt.ids.insert(out.prompt.ids.end(), tail.begin(), tail.end());
  return out;
}

}  // namespace kvilt::server
