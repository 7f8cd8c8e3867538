// server/part_orders.h: the order of a chat's documents and tools, where the client says that any will do.
// Idea:       parts in the order of an earlier request, behind the same beginning, are an exact prefix of it, which
//             costs nothing and changes no answer (CacheWeaver, arXiv 2606.19667, orders what was retrieved so). Of each
//             (tenant, salt, beginning) the orders that were chosen are a trie; a new set takes the path through it that
//             has the most bytes, then the rest as the client sent it.
// Invariants: the same set behind the same beginning gets the same order again while its trie is kept, so the turns of
//             a conversation stay a prefix of each other. No tenant's and no salt's orders depend on another's.
// Threads:    any.
// Cost:       a hash of each part, kMostSteps steps at most; kMostNodes nodes of some 100 bytes.
// Not here:   what is really cached (an order is a guess: what was evicted since is computed as ever); pieces in any
//             order (index/).
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "base/mutex.h"
#include "kvilt/result.h"
#include "server/json_fields.h"

namespace kvilt::server {

// The places that the parts had in the client's lists; empty where the order is the client's.
struct PartPlaces {
  std::vector<size_t> documents, tools;

  // "documents[I]..." and "tools[I]..." of the new order, as the client counts.
  std::string in_own_order(std::string path) const;
};

class PartOrders {
 public:
  static constexpr size_t kMostNodes = size_t{1} << 16;  // of all tries; the one that was used least lately goes first
  static constexpr size_t kMostParts = 4096;             // of one list; longer ones stay as they are
  static constexpr size_t kMostSteps = size_t{1} << 16;  // looks for a next part, of one request

  // any_tools: tools come in any order unless the client says otherwise.
  explicit PartOrders(bool any_tools = false, size_t most_nodes = kMostNodes)
      : any_tools_(any_tools), most_nodes_(most_nodes) {}

  // Puts a chat body's `documents` and `tools` in order, where `documents_order` and `tools_order` are "any", and
  // remembers it. REQUIRES: parse_chat() took the body. Errors: kInvalidArgument for other orders than "any" and
  // "given".
  Result<PartPlaces> arrange(const std::string& tenant, const std::string& salt, Json& body);

 private:
  struct Node {
    std::map<size_t, uint32_t> next;  // by a part's hash
  };
  using Trie = std::vector<Node>;  // [0]: the root
  using Key = Digest;              // of tenant, salt, the list's name, and what stands before it
  struct Kept {
    Key key;
    Trie trie;
  };
  struct Search;

  std::vector<size_t> arrange_list(const Key& key, Json& list);
  std::vector<size_t> choose(const Key& key, const Json& list);
  Trie& trie_of(const Key& key) KVILT_REQUIRES(mutex_);
  void make_room(size_t nodes) KVILT_REQUIRES(mutex_);

  const bool any_tools_;
  const size_t most_nodes_;
  const HashSecret secret_ = HashSecret::random();
  Mutex mutex_;
  std::list<Kept> tries_ KVILT_GUARDED_BY(mutex_);  // used last first
  std::map<Key, std::list<Kept>::iterator> by_key_ KVILT_GUARDED_BY(mutex_);
  size_t nodes_ KVILT_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvilt::server
