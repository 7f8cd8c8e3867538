#include "eval/journal.h"

#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/mapped_file.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDigest = "case_digest";
constexpr size_t kMaxJournalBytes = size_t{1} << 30;

std::string text_of(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

template <class T>
Json nullable(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// The first setting in which a journal's setup is not this run's, in words; empty: there is none.
std::string difference(const Json& journal, const JournalSetup& run) {
  for (const auto& [key, value] : run.values.items()) {
    const bool says = journal.contains(key), known = run.absent.contains(key);
    if (!says && known && run.absent[key].is_null()) continue;
    const Json was = says ? journal[key] : known ? run.absent[key] : Json(nullptr);
    if (was != value)
      return fmt::format("was written with {} = {}, this run has {}", key, text_of(was), text_of(value));
  }
  for (const auto& [key, value] : journal.items()) {
    if (!run.values.contains(key))
      return fmt::format("was written with {} = {}, which this program does not know", key, text_of(value));
  }
  return "";
}

Result<Quilt> quilt_from_json(const Json& line) {
  Quilt out;
  try {
    line.at("suite").get_to(out.suite), line.at("id").get_to(out.id), line.at("policy").get_to(out.policy);
    out.digest = line.value(kDigest, "");
    for (const Json& patch : line.at("patches"))
      out.patches.push_back({patch.at(0).get<std::string>(), patch.at(1).get<int>(), patch.at(2).get<std::string>()});
  } catch (const nlohmann::json::exception& problem) {
    return error(Code::kCorrupt, "{}", problem.what());
  }
  return out;
}

}  // namespace

Json to_json(const CaseResult& r) {
  return {{"suite", r.suite},
          {"id", r.id},
          {"policy", r.policy},
          {kDigest, r.digest},
          {"score", nullable(r.score)},
          {"kl_first", r.kl_first},
          {"kl_answer", r.kl_answer},
          {"kl_prompt", nullable(r.kl_prompt)},
          {"nll_gap", r.nll_gap},
          {"top1", r.top1},
          {"agree", r.agree},
          {"same_answer", nullable(r.same_answer)},
          {"ttft_s", r.ttft_s},
          {"ttft_ratio", r.ttft_ratio},
          {"flops", r.flops},
          {"flops_ratio", r.flops_ratio},
          {"bytes", r.bytes},
          {"prompt_tokens", r.prompt},
          {"prefix_tokens", r.prefix},
          {"reused_tokens", r.reused},
          {"near_tokens", r.near},
          {"recomputed_tokens", r.recomputed},
          {"fresh_tokens", r.fresh},
          {"kept_ratio", r.kept_ratio},
          {"cells_ratio", r.cells_ratio},
          {"decode_cells_ratio", nullable(r.decode_cells_ratio)},
          {"token_s", nullable(r.token_s)},
          {"decode_bytes", nullable(r.decode_bytes)},
          {"evicted_bytes", r.evicted_bytes},
          {"held_mass", nullable(r.held_mass)},
          {"decode_held_mass", nullable(r.decode_held_mass)},
          {"answer", r.answer}};
}

Json to_json(const Quilt& quilt) {
  Json patches = Json::array();
  for (const Patch& patch : quilt.patches) patches.push_back({patch.kind, patch.tokens, patch.text});
  return {{"suite", quilt.suite},
          {"id", quilt.id},
          {"policy", quilt.policy},
          {kDigest, quilt.digest},
          {"patches", std::move(patches)}};
}

Result<CaseResult> result_from_json(const Json& line) {
  CaseResult r;
  try {
    const auto get = [&](const char* key, auto& to) { line.at(key).get_to(to); };
    get("suite", r.suite), get("id", r.id), get("policy", r.policy);
    if (!line.at("score").is_null()) r.score = line.at("score").get<double>();
    get("kl_first", r.kl_first), get("kl_answer", r.kl_answer), get("nll_gap", r.nll_gap);
    if (line.contains("kl_prompt") && !line.at("kl_prompt").is_null()) r.kl_prompt = line.at("kl_prompt").get<double>();
    get("top1", r.top1), get("agree", r.agree);
    if (!line.at("same_answer").is_null()) r.same_answer = line.at("same_answer").get<bool>();
    get("ttft_s", r.ttft_s), get("ttft_ratio", r.ttft_ratio);
    get("flops", r.flops), get("flops_ratio", r.flops_ratio), get("bytes", r.bytes);
    get("prompt_tokens", r.prompt), get("prefix_tokens", r.prefix), get("reused_tokens", r.reused);
    get("recomputed_tokens", r.recomputed), get("fresh_tokens", r.fresh);
    get("kept_ratio", r.kept_ratio), get("answer", r.answer);
    const auto later = [&](const char* key, auto& to) { to = line.value(key, to); };  // older journals lack them
    later(kDigest, r.digest), later("near_tokens", r.near);
    later("evicted_bytes", r.evicted_bytes), later("cells_ratio", r.cells_ratio);
    const auto maybe = [&](const char* key, std::optional<double>& to) {
      if (line.contains(key) && !line.at(key).is_null()) to = line.at(key).get<double>();
    };
    maybe("held_mass", r.held_mass), maybe("decode_held_mass", r.decode_held_mass);
    for (const auto& [key, to] : {std::pair("token_s", &r.token_s), std::pair("decode_bytes", &r.decode_bytes)}) {
      maybe(key, *to);
      if (*to == 0) to->reset();  // older journals' word for none
    }
    if (r.token_s) maybe("decode_cells_ratio", r.decode_cells_ratio);  // else older journals have a 1 for none
  } catch (const nlohmann::json::exception& problem) {
    return error(Code::kCorrupt, "{}", problem.what());
  }
  return r;
}

bool Journal::has(const CaseSource& source, const std::string& policy) const {
  const auto at = done_.find({source.suite, source.id, policy});
  return at != done_.end() &&
         std::ranges::any_of(at->second, [&](const std::string& digest) { return same_case(digest, source); });
}

void Journal::keep(const CaseResult& result) {
  if (done_[{result.suite, result.id, result.policy}].insert(result.digest).second) results_.push_back(result);
}

Result<Journal> Journal::open(const std::string& path, const JournalSetup& setup) {
  Journal out;
  if (path.empty()) return out;
  out.path_ = path;
  std::string text;
  if (::access(path.c_str(), F_OK) == 0) {
    auto read = read_file(path, kMaxJournalBytes);
    if (read.ok()) text = std::move(*read);  // else it is empty, which counts as new
  }
  const size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  int number = 0;
  for (size_t begin = 0, end; begin < whole; begin = end + 1) {
    end = text.find('\n', begin);
    const Json line =
        Json::parse(text.begin() + static_cast<long>(begin), text.begin() + static_cast<long>(end), nullptr, false);
    if (++number > 1 && line.is_object() && line.contains("quilt")) {
      auto quilt = quilt_from_json(line["quilt"]);
      if (!quilt.ok()) return error(Code::kCorrupt, "{}:{}: {}", path, number, quilt.error().message);
      out.quilts_.push_back(std::move(*quilt));
      continue;
    }
    if (number > 1) {
      auto result = result_from_json(line);
      if (!result.ok()) return error(Code::kCorrupt, "{}:{}: {}", path, number, result.error().message);
      out.keep(*result);
      continue;
    }
    if (!line.is_object() || !line.contains("setup"))
      return error(Code::kInvalidArgument, "{}: is not a journal of kvilt eval; name another file", path);
    const auto other = difference(line["setup"], setup);
    if (!other.empty())
      return error(Code::kInvalidArgument, "{}: {}; name another journal, or begin it anew with --fresh", path, other);
  }
  if (whole < text.size() && ::truncate(path.c_str(), static_cast<off_t>(whole)) != 0) return system_error(path);
  out.file_.reset(std::fopen(path.c_str(), "a"));
  if (!out.file_) return system_error(path);
  if (number == 0) KVILT_TRY(out.write_line({{"setup", setup.values}}));
  return out;
}

Status Journal::write_line(const Json& line) {
  if (!file_) return {};
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() || std::fflush(file_.get()) != 0)
    return system_error(path_);
  return {};
}

Status Journal::add(const CaseResult& result) {
  KVILT_TRY(write_line(to_json(result)));
  keep(result);
  return {};
}

Status Journal::add(const Quilt& quilt) {
  KVILT_TRY(write_line({{"quilt", to_json(quilt)}}));
  quilts_.push_back(quilt);
  return {};
}

}  // namespace kvilt
