#include "tier/disk_shares.h"

#include <algorithm>

#include "base/check.h"

namespace kvilt {

void DiskShares::set(const std::map<Digest, double>& shares) {
  CHECK(bytes_ == 0);
  double sum = 0;
  for (const auto& [owner, share] : shares) sum += share;
  const double whole = std::max(1.0, sum);  // they may come as floats
  lines_.assign(1, {});
  line_of_.clear();
  for (const auto& [owner, share] : shares) {
    line_of_.emplace(owner, lines_.size());
    lines_.push_back({.part = share / whole});
  }
  lines_[0].part = 1 - sum / whole;
}

size_t DiskShares::line_of(const std::optional<Digest>& owner) const {
  const auto own = owner ? line_of_.find(*owner) : line_of_.end();
  return own == line_of_.end() ? 0 : own->second;
}

// Each step may lack memory: what enters comes last.
void DiskShares::enter(Held& piece) {
  Line& line = lines_[line_of(piece.owner)];
  std::map<uint64_t, Held*> used{{++clock_, &piece}};
  std::map<std::pair<Digest, uint64_t>, Held*> unowned;
  if (!piece.owner) unowned.emplace(std::pair(piece.domain, piece.id), &piece);
  count(piece.owner, piece.bytes);
  unowned_.merge(unowned);
  line.pieces.merge(used);
  piece.used = clock_;
  line.held += piece.bytes;
  bytes_ += piece.bytes;
}

void DiskShares::leave(const Held& piece) {
  Line& line = lines_[line_of(piece.owner)];
  line.pieces.erase(piece.used);
  line.held -= piece.bytes;
  bytes_ -= piece.bytes;
  count(piece.owner, -piece.bytes);
  if (!piece.owner) unowned_.erase({piece.domain, piece.id});
}

void DiskShares::use(Held& piece) {
  Line& line = lines_[line_of(piece.owner)];
  auto node = line.pieces.extract(piece.used);
  node.key() = piece.used = ++clock_;
  line.pieces.insert(line.pieces.end(), std::move(node));
}

void DiskShares::grow(Held& piece, int64_t by) {
  count(piece.owner, by);
  lines_[line_of(piece.owner)].held += by;
  piece.bytes += by;
  bytes_ += by;
}

void DiskShares::claim(const Digest& domain, const Digest& owner) {
  for (auto it = unowned_.lower_bound({domain, 0}); it != unowned_.end() && it->first.first == domain;) {
    Held& piece = *it->second;
    count(owner, piece.bytes);
    Line &from = lines_[0], &to = lines_[line_of(owner)];
    to.pieces.insert(from.pieces.extract(piece.used));
    from.held -= piece.bytes;
    to.held += piece.bytes;
    piece.owner = owner;
    it = unowned_.erase(it);
  }
}

void DiskShares::count(const std::optional<Digest>& owner, int64_t bytes) {
  if (!owner) return;
  const MutexLock lock(mutex_);
  const auto held = held_by_.try_emplace(*owner).first;
  held->second += bytes;
  if (held->second == 0) held_by_.erase(held);
}

// The first line's share is no limit: what is free is everybody's who has none.
bool DiskShares::is_beyond(size_t line, int64_t coming) const {
  const double held = static_cast<double>(lines_[line].held + coming);
  return line > 0 && held > lines_[line].part * static_cast<double>(limit_);
}

bool DiskShares::has_room(const std::optional<Digest>& owner, int64_t coming) const {
  return !is_beyond(line_of(owner), coming) && coming <= limit_ - bytes_;
}

const DiskShares::Held* DiskShares::furthest(size_t asking, int64_t coming, int64_t limit, Stays stays) const {
  const Held* out = nullptr;
  double most = 0;
  for (size_t i = 0; i < lines_.size(); ++i) {
    const Line& line = lines_[i];
    const double held = static_cast<double>(line.held + (i == asking ? coming : 0));
    const double beyond = held - line.part * static_cast<double>(limit);
    if (beyond <= most || line.pieces.empty() || stays(line.pieces.begin()->second->id)) continue;
    most = beyond;
    out = line.pieces.begin()->second;
  }
  return out;
}

// The shares make up the limit: with what is to come somebody is beyond its own.
const DiskShares::Held* DiskShares::next(const std::optional<Digest>& owner, int64_t coming, Stays stays) const {
  const size_t asking = line_of(owner);
  if (!is_beyond(asking, coming)) return furthest(asking, coming, limit_, stays);
  const auto& own = lines_[asking].pieces;
  return own.empty() || stays(own.begin()->second->id) ? nullptr : own.begin()->second;
}

// The limit is smaller than it says, and so are all shares.
const DiskShares::Held* DiskShares::next_of_full(const std::optional<Digest>& owner, int64_t coming,
                                                 Stays stays) const {
  return furthest(line_of(owner), coming, bytes_, stays);
}

const DiskShares::Held* DiskShares::beyond() const {
  for (size_t i = 1; i < lines_.size(); ++i) {
    if (is_beyond(i, 0) && !lines_[i].pieces.empty()) return lines_[i].pieces.begin()->second;
  }
  return bytes_ > limit_ ? furthest(lines_.size(), 0, limit_, [](uint64_t) { return false; }) : nullptr;
}

int64_t DiskShares::most_of(const std::optional<Digest>& owner) const {
  const size_t line = line_of(owner);
  return line == 0 ? limit_ : static_cast<int64_t>(lines_[line].part * static_cast<double>(limit_));
}

std::vector<uint64_t> DiskShares::by_use() const {
  std::vector<std::pair<uint64_t, uint64_t>> all;
  for (const Line& line : lines_) {
    for (const auto& [used, piece] : line.pieces) all.emplace_back(used, piece->id);
  }
  std::ranges::sort(all);
  std::vector<uint64_t> out;
  for (const auto& [used, id] : all) out.push_back(id);
  return out;
}

int64_t DiskShares::held_by(const Digest& owner) const {
  const MutexLock lock(mutex_);
  const auto held = held_by_.find(owner);
  return held == held_by_.end() ? 0 : held->second;
}

int64_t DiskShares::share_of(const Digest& owner) const { return line_of_.contains(owner) ? most_of(owner) : 0; }

}  // namespace kvilt
