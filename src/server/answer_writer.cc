#include "server/answer_writer.h"

#include <sodium.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/hex.h"

namespace kvilt::server {
namespace {

const char* word_of(DocumentsPlace place) {
  switch (place) {
    case DocumentsPlace::kTemplate:
      return "template";
    case DocumentsPlace::kFirstUserMessage:
      return "first_user_message";
    case DocumentsPlace::kMadeUserMessage:
      return "made_user_message";
    case DocumentsPlace::kNone:
      break;
  }
  return "none";
}

}  // namespace

void UsageSum::add_prompt(const PromptUsage& usage) {
  sum_.prompt += usage.prompt;
  sum_.prefix += usage.prefix;
  sum_.chain += usage.chain;
  sum_.reused += usage.reused;
  sum_.seasoned += usage.seasoned;
  sum_.near += usage.near;
  sum_.disk += usage.disk;
  sum_.remote += usage.remote;
  sum_.recomputed += usage.recomputed;
  sum_.fresh += usage.fresh;
  sum_.kv_bytes.global += usage.kv_bytes.global;
  sum_.kv_bytes.local += usage.kv_bytes.local;
  sum_.kv_bytes.retrieval += usage.kv_bytes.retrieval;
  sum_.kv_bytes.dense += usage.kv_bytes.dense;
  sum_.evicted_bytes += usage.evicted_bytes;
  sum_.joined += usage.joined;
  sum_.folded += usage.folded;
  sum_.policy = usage.policy;
  sum_.ttft_s = std::max(sum_.ttft_s, usage.ttft_s);
}

void UsageSum::set_diagnostics(Json diagnostics) {
  diagnostics_ = std::make_shared<const Json>(std::move(diagnostics));
}

Json kvilt_usage(const PromptUsage& usage) {
  const ByHeadClass& kv = usage.kv_bytes;
  Json out{{"prefix", usage.prefix},
           {"chain", usage.chain},
           {"reused", usage.reused},
           {"seasoned", usage.seasoned},
           {"near", usage.near},
           {"disk", usage.disk},
           {"remote", usage.remote},
           {"recomputed", usage.recomputed},
           {"fresh", usage.fresh},
           {"kv_bytes", {{"global", kv.global}, {"local", kv.local}, {"retrieval", kv.retrieval}, {"dense", kv.dense}}},
           {"evicted_bytes", usage.evicted_bytes},
           {"drafted", usage.drafted},
           {"accepted", usage.accepted},
           {"policy", usage.policy},
           {"ttft_s", usage.ttft_s}};
  if (usage.joined > 0) out["joined"] = usage.joined;
  if (usage.folded > 0) out["folded"] = usage.folded;
  return out;
}

Json kvilt_usage(const UsageSum& usage) {
  Json out = kvilt_usage(usage.prompt());
  if (!usage.places().documents.empty()) out["documents_order"] = usage.places().documents;
  if (usage.documents() != DocumentsPlace::kNone) out["documents_place"] = word_of(usage.documents());
  if (!usage.places().tools.empty()) out["tools_order"] = usage.places().tools;
  if (usage.diagnostics()) out["diagnostics"] = *usage.diagnostics();
  return out;
}

Json progress_json(const PromptProgress& progress) {
  return {{"total", progress.total},
          {"cache", progress.cached},
          {"processed", progress.processed},
          {"time_ms", std::llround(progress.seconds * 1000)}};
}

std::string answer_id(const char* prefix) {
  unsigned char raw[12];
  randombytes_buf(raw, sizeof raw);
  return prefix + hex_text(raw);
}

}  // namespace kvilt::server
