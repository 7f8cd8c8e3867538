// apps/bench/scale_fleet.cc: see scale_fleet.h.
#include "apps/bench/scale_fleet.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

#include "apps/bench/scale_store.h"
#include "base/check.h"
#include "base/step_table.h"
#include "tier/tier.h"

namespace kvilt {
namespace {

// docs/formats/redis.md: a digest, an encoded piece (tier/piece_record.cc), and what the protocol and the stream add.
double record_bytes(int64_t tokens) {
  constexpr double kFixed = 16 + 80 + 16, kLine = 100;
  const double chunks = static_cast<double>((tokens + StoredPiece::kChunkTokens - 1) / StoredPiece::kChunkTokens);
  return kFixed + kLine + 4 * static_cast<double>(tokens) + 8 * chunks;
}

// On how many servers a block is.
class Holders {
 public:
  void change(const SimulatedPool::Changes& changes) {
    for (const uint64_t block : changes.stored) add(block);
    for (const uint64_t block : changes.removed) take(block);
    pairs_ += std::ssize(changes.stored) - std::ssize(changes.removed);
  }
  int64_t of(uint64_t block) const {
    const Count* const count = counts_.find(StepTable<Count>::mixed(block));
    return count ? count->servers : 0;
  }
  int64_t pairs() const { return pairs_; }

 private:
  struct Count {
    int64_t servers = 0;
    bool empty() const { return servers == 0; }
  };
  void add(uint64_t block) {
    if (Count* const count = counts_.find(StepTable<Count>::mixed(block))) {
      ++count->servers;
      return;
    }
    counts_.reserve_one();
    counts_.insert(StepTable<Count>::mixed(block), {1});
  }
  void take(uint64_t block) {
    Count* const count = counts_.find(StepTable<Count>::mixed(block));
    CHECK(count);
    if (count->servers > 1) {
      --count->servers;
    } else {
      counts_.erase(StepTable<Count>::mixed(block));
    }
  }
  StepTable<Count> counts_;
  int64_t pairs_ = 0;
};

class Fleet {
 public:
  explicit Fleet(const FleetOptions& options)
      : o_(options),
        block_s_(o_.prefill > 0 ? o_.block_tokens / o_.prefill : 0),
        block_bytes_(o_.token_bytes * o_.block_tokens),
        store_(o_.redis_bytes > 0 ? std::max<int64_t>(1, static_cast<int64_t>(o_.redis_bytes / block_bytes_)) : 0),
        ring_(o_.servers, o_.seed),
        free_at_(o_.servers, 0),
        written_at_(o_.servers, 0),
        waiting_(o_.servers, 0),
        known_(o_.servers, 0) {
    const int64_t blocks = std::max<int64_t>(1, o_.pool_tokens / o_.block_tokens);
    for (int s = 0; s < o_.servers; ++s) pools_.push_back(o_.engine ? engine_pool(blocks) : extents_pool(blocks));
    out_.busy.assign(o_.servers, 0);
  }

  void serve(const Traffic::Arrival& arrival) {
    if (out_.requests++ == 0) first_ = arrival.at;
    out_.seconds = std::max(1.0, arrival.at - first_);
    const uint16_t server = choose(arrival);
    const double start = std::max(arrival.at, free_at_[server]);
    waited_.push_back(static_cast<float>(start - arrival.at));
    size_t computed_from = 0;
    const double finish = start + prefill(server, start, arrival.blocks, computed_from);
    free_at_[server] = finish;
    changes_ = {};
    pools_[server]->serve(arrival.blocks, changes_);
    holders_.change(changes_);
    tell(server, start, finish);
    if (o_.redis) write(server, finish, arrival.blocks, computed_from);
  }

  FleetOutcome finish() {
    const auto at = [&](double share) {
      if (waited_.empty()) return 0.0;
      const auto nth = waited_.begin() + static_cast<int64_t>(share * static_cast<double>(waited_.size() - 1));
      std::ranges::nth_element(waited_, nth);
      return static_cast<double>(*nth);
    };
    out_.waited_median_s = at(.5);
    out_.waited_p99_s = at(.99);
    out_.held_blocks = store_.held();
    out_.held_pieces = store_.pieces();
    out_.put_blocks = store_.put();
    out_.dropped_blocks = store_.dropped();
    return std::move(out_);
  }

