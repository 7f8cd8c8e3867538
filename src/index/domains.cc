// index/domains.cc: see domains.h.
#include "index/domains.h"

#include <new>

#include "base/check.h"

namespace kvilt {

DomainId Domains::id(std::string_view fingerprint, std::string_view name_space, std::string_view salt,
                     std::string_view tenant) {
  const DomainId named =
      id(KeyedHash(secret_, "kvilt.domain").add(fingerprint).add(name_space).add(salt).add(tenant).finish());
  records_.at(named).open = name_space.empty() && salt.empty() && tenant.empty();
  return named;
}

DomainId Domains::id(const Digest& digest) {
  if (const auto known = ids_.find(digest); known != ids_.end()) {
    if (Record& record = records_.at(known->second); record.segments == 0)
      idle_.splice(idle_.end(), idle_, record.place);
    return known->second;
  }
  const DomainId id = ++last_;
  std::list<DomainId> node{id};  // each step may lack memory: what names the domain comes last
  records_.emplace(id, Record{digest, false, 0, node.begin()});
  try {
    ids_.emplace(digest, id);
  } catch (const std::bad_alloc&) {
    records_.erase(id);
    throw;
  }
  idle_.splice(idle_.end(), node);
  forget_oldest();
  return id;
}

const Digest* Domains::digest(DomainId id) const {
  const auto it = records_.find(id);
  return it == records_.end() ? nullptr : &it->second.digest;
}

bool Domains::open(DomainId id) const { return records_.at(id).open; }

void Domains::hold(DomainId id) {
  Record& record = records_.at(id);
  if (record.segments++ == 0) held_.splice(held_.end(), idle_, record.place);
}

void Domains::release(DomainId id) {
  Record& record = records_.at(id);
  CHECK(record.segments > 0);
  if (--record.segments > 0) return;
  idle_.splice(idle_.end(), held_, record.place);
  forget_oldest();
}

void Domains::forget_oldest() {
  if (idle_.size() <= kMaxIdle) return;
  const DomainId oldest = idle_.front();
  idle_.pop_front();
  ids_.erase(records_.at(oldest).digest);
  records_.erase(oldest);
}

size_t Domains::bytes() const {
  constexpr size_t kTreeNode = 32, kListNode = 16, kBlock = 8;  // beside the value; kBlock: the allocator's
  constexpr size_t kIds = kTreeNode + sizeof(Digest) + sizeof(DomainId) + kBlock;
  constexpr size_t kRecords = kTreeNode + sizeof(DomainId) + sizeof(Record) + kBlock;
  return records_.size() * (kIds + kRecords + kListNode + sizeof(DomainId) + kBlock);
}

}  // namespace kvilt
