#include "server/request_log.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace kvilt::server {
namespace {

const char* word_of(PatchKind kind) {
  switch (kind) {
    case PatchKind::kPrefix:
      return "prefix";
    case PatchKind::kReused:
      return "reused";
    case PatchKind::kRecomputed:
      return "recomputed";
    case PatchKind::kFresh:
      return "fresh";
  }
  return "fresh";
}

const char* word_of(FreshWhy why) {
  switch (why) {
    case FreshWhy::kNew:
      return "new";
    case FreshWhy::kShort:
      return "short";
    case FreshWhy::kRunning:
      return "running";
    case FreshWhy::kDeclined:
      return "declined";
    case FreshWhy::kUnmarked:
      return "unmarked";
    case FreshWhy::kRefused:
      return "refused";
  }
  return "new";
}

constexpr int kFewestMeasured = 256;  // tokens computed; in less much of the time is not theirs

double prefill_seconds(const PromptUsage& usage) { return std::max(0.0, usage.ttft_s - usage.queued_s); }

// FLOP/s of a prefill that was long enough; else 0. Of one that went on from another client's, the work is known but not
// the time that the other's part took.
double rate_of(const PromptUsage& usage) {
  if (usage.joined > 0) return 0;
  const double prefill = prefill_seconds(usage);
  return usage.fresh + usage.recomputed >= kFewestMeasured && prefill > 0 ? usage.flops / prefill : 0;
}

// Tokens at the beginning of a prompt that its request found as an exact prefix, or left as one. What a method changed,
// chose or kept for itself is none.
int32_t left_exactly(const std::vector<PromptPatch>& quilt) {
  int32_t end = 0;
  for (const PromptPatch& patch : quilt) {
    const bool whole = patch.kind == PatchKind::kFresh || (patch.kind == PatchKind::kPrefix && !patch.chain);
    if (!whole || !patch.exact || patch.begin != end) break;
    end += patch.count;
  }
  return end;
}

// Tokens of [begin, end) that are before `until`.
int32_t before(const PromptPatch& patch, int32_t until) { return std::clamp(until - patch.begin, 0, patch.count); }

}  // namespace

std::shared_ptr<RequestRecord> RequestLog::find(const std::string& tenant, const std::string& id) const {
  for (auto it = records_.rbegin(); it != records_.rend(); ++it) {
    if ((*it)->id == id && (*it)->tenant == tenant) return *it;
  }
  return nullptr;
}

std::shared_ptr<RequestRecord> RequestLog::begin(RequestRecord record, const std::string& previous_id,
                                                 const Engine& engine) const {
  auto out = std::make_shared<RequestRecord>(std::move(record));
  if (most_ == 0) return out;
  MutexLock lock(mutex_);
  std::shared_ptr<RequestRecord> previous = find(out->tenant, previous_id);
  if (previous && previous->salt != out->salt) previous = nullptr;
  out->unknown = !previous_id.empty() && !previous;
  int32_t longest = 0;
  for (const auto& other : records_) {
    if (!previous_id.empty() && previous) break;
    if (other->tenant != out->tenant || other->salt != out->salt || other->state == "cancelled") continue;
    const int32_t common = common_tokens(other->prompt, out->prompt);
    if (common < longest || common == 0) continue;  // of equals the newest
    longest = common;
    previous = other;
  }
  if (previous) {
    out->guessed = previous_id.empty();
    out->previous = previous->id;
    out->difference = first_difference(previous->prompt, out->prompt, engine);
    if (previous->state == "done") out->was_cached = std::min(out->difference->common, left_exactly(previous->quilt));
  }
  return out;
}

void RequestLog::submitted(std::shared_ptr<RequestRecord> record, RequestId id) {
  MutexLock lock(mutex_);
  record->engine_id = id;
  if (most_ == 0) return;
  tokens_ += record->prompt.ids.size();
  records_.push_back(std::move(record));
  make_room();
}

// Whoever has most of what there is too much of gives up its oldest record: else one tenant's requests would push out
// all others'.
void RequestLog::make_room() {
  for (;;) {
    const bool many = records_.size() > most_;
    if (!many && (tokens_ <= kMostTokens || records_.size() == 1)) return;
    std::map<std::string_view, size_t> of;
    for (const auto& record : records_) of[record->tenant] += many ? 1 : record->prompt.ids.size();
    const size_t most = std::ranges::max_element(of, {}, [](const auto& each) { return each.second; })->second;
    const auto at = std::ranges::find_if(records_, [&](const auto& record) { return of[record->tenant] == most; });
    tokens_ -= (*at)->prompt.ids.size();
    records_.erase(at);
  }
}

