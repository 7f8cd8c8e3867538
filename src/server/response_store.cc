#include "server/response_store.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace kvilt::server {
namespace {

size_t size_of(const StoredResponse& response) {
  constexpr size_t kNode = 256;  // the list's and the map's
  return kNode + 2 * response.id.size() + response.previous.size() + response.response.size() + response.input.size();
}

}  // namespace

void ResponseStore::drop(Shelf& shelf, Entries::iterator entry) {
  shelf.bytes -= entry->bytes;
  shelf.by_id.erase(entry->response->id);
  shelf.entries.erase(entry);
}

void ResponseStore::shrink(Shelf& shelf, Clock::time_point now) {
  while (!shelf.entries.empty()) {
    const Entry& last = shelf.entries.back();
    const bool full = shelf.entries.size() > limits_.responses || shelf.bytes > limits_.bytes;
    if (!full && now - last.used <= limits_.age) return;
    drop(shelf, std::prev(shelf.entries.end()));
  }
}

std::shared_ptr<const StoredResponse> ResponseStore::use(Shelf& shelf, const std::string& id, Clock::time_point now) {
  const auto found = shelf.by_id.find(id);
  if (found == shelf.by_id.end()) return nullptr;
  found->second->used = now;
  shelf.entries.splice(shelf.entries.begin(), shelf.entries, found->second);
  return found->second->response;
}

void ResponseStore::add(const std::string& tenant, StoredResponse response, Clock::time_point now) {
  const size_t bytes = size_of(response);
  if (!fits(bytes)) return;
  MutexLock lock(mutex_);
  Shelf& shelf = shelves_[tenant];
  const std::string id = response.id;
  if (const auto old = shelf.by_id.find(id); old != shelf.by_id.end()) drop(shelf, old->second);
  shelf.entries.push_front({std::make_shared<const StoredResponse>(std::move(response)), bytes, now});
  shelf.by_id[id] = shelf.entries.begin();
  shelf.bytes += bytes;
  shrink(shelf, now);
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& tenant, const std::string& id,
                                                          Clock::time_point now) {
  MutexLock lock(mutex_);
  Shelf& shelf = shelves_[tenant];
  shrink(shelf, now);
  return use(shelf, id, now);
}

Result<ResponseStore::Thread> ResponseStore::thread(const std::string& tenant, const std::string& id,
                                                    Clock::time_point now) {
  MutexLock lock(mutex_);
  Shelf& shelf = shelves_[tenant];
  shrink(shelf, now);
  Thread out;
  // A response only goes on from one that was there before it, so there is no ring.
  for (std::string at = id; !at.empty(); at = out.back()->previous) {
    auto found = use(shelf, at, now);
    if (!found)
      return error(Code::kNotFound,
                   "previous_response_id: there is no response '{}', or no longer: send the conversation itself", at);
    out.push_back(std::move(found));
  }
  std::ranges::reverse(out);
  return out;
}

bool ResponseStore::erase(const std::string& tenant, const std::string& id) {
  MutexLock lock(mutex_);
  Shelf& shelf = shelves_[tenant];
  const auto found = shelf.by_id.find(id);
  if (found == shelf.by_id.end()) return false;
  drop(shelf, found->second);
  return true;
}

size_t ResponseStore::bytes(const std::string& tenant) const {
  MutexLock lock(mutex_);
  const auto shelf = shelves_.find(tenant);
  return shelf == shelves_.end() ? 0 : shelf->second.bytes;
}

}  // namespace kvilt::server
