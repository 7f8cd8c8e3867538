// hub/pull.h: a model from the hub into the hub's cache: ask what there is, choose, download, check, link.
// Idea:       two steps. plan_pull() asks the hub once and changes nothing; pull() downloads what the plan lacks. What
//             is not whole goes on where it ended: after a broken connection by itself, after anything else with the
//             next pull.
// Invariants: all files come from the one commit that the plan names. Links and refs are made when all of them are
//             there, so an interrupted pull leaves what was usable as it was; and a pull that moves main to a newer
//             commit links the GGUF models that earlier ones left, where that commit has them too.
// Errors:     a message for every status, with what to do; kCancelled: stopped() said so.
// Threads:    the caller's; other processes may pull the same model, one of them downloads, the others wait.
// Not here:   the terminal (apps/pull.cc); uploads, data sets, the hub's Xet protocol.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "hub/http_get.h"
#include "hub/repo_listing.h"
#include "kvilt/result.h"

namespace kvilt {

struct HubSource {
  std::string endpoint = "https://huggingface.co";
  std::string token;   // empty: none. It is sent to the endpoint only
  std::string folder;  // of the cache (hub_folder())
  std::string revision = "main";
  int tries = 5;                         // in a row without a new byte
  std::chrono::milliseconds wait{1000};  // before the second try; doubled for each one after it
  HttpLimits limits;
};

// Endpoint and token as the environment has them: HF_ENDPOINT; HF_TOKEN, or the file that `hf auth login` writes
// (HF_TOKEN_PATH, or `token` beside the hub's cache). endpoint: instead of HF_ENDPOINT, if it is not empty.
// Errors: an endpoint that is no URL, a token that is none, HF_HUB_OFFLINE.
Result<HubSource> hub_source(const std::string& endpoint);

// Hears of what happens, on the thread that pulls.
class PullWatcher {
 public:
  virtual ~PullWatcher() = default;
  virtual bool stopped() { return false; }                 // asked about once a second
  virtual void at(const RepoFile& file, int64_t bytes) {}  // of this file, there are now so many
  virtual void note(const std::string& text) {}            // a wait, another try
};

struct PullPlan {
  HubName name;
  RepoListing listing;
  ChosenFiles chosen;
  std::vector<RepoFile> absent;         // of the chosen ones, those that are not in the cache
  int64_t bytes = 0, absent_bytes = 0;  // of all files; of what has to come, less what an earlier pull left
};

Result<PullPlan> plan_pull(const HubName& name, const HubSource& source, PullWatcher& watcher);

// Returns the path that open_model() takes.
Result<std::string> pull(const PullPlan& plan, const HubSource& source, PullWatcher& watcher);

}  // namespace kvilt