 private:
  uint16_t choose(const Traffic::Arrival& arrival) {
    const size_t turn = turn_++;
    if (o_.rule == RouteRule::kRoundRobin) return static_cast<uint16_t>(turn % free_at_.size());
    if (o_.rule == RouteRule::kHash)
      return ring_.server(
          Blocks(arrival.blocks).first(std::min(arrival.blocks.size(), static_cast<size_t>(o_.hash_blocks))));
    for (size_t s = 0; s < free_at_.size(); ++s) waiting_[s] = std::max(0.0, free_at_[s] - arrival.at);
    if (o_.rule == RouteRule::kLeastLoaded) return least_loaded(waiting_, turn);
    told_.hear(arrival.at);
    told_.known(arrival.blocks, known_);
    return soonest(waiting_, known_, arrival.blocks.size(), block_s_ > 0 ? block_s_ : 1, turn);
  }

  // Counts where the prompt's blocks come from; returns how long that takes. read: the end of what need not be computed.
  double prefill(uint16_t server, double start, Blocks prompt, size_t& read) {
    const size_t local = pools_[server]->known(prompt);
    read = local;
    const double read_s = o_.io > 0 ? block_bytes_ / o_.io : 0;
    if (o_.redis && (read_s == 0 || read_s < block_s_)) {
      for (; read < prompt.size() && store_.state(prompt[read], server, start) == SharedStore::State::kAnnounced;
           ++read)
        store_.read(prompt[read]);
    }
    const size_t from_store = read - local, computed = prompt.size() - read;
    for (size_t i = read; i < prompt.size(); ++i) {
      if (holders_.of(prompt[i]) > 0) ++out_.elsewhere;
      if (o_.redis && store_.state(prompt[i], server, start) == SharedStore::State::kPending) ++out_.twins;
    }
    out_.blocks += std::ssize(prompt);
    out_.local += static_cast<int64_t>(local);
    out_.read += static_cast<int64_t>(from_store);
    out_.computed += static_cast<int64_t>(computed);
    if (from_store > 0) out_.out.add(start, static_cast<double>(from_store) * block_bytes_);
    const double took = static_cast<double>(from_store) * read_s + static_cast<double>(computed) * block_s_;
    out_.busy[server] += took;
    return took;
  }

  void tell(uint16_t server, double start, double finish) {
    out_.stored.add(finish, static_cast<double>(changes_.stored.size()));
    out_.removed.add(start, static_cast<double>(changes_.removed.size()));
    out_.told.add(finish, static_cast<double>(changes_.stored.size()));
    out_.told.add(start, static_cast<double>(changes_.removed.size()));
    out_.told_most = std::max(out_.told_most, holders_.pairs());
    if (o_.rule != RouteRule::kPrefix) return;
    told_.tell(start + o_.event_delay, server, {}, std::move(changes_.removed));
    told_.tell(finish + o_.event_delay, server, std::move(changes_.stored), {});
  }

  // What of the prompt the store has not, as one piece, when those before it are written: what it dropped too, and what
  // was computed here while another's copy was on its way.
  void write(uint16_t server, double finish, Blocks prompt, size_t computed_from) {
    std::vector<uint64_t> missing;
    for (size_t i = 0; i < prompt.size(); ++i) {
      const SharedStore::State state = store_.state(prompt[i], server, finish);
      const bool twin = state == SharedStore::State::kPending && i >= computed_from;
      if (state == SharedStore::State::kMissing || twin) missing.push_back(prompt[i]);
    }
    pieces_over_time(finish);
    if (missing.empty()) return;
    const double block_s = o_.io > 0 ? block_bytes_ / o_.io : 0;
    double at = std::max(finish, written_at_[server]);
    if ((at - finish) * o_.io > o_.token_bytes * static_cast<double>(o_.pool_tokens)) {
      out_.lost += std::ssize(missing);
      return;
    }
    for (size_t i = 0; i < missing.size(); ++i) out_.in.add(at += block_s, block_bytes_);
    written_at_[server] = at;
    const uint64_t piece = store_.new_piece();
    for (const uint64_t block : missing) store_.put(block, {server, piece, at + o_.redis_delay});
    out_.written.add(at, 1);
    out_.records += record_bytes(std::ssize(missing) * o_.block_tokens);
  }

