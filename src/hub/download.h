// hub/download.h: GETs that are tried again, and one file of a repository into its blob.
// Idea:    a try that brought new bytes is no failure: only tries in a row without any are counted. A blob that an
//          earlier attempt had begun and that turns out wrong is downloaded once more from the start; one that came
//          whole and is wrong is a server that lies, or a damaged file, and is an error.
// Threads: one.
#pragma once

#include <string>

#include "hub/http_get.h"
#include "hub/hub_store.h"
#include "hub/pull.h"

namespace kvilt {

class Downloader {
 public:
  Downloader(const HubSource& source, PullWatcher& watcher) : source_(source), watcher_(watcher) {}

  // The answer's whole body. what: for messages.
  Result<std::string> small(const std::string& url, size_t max_bytes, const std::string& what);
  // REQUIRES: the file's lock is held.
  Status into_blob(const std::string& url, const RepoFile& file, const HubStore& store);
  // The lock of a blob; waits for it while another process has it. None: it has been downloaded meanwhile.
  Result<std::optional<OpenFile>> lock(const RepoFile& file, const HubStore& store);

 private:
  // After a failure: waits, or returns the error that ends it all.
  Status after(const HttpAnswer& answer, const std::string& what, int& failures);
  Status sleep(std::chrono::milliseconds time);
  Status fill(const std::string& url, const RepoFile& file, GrowingBlob& blob);
  HttpAnswer attempt(const HttpRequest& request, const RepoFile& file, GrowingBlob& blob);

  const HubSource& source_;
  PullWatcher& watcher_;
  HttpClient client_;
};

}  // namespace kvilt
