// index/domains.cc: see domains.h.
#include "index/domains.h"

#include "base/check.h"

namespace kvilt {

DomainId Domains::id(std::string_view fingerprint, std::string_view name_space, std::string_view salt) {
  const Digest digest = KeyedHash(secret_, "kvilt.domain").add(fingerprint).add(name_space).add(salt).finish();
  const auto [known, fresh] = ids_.try_emplace(digest, last_ + 1);
  const DomainId id = known->second;
  if (fresh) {
    ++last_;
    Record& record = records_[id];
    record.digest = digest;
    make_idle(id, record);
  } else if (Record& record = records_.at(id); record.segments == 0) {
    idle_.splice(idle_.end(), idle_, record.idle);
  }
  return id;
}

const Digest* Domains::digest(DomainId id) const {
  const auto it = records_.find(id);
  return it == records_.end() ? nullptr : &it->second.digest;
}

void Domains::hold(DomainId id) {
  Record& record = records_.at(id);
  if (record.segments++ == 0) idle_.erase(record.idle);
}

void Domains::release(DomainId id) {
  Record& record = records_.at(id);
  CHECK(record.segments > 0);
  if (--record.segments == 0) make_idle(id, record);
}

void Domains::make_idle(DomainId id, Record& record) {
  record.idle = idle_.insert(idle_.end(), id);
  if (idle_.size() <= kMaxIdle) return;
  const DomainId oldest = idle_.front();
  idle_.pop_front();
  ids_.erase(records_.at(oldest).digest);
  records_.erase(oldest);
}

size_t Domains::bytes() const {
  // Nodes of the two maps and the list: the value, one or two pointers and the hash.
  const size_t domain = sizeof(Digest) + sizeof(DomainId) + 16 + sizeof(DomainId) + sizeof(Record) + 16;
  return records_.size() * domain + idle_.size() * 24 + (ids_.bucket_count() + records_.bucket_count()) * sizeof(void*);
}

}  // namespace kvilt