  void pieces_over_time(double now) {
    if (now > counted_to_) out_.piece_seconds += static_cast<double>(store_.pieces()) * (now - counted_to_);
    counted_to_ = std::max(counted_to_, now);
  }

  const FleetOptions o_;
  const double block_s_, block_bytes_;
  SharedStore store_;
  HashRing ring_;
  ToldIndex told_;
  Holders holders_;
  std::vector<std::unique_ptr<SimulatedPool>> pools_;
  std::vector<double> free_at_, written_at_, waiting_;
  std::vector<size_t> known_;
  std::vector<float> waited_;
  SimulatedPool::Changes changes_;
  double first_ = 0, counted_to_ = 0;
  size_t turn_ = 0;
  FleetOutcome out_;
};

}  // namespace

double Flow::busiest() const {
  double most = 0;
  for (const auto& [second, amount] : by_second_) most = std::max(most, amount);
  return most;
}

double FleetOutcome::busy_share() const {
  return std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(busy.size()) / seconds;
}

double FleetOutcome::worst_over_mean() const {
  const double mean = busy_share() * seconds;
  return mean > 0 ? *std::ranges::max_element(busy) / mean : 1;
}

Traffic::Traffic(const Trace& trace, const FleetTraffic& options) : options_(options) {
  CHECK(trace.seconds.size() == trace.requests.size() && options.copies > 0 && options.slow > 0);
  std::unordered_map<uint64_t, size_t> uses;
  for (const auto& request : trace.requests) {
    for (const uint64_t block : request) ++uses[block];
  }
  const double least = std::max(2.0, options.common * static_cast<double>(trace.requests.size()));
  std::unordered_map<uint64_t, uint64_t> numbers;
  for (const bool common : {true, false}) {
    for (const auto& request : trace.requests) {
      for (const uint64_t block : request) {
        if ((static_cast<double>(uses.at(block)) >= least) == common) numbers.emplace(block, numbers.size());
      }
    }
    if (common) common_ = numbers.size();
  }
  blocks_ = numbers.size();
  for (size_t r = 0; r < trace.requests.size(); ++r) {
    if (options.until_s > 0 && trace.seconds[r] >= options.until_s) break;
    std::vector<uint64_t> request;
    for (const uint64_t block : trace.requests[r]) request.push_back(numbers.at(block));
    take(request, trace.seconds[r]);
  }
  std::mt19937_64 random(options.seed);
  for (int copy = 0; copy < options.copies; ++copy) {
    const double at = static_cast<double>(random() >> 11) * 0x1p-53 * options.shift_s;
    shifts_.push_back(copy == 0 ? 0 : at);
    if (!requests_.empty()) next_.push({time(copy, 0), copy, 0});
  }
}

// If its conversation is among those that are wanted.
void Traffic::take(const std::vector<uint64_t>& request, double at) {
  const auto own = std::ranges::find_if(request, [&](uint64_t block) { return block >= common_; });
  const uint64_t hash = StepTable<uint64_t>::mixed(own != request.end() ? *own + 1 : 0);
  if (static_cast<double>(hash >> 11) * 0x1p-53 >= options_.share) return;
  requests_.push_back(request);
  seconds_.push_back(at);
}

double Traffic::time(int copy, size_t request) const {
  return (seconds_[request] + shifts_[static_cast<size_t>(copy)]) * options_.slow;
}

bool Traffic::next(Arrival& out) {
  if (next_.empty()) return false;
  const Place place = next_.top();
  next_.pop();
  const size_t following = place.request + 1;
  if (following < requests_.size()) next_.push({time(place.copy, following), place.copy, following});
  out.at = place.at;
  out.blocks = requests_[place.request];
  for (uint64_t& block : out.blocks) {
    if (block >= common_) block += static_cast<uint64_t>(place.copy) * blocks_;
  }
  return true;
}

FleetOutcome simulate_fleet(Traffic traffic, const FleetOptions& options) {
  CHECK(options.servers > 0 && options.servers <= kMostServers && options.block_tokens > 0);
  Fleet fleet(options);
  for (Traffic::Arrival arrival; traffic.next(arrival);) fleet.serve(arrival);
  return fleet.finish();
}

}  // namespace kvilt
