#include "hub/download.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/error.h"
#include "model/tensor_table.h"

namespace kvilt {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kLongestWait{60000}, kLook{100};

bool may_pass(int status) { return status == 408 || status == 429 || (status >= 500 && status != 501); }

// What a status says about `what`, and what to do.
Error of_status(const HttpHead& head, const std::string& what, const std::string& endpoint, bool has_token) {
  const std::string said = head.message.empty() ? "" : fmt::format(" ({})", head.message);
  const std::string token = has_token ? "the token that was sent (HF_TOKEN) may not read it"
                                      : "no token was sent; HF_TOKEN holds one for models that need it";
  const bool gated = head.code == "GatedRepo";
  if (gated || head.status == 403)
    return error(Code::kNotFound,
                 "{}: the hub answers {}{}: access to this model has to be asked for: open it on {}, accept its terms, "
                 "and set HF_TOKEN to a token of that account; {}",
                 what, head.status, said, endpoint, token);
  if (head.status == 401)
    return error(Code::kNotFound, "{}: the hub answers 401{}: there is no such model, or it is private; {}", what, said,
                 token);
  if (head.status == 404)
    return error(Code::kNotFound, "{}: the hub has no such {}{}", what,
                 head.code == "RevisionNotFound" ? "revision" : "model, revision or file", said);
  if (head.status == 429)
    return error(Code::kUnavailable, "{}: the hub answers 429, too many requests{}: try again later, or with HF_TOKEN",
                 what, said);
  if (head.status >= 500)
    return error(Code::kUnavailable, "{}: the hub answers {}{}: it is not well; try again later", what, head.status,
                 said);
  return error(Code::kUnavailable, "{}: the hub answers {}{}", what, head.status, said);
}

}  // namespace

Status Downloader::sleep(Milliseconds time) {
  for (Milliseconds slept{0}; slept < time; slept += kLook) {
    if (watcher_.stopped()) return error(Code::kCancelled, "stopped");
    std::this_thread::sleep_for(std::min(kLook, time - slept));
  }
  return {};
}

Status Downloader::after(const HttpAnswer& answer, const std::string& what, int& failures) {
  const Error failed = answer.error ? error(answer.error->code, "{}: {}", what, answer.error->message)
                                    : of_status(answer.head, what, source_.endpoint, !source_.token.empty());
  if (!(answer.error ? answer.may_pass : may_pass(answer.head.status))) return failed;
  if (++failures >= source_.tries) return failed;
  Milliseconds wait = source_.wait * (1 << std::min(failures - 1, 10));
  if (answer.head.retry_after_s > 0) wait = std::chrono::seconds(answer.head.retry_after_s);
  wait = std::min(wait, kLongestWait);
  watcher_.note(fmt::format("{}; try {} of {} in {:.0f} s", failed.message, failures + 1, source_.tries,
                            static_cast<double>(wait.count()) / 1000));
  return sleep(wait);
}

Result<std::string> Downloader::small(const std::string& url, size_t max_bytes, const std::string& what) {
  for (int failures = 0;;) {
    std::string body;
    const auto take = [&](const HttpHead&, std::span<const std::byte> bytes) -> Status {
      if (bytes.size() > max_bytes - body.size())
        return error(Code::kCorrupt, "the answer is longer than {} bytes", max_bytes);
      body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return {};
    };
    HttpRequest request{url, source_.token, 0, source_.limits};
    request.limits.whole_s = 4 * source_.limits.silence_s;
    const HttpAnswer answer = client_.get(request, take, [&] { return watcher_.stopped(); });
    if (!answer.error && answer.head.status == 200) return body;
    if (answer.error && answer.head.status == 0) failures = source_.tries;  // nobody answers: say so at once
    KVILT_TRY(after(answer, what, failures));
  }
}

HttpAnswer Downloader::attempt(const HttpRequest& request, const RepoFile& file, GrowingBlob& blob) {
  bool first = true;
  const auto check_head = [&](const HttpHead& head) -> Status {
    // What knows no ranges sends all of it. A page that a proxy sends instead must not cost what came before.
    const bool whole = head.status == 200 && (head.length < 0 || head.length == file.size);
    if (whole && request.from > 0) KVILT_TRY(blob.restart());
    if (head.status == 206 && head.first_byte != request.from)
      return error(Code::kCorrupt, "byte {} was asked for, the answer begins at {}", request.from, head.first_byte);
    if (head.status != 200 && head.status != 206) return error(Code::kCorrupt, "status {} with a body", head.status);
    if (head.length >= 0 && head.length != file.size - blob.bytes())
      return error(Code::kCorrupt, "the hub lists {} bytes, of which {} are here, and the answer has {}", file.size,
                   blob.bytes(), head.length);
    return {};
  };
  const auto take = [&](const HttpHead& head, std::span<const std::byte> bytes) -> Status {
    if (std::exchange(first, false)) KVILT_TRY(check_head(head));
    KVILT_TRY(blob.append(bytes));
    watcher_.at(file, blob.bytes());
    return {};
  };
  return client_.get(request, take, [&] { return watcher_.stopped(); });
}

// Until the blob has all its bytes.
Status Downloader::fill(const std::string& url, const RepoFile& file, GrowingBlob& blob) {
  int64_t most = blob.bytes();  // a server without ranges may start again and again
  for (int failures = 0; blob.bytes() < file.size;) {
    const int64_t before = blob.bytes();
    const HttpRequest request{url, source_.token, before, source_.limits};
    HttpAnswer answer = attempt(request, file, blob);
    if (blob.bytes() == file.size) return {};
    if (blob.bytes() > most) failures = 0;
    most = std::max(most, blob.bytes());
    if (answer.head.status == 416 && before > 0) KVILT_TRY(blob.restart());
    if (!answer.error && (answer.head.status < 400 || answer.head.status == 416)) {
      answer.may_pass = true;
      answer.error = error(Code::kUnavailable, "the answer ends after {} of {} bytes", blob.bytes(), file.size);
    }
    KVILT_TRY(after(answer, printable(file.path), failures));
  }
  return {};
}

Status Downloader::into_blob(const std::string& url, const RepoFile& file, const HubStore& store) {
  const auto stopped = [&] { return watcher_.stopped(); };
  for (bool again = false;; again = true) {
    KVILT_ASSIGN(GrowingBlob blob, GrowingBlob::open(store, file, stopped));
    const bool begun = blob.bytes() > 0;
    watcher_.at(file, blob.bytes());
    KVILT_TRY(fill(url, file, blob));
    KVILT_ASSIGN(const bool right, blob.finish());
    if (right) return {};
    if (!begun || again)
      return error(Code::kCorrupt,
                   "{}: what came is not what the hub lists ({} {} differs): a damaged file or a server that lies; "
                   "nothing of it is kept",
                   printable(file.path), file.blob.size() == 64 ? "SHA-256" : "git's SHA-1", file.blob);
    watcher_.note(fmt::format("{}: what an earlier download left does not fit; from the start", printable(file.path)));
  }
}

Result<std::optional<OpenFile>> Downloader::lock(const RepoFile& file, const HubStore& store) {
  for (bool told = false;; told = true) {
    KVILT_ASSIGN(std::optional<OpenFile> lock, store.try_lock(file));
    if (store.has(file)) return std::optional<OpenFile>();
    if (lock) return lock;
    if (!told) watcher_.note(fmt::format("{}: another process downloads it; waiting for it", printable(file.path)));
    KVILT_TRY(sleep(kLook));
  }
}

}  // namespace kvilt
