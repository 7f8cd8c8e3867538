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
  bytes_ -= entry->bytes;
  shelf.by_id.erase(entry->response->id);
  shelf.entries.erase(entry);
}

void ResponseStore::shrink(Shelf& shelf) {
  while (shelf.entries.size() > limits_.responses || shelf.bytes > limits_.bytes)
    drop(shelf, std::prev(shelf.entries.end()));
}

// The tenant that has the most gives way, so that nobody loses everything to others; of equals the one whose last was
// unused longest. newest: its first was added right now, and stays.
void ResponseStore::shrink_all(const Shelf& newest) {
  const auto weight = [&](const auto& named) {
    const Shelf& shelf = named.second;
    const bool stays = shelf.entries.empty() || (&shelf == &newest && shelf.entries.size() == 1);
    if (stays) return std::pair(size_t{0}, Clock::duration());
    return std::pair(shelf.bytes, -shelf.entries.back().used.time_since_epoch());
  };
  while (bytes_ > limits_.all_bytes) {
    const auto most = std::ranges::max_element(shelves_, {}, weight);
    drop(most->second, std::prev(most->second.entries.end()));
  }
}

// Of all tenants: one that never comes back leaves nothing.
void ResponseStore::drop_expired(Clock::time_point now) {
  for (auto& [tenant, shelf] : shelves_) {
    while (!shelf.entries.empty() && now - shelf.entries.back().used > limits_.age)
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
  drop_expired(now);
  Shelf& shelf = shelves_[tenant];
  const std::string id = response.id;
  if (const auto old = shelf.by_id.find(id); old != shelf.by_id.end()) drop(shelf, old->second);
  shelf.entries.push_front({std::make_shared<const StoredResponse>(std::move(response)), bytes, now});
  shelf.by_id[id] = shelf.entries.begin();
  shelf.bytes += bytes;
  bytes_ += bytes;
  shrink(shelf);
  shrink_all(shelf);
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& tenant, const std::string& id,
                                                          Clock::time_point now) {
  MutexLock lock(mutex_);
  drop_expired(now);
  Shelf& shelf = shelves_[tenant];
  return use(shelf, id, now);
}

Result<ResponseStore::Thread> ResponseStore::thread(const std::string& tenant, const std::string& id,
                                                    Clock::time_point now) {
  MutexLock lock(mutex_);
  drop_expired(now);
  Shelf& shelf = shelves_[tenant];
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
