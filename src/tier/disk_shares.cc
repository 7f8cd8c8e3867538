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
  line.once.merge(used);
  piece.used = clock_;
  piece.again = false;
  line.held += piece.bytes;
  bytes_ += piece.bytes;
}

void DiskShares::leave(const Held& piece) {
  Line& line = lines_[line_of(piece.owner)];
  line.list_of(piece).erase(piece.used);
  line.held -= piece.bytes;
  if (piece.again) line.held_again -= piece.bytes;
  bytes_ -= piece.bytes;
  count(piece.owner, -piece.bytes);
  if (!piece.owner) unowned_.erase({piece.domain, piece.id});
}

// Becomes the last one of a list.
void DiskShares::move(Held& piece, bool again) {
  Line& line = lines_[line_of(piece.owner)];
  auto node = line.list_of(piece).extract(piece.used);
  node.key() = piece.used = ++clock_;
  line.held_again += again == piece.again ? 0 : again ? piece.bytes : -piece.bytes;
  piece.again = again;
  ByUse& to = line.list_of(piece);
  to.insert(to.end(), std::move(node));
}

void DiskShares::use(Held& piece) {
  move(piece, true);
  keep_protected(lines_[line_of(piece.owner)]);
}

void DiskShares::refresh(Held& piece) { move(piece, piece.again); }

void DiskShares::keep_protected(Line& line) {
  const bool shared = &line == lines_.data();  // it may hold what the others do not
  const double room =
      shared ? static_cast<double>(limit_ - (bytes_ - line.held)) : line.part * static_cast<double>(limit_);
  const double most = kProtected * room;
  while (static_cast<double>(line.held_again) > most) move(*line.again.begin()->second, false);
}

// What must stay is `last` of a put, or what that continues.
const DiskShares::Held* DiskShares::Line::next(Stays stays) const {
  for (const ByUse* list : {&once, &again}) {
    if (!list->empty() && !stays(list->begin()->second->id)) return list->begin()->second;
  }
  return nullptr;
}

void DiskShares::grow(Held& piece, int64_t by) {
  count(piece.owner, by);
  Line& line = lines_[line_of(piece.owner)];
  line.held += by;
  if (piece.again) line.held_again += by;
  piece.bytes += by;
  bytes_ += by;
}

void DiskShares::claim(const Digest& domain, const Digest& owner) {
  for (auto it = unowned_.lower_bound({domain, 0}); it != unowned_.end() && it->first.first == domain;) {
    Held& piece = *it->second;
    count(owner, piece.bytes);
    Line &from = lines_[0], &to = lines_[line_of(owner)];
    to.list_of(piece).insert(from.list_of(piece).extract(piece.used));
    from.held -= piece.bytes;
    to.held += piece.bytes;
    from.held_again -= piece.again ? piece.bytes : 0;
    to.held_again += piece.again ? piece.bytes : 0;
    piece.owner = owner;
    it = unowned_.erase(it);
  }
  keep_protected(lines_[line_of(owner)]);
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
    const Held* const next = beyond > most ? line.next(stays) : nullptr;
    if (!next) continue;
    most = beyond;
    out = next;
  }
  return out;
}

// The shares make up the limit: with what is to come somebody is beyond its own.
const DiskShares::Held* DiskShares::next(const std::optional<Digest>& owner, int64_t coming, Stays stays) const {
  const size_t asking = line_of(owner);
  return is_beyond(asking, coming) ? lines_[asking].next(stays) : furthest(asking, coming, limit_, stays);
}

// The limit is smaller than it says, and so are all shares.
const DiskShares::Held* DiskShares::next_of_full(const std::optional<Digest>& owner, int64_t coming,
                                                 Stays stays) const {
  return furthest(line_of(owner), coming, bytes_, stays);
}

const DiskShares::Held* DiskShares::beyond() const {
  const auto none = [](uint64_t) { return false; };
  for (size_t i = 1; i < lines_.size(); ++i) {
    if (const Held* const next = is_beyond(i, 0) ? lines_[i].next(none) : nullptr) return next;
  }
  return bytes_ > limit_ ? furthest(lines_.size(), 0, limit_, none) : nullptr;
}

int64_t DiskShares::most_of(const std::optional<Digest>& owner) const {
  const size_t line = line_of(owner);
  return line == 0 ? limit_ : static_cast<int64_t>(lines_[line].part * static_cast<double>(limit_));
}

std::vector<uint64_t> DiskShares::by_use() const { return ids_of({&Line::once, &Line::again}); }
std::vector<uint64_t> DiskShares::used_again() const { return ids_of({&Line::again}); }

std::vector<uint64_t> DiskShares::ids_of(std::initializer_list<ByUse Line::*> lists) const {
  std::vector<std::pair<uint64_t, uint64_t>> all;
  for (const Line& line : lines_) {
    for (const auto list : lists) {
      for (const auto& [used, piece] : line.*list) all.emplace_back(used, piece->id);
    }
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
