// server/response_store.h: answers of /v1/responses that clients want to find again.
// Role:       a response, its request's items, and which response it goes on from; so `previous_response_id` need not
//             send a conversation again.
// Invariants: a tenant's responses are found by that tenant alone. Of each tenant at most `responses` and `bytes` are
//             kept, of all together at most `all_bytes`, none longer than `age` since it was last used, whoever calls
//             next; what was unused longest leaves first, where all have too much that of the tenant with the most.
//             Using a response uses all that it goes on from. Nothing is written to disk: a restart forgets.
// Threads:    all methods from any thread.
// Cost:       texts as they are sent; a thread is as many look-ups as it has turns.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "kvilt/result.h"

namespace kvilt::server {

struct StoreLimits {
  size_t responses = 4096;
  size_t bytes = size_t{64} << 20;  // 0: nothing is kept
  size_t all_bytes = 4 * bytes;     // of all tenants together
  std::chrono::seconds age = std::chrono::hours(24);
};

struct StoredResponse {
  std::string id, previous;  // previous: empty at a thread's begin
  std::string response;      // JSON, as it was sent
  std::string input;         // JSON: the list of the request's own items
};

class ResponseStore {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ResponseStore(StoreLimits limits = {}) : limits_(limits) {}

  // Whether a response of this size can be kept at all.
  bool fits(size_t bytes) const {
    return bytes <= limits_.bytes && bytes <= limits_.all_bytes && limits_.responses > 0;
  }
  void add(const std::string& tenant, StoredResponse response, Clock::time_point now = Clock::now());

  // Null: this tenant has no such response, or no longer.
  std::shared_ptr<const StoredResponse> find(const std::string& tenant, const std::string& id,
                                             Clock::time_point now = Clock::now());
  // The response and all that it goes on from, oldest first. kNotFound where one of them is gone: names it.
  // Nothing is copied.
  using Thread = std::vector<std::shared_ptr<const StoredResponse>>;
  Result<Thread> thread(const std::string& tenant, const std::string& id, Clock::time_point now = Clock::now());
  bool erase(const std::string& tenant, const std::string& id);

  size_t bytes(const std::string& tenant) const;

 private:
  struct Entry {
    std::shared_ptr<const StoredResponse> response;
    size_t bytes = 0;
    Clock::time_point used;
  };
  using Entries = std::list<Entry>;
  struct Shelf {      // of one tenant
    Entries entries;  // the one that was used last is first
    std::unordered_map<std::string, Entries::iterator> by_id;
    size_t bytes = 0;
  };
  void drop(Shelf& shelf, Entries::iterator entry) KVILT_REQUIRES(mutex_);
  void shrink(Shelf& shelf) KVILT_REQUIRES(mutex_);
  void shrink_all(const Shelf& newest) KVILT_REQUIRES(mutex_);
  void drop_expired(Clock::time_point now) KVILT_REQUIRES(mutex_);
  std::shared_ptr<const StoredResponse> use(Shelf& shelf, const std::string& id, Clock::time_point now)
      KVILT_REQUIRES(mutex_);

  const StoreLimits limits_;
  mutable Mutex mutex_;
  std::map<std::string, Shelf> shelves_ KVILT_GUARDED_BY(mutex_);  // by tenant
  size_t bytes_ KVILT_GUARDED_BY(mutex_) = 0;                      // on all of them
};

}  // namespace kvilt::server
