#include "server/part_orders.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "server/chat_builder.h"

namespace kvilt::server {
namespace {

// What may stand before a list: templates put documents behind the tools, and both behind or before the messages that
// come before the user's first.
std::string beginning(const Json& body, bool with_tools) {
  std::string out = dump(body.value("chat_template_kwargs", Json()));
  const auto add = [&](const Json& json) { out += '\n' + dump(json); };
  if (with_tools) {
    for (const Json& tool : body.value("tools", Json::array())) out += '\n' + dump_unmarked(tool);
  }
  for (const Json& message : body.at("messages")) {
    if (message.at("role") == "user") break;
    add(message);
  }
  return out;
}

Result<bool> any_order(const Json& body, const char* field, bool by_default) {
  const auto order = body.find(field);
  if (order == body.end() || order->is_null()) return by_default;
  if (*order == "any") return true;
  if (*order == "given") return false;
  return error(Code::kInvalidArgument, "{}: must be \"given\" or \"any\"", field);
}

std::vector<std::string> paths_of(const char* list, const std::vector<size_t>& places) {
  std::vector<std::string> out;
  for (const size_t place : places) out.push_back(fmt::format("{}[{}]", list, place));
  return out;
}

}  // namespace

std::string PartPlaces::in_own_order(std::string path) const {
  path = in_own_paths(std::move(path), paths_of("documents", documents), "documents[");
  return in_own_paths(std::move(path), paths_of("tools", tools), "tools[");
}

// The path with the most bytes over parts of one set; of equal ones the oldest, which the next turn finds too.
struct PartOrders::Search {
  struct Part {
    size_t bytes = 0;
    std::vector<size_t> places;  // in the client's list, the first one last
  };
  const Trie& trie;
  std::map<size_t, Part>& set;
  std::vector<size_t> best = {};  // hashes
  size_t best_bytes = 0;
  uint32_t best_end = 0;
  size_t steps = 0;

  struct Level {
    uint32_t node = 0;
    size_t hash = 0;           // of the part that led here
    std::vector<size_t> next;  // hashes of parts of the set that come behind it
  };

  // Walks the shorter of the set and what comes behind the node.
  Level level(uint32_t node, size_t hash) {
    Level out{node, hash, {}};
    const auto& children = trie[node].next;
    steps += 1 + std::min(children.size(), set.size());
    if (children.size() < set.size()) {
      for (const auto& child : children) {
        if (set.contains(child.first)) out.next.push_back(child.first);
      }
    } else {
      for (const auto& part : set) {
        if (children.contains(part.first)) out.next.push_back(part.first);
      }
    }
    return out;
  }

  void run() {
    std::vector<Level> path{level(0, 0)};
    std::map<size_t, size_t> used;
    size_t bytes = 0;
    while (!path.empty() && steps < kMostSteps) {
      Level& last = path.back();
      if (last.next.empty()) {
        if (path.size() > 1) {
          --used[last.hash];
          bytes -= set.at(last.hash).bytes;
        }
        path.pop_back();
        continue;
      }
      const size_t hash = last.next.back();
      last.next.pop_back();
      const Part& part = set.at(hash);
      if (used[hash] == part.places.size()) continue;
      ++used[hash];
      bytes += part.bytes;
      const uint32_t node = trie[last.node].next.at(hash);
      path.push_back(level(node, hash));
      if (bytes > best_bytes || (bytes == best_bytes && node < best_end)) take(path, bytes);
    }
  }

  void take(const std::vector<Level>& path, size_t bytes) {
    best.clear();
    for (size_t i = 1; i < path.size(); ++i) best.push_back(path[i].hash);
    best_bytes = bytes;
    best_end = path.back().node;
  }
};

PartOrders::Trie& PartOrders::trie_of(const Key& key) {
  const auto found = by_key_.find(key);
  if (found != by_key_.end()) {
    tries_.splice(tries_.begin(), tries_, found->second);
  } else {
    tries_.push_front({key, Trie(1)});
    by_key_[key] = tries_.begin();
    ++nodes_;
  }
  return tries_.front().trie;
}

void PartOrders::make_room(size_t nodes) {
  while (nodes_ + nodes > most_nodes_ && !tries_.empty()) {
    nodes_ -= tries_.back().trie.size();
    by_key_.erase(tries_.back().key);
    tries_.pop_back();
  }
}

std::vector<size_t> PartOrders::choose(const Key& key, const Json& list) {
  std::vector<size_t> hashes(list.size());
  std::map<size_t, Search::Part> set;
  for (size_t i = list.size(); i-- > 0;) {
    const std::string text = dump_unmarked(list[i]);
    hashes[i] = std::hash<std::string>()(text);
    Search::Part& part = set[hashes[i]];
    part.places.push_back(i);
    part.bytes = text.size();
  }
  MutexLock lock(mutex_);
  make_room(hashes.size() + 1);
  Trie& trie = trie_of(key);
  Search search{trie, set};
  search.run();
  std::vector<size_t> out;
  std::vector<bool> taken(hashes.size());
  for (const size_t hash : search.best) {
    out.push_back(set[hash].places.back());
    set[hash].places.pop_back();
    taken[out.back()] = true;
  }
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (!taken[i]) out.push_back(i);
  }
  uint32_t node = 0;
  for (const size_t place : out) {
    const auto [next, is_new] = trie[node].next.try_emplace(hashes[place], static_cast<uint32_t>(trie.size()));
    node = next->second;
    if (is_new) trie.emplace_back(), ++nodes_;
  }
  return out;
}

std::vector<size_t> PartOrders::arrange_list(const Key& key, Json& list) {
  if (!list.is_array() || list.size() < 2 || list.size() > kMostParts) return {};
  const std::vector<size_t> places = choose(key, list);
  Json ordered = Json::array();
  for (const size_t place : places) ordered.push_back(std::move(list[place]));
  list = std::move(ordered);
  return places;
}

Result<PartPlaces> PartOrders::arrange(const std::string& tenant, const std::string& salt, Json& body) {
  KVILT_ASSIGN(const bool any_tools, any_order(body, "tools_order", any_tools_));
  KVILT_ASSIGN(const bool any_documents, any_order(body, "documents_order", false));
  const auto key_of = [&](std::string_view list, const std::string& before) {
    return KeyedHash(secret_, "part orders").add(tenant).add(salt).add(list).add(before).finish();
  };
  PartPlaces out;
  const auto tools = body.find("tools");
  if (any_tools && tools != body.end()) out.tools = arrange_list(key_of("tools", beginning(body, false)), *tools);
  const auto documents = body.find("documents");
  if (any_documents && documents != body.end())
    out.documents = arrange_list(key_of("documents", beginning(body, true)), *documents);
  return out;
}

}  // namespace kvilt::server