void RequestLog::ended(RequestRecord& record, const Completion& completion) {
  MutexLock lock(mutex_);
  record.state = completion.finish == Finish::kError       ? "failed"
                 : completion.finish == Finish::kCancelled ? "cancelled"
                                                           : "done";
  record.usage = completion.usage;
  record.quilt = completion.quilt;
  record.total_s = completion.total_s;
  double best = 0;  // FLOP/s
  for (const auto& other : records_) {
    if (other->tenant == record.tenant) best = std::max(best, rate_of(other->usage));
  }
  if (best > 0) record.at_best_s = record.usage.flops / best;
}

void RequestLog::left(RequestRecord& record) {
  MutexLock lock(mutex_);
  if (record.state == "running") record.state = "cancelled";
}

std::optional<Json> RequestLog::show(const std::string& tenant, const std::string& id) const {
  MutexLock lock(mutex_);
  const auto record = find(tenant, id);
  if (!record) return std::nullopt;
  return locked_json(*record);
}

Json RequestLog::list(const std::string& tenant) const {
  Json out = Json::array();
  MutexLock lock(mutex_);
  for (auto it = records_.rbegin(); it != records_.rend(); ++it) {
    const RequestRecord& record = **it;
    if (record.tenant != tenant) continue;
    const PromptUsage& usage = record.usage;
    out.push_back({{"id", record.id},
                   {"created", record.created},
                   {"state", record.state},
                   {"prompt_tokens", record.prompt.ids.size()},
                   {"computed_tokens", usage.fresh + usage.recomputed},
                   {"ttft_s", usage.ttft_s}});
  }
  return out;
}

Json RequestLog::json_of(const RequestRecord& record) const {
  MutexLock lock(mutex_);
  return locked_json(record);
}

// Who left it, by the id that its client was given, as long as that is known.
Json RequestLog::origin_of(const RequestRecord& record, const PromptPatch& patch) const {
  Json out{{"segment", patch.segment}, {"offset", patch.offset}};
  const auto by = std::ranges::find_if(records_, [&](const auto& other) {
    return other->engine_id == patch.request && other->tenant == record.tenant && patch.request != 0;
  });
  out["request"] = by == records_.end() ? Json(nullptr) : Json((*by)->id);
  out["position"] = patch.begin - patch.shift;
  return out;
}

Json RequestLog::locked_json(const RequestRecord& record) const {
  Json quilt = Json::array();
  std::map<std::string, int> fresh;
  // The last token is computed whatever is there: its logits are wanted.
  const int32_t known = std::min(record.was_cached, static_cast<int32_t>(record.prompt.ids.size()) - 1);
  for (const PromptPatch& patch : record.quilt) {
    Json one{{"kind", word_of(patch.kind)}, {"start", patch.begin}, {"count", patch.count}};
    if (patch.kind == PatchKind::kFresh) {
      one["why"] = word_of(patch.why);
      const int evicted = patch.why == FreshWhy::kNew ? before(patch, known) : 0;
      fresh[word_of(patch.why)] += patch.count - evicted;
      if (evicted > 0) one["evicted"] = evicted, fresh["evicted"] += evicted;
    } else {
      one["from"] = origin_of(record, patch);
      one["shift"] = patch.shift;
      one["exact"] = patch.exact;
      if (patch.chain) one["chain"] = true;
      if (patch.seasoned > 0) one["seasoned"] = patch.seasoned;
      if (patch.near) one["near"] = true;
    }
    quilt.push_back(std::move(one));
  }
  std::erase_if(fresh, [](const auto& reason) { return reason.second == 0; });
  const PromptUsage& usage = record.usage;
  Json out{{"id", record.id},
           {"created", record.created},
           {"state", record.state},
           {"policy", usage.policy},
           {"prompt_tokens", record.prompt.ids.size()},
           {"quilt", std::move(quilt)},
           {"fresh", fresh},
           {"first_difference", nullptr},
           {"seconds",
            {{"queue", usage.queued_s - usage.find_s},
             {"find", usage.find_s},
             {"prefill", prefill_seconds(usage)},
             {"prefill_at_best", record.at_best_s > 0 ? Json(record.at_best_s) : Json(nullptr)},
             {"first_token", usage.ttft_s},
             {"total", record.total_s}}}};
  if (usage.joined > 0) out["joined"] = usage.joined;
  if (record.difference) {
    const FirstDifference& difference = *record.difference;
    Json& shown = out["first_difference"] = {{"previous", record.previous},
                                             {"common_tokens", difference.common},
                                             {"class", difference.kind},
                                             {"path", difference.path},
                                             {"offset", difference.offset}};
    if (show_text_) shown["before"] = difference.before, shown["after"] = difference.after;
  }
  return out;
}

}  // namespace kvilt::server
