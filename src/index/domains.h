// index/domains.h: small ids for (model fingerprint, namespace, salt, tenant), and the digest in every key of a domain.
// Idea:    the salt comes with each request, so anyone can name new domains without end. A domain that holds segments
//          stays; of the others the kMaxIdle last named stay. A forgotten domain gets a new id when it is named again.
//          Ids are never reused, so a late insert under an old id is kept out of the index, and does not end up with
//          another tenant.
// Threads: one owner.
// Cost:    one keyed hash per naming; some 200 bytes per domain. Trees, so that no naming pays for a table that grows: of
//          a million domains a hash map would move all within one step of the engine.
#pragma once

#include <list>
#include <map>
#include <string_view>

#include "base/keyed_hash.h"
#include "index/cached_segment.h"

namespace kvilt {

class Domains {
 public:
  static constexpr size_t kMaxIdle = 4 * 4096;  // a request names up to four

  explicit Domains(const HashSecret& secret) : secret_(secret) {}

  // Names the four; never 0.
  DomainId id(std::string_view fingerprint, std::string_view name_space, std::string_view salt,
              std::string_view tenant = {});
  // Names the domain with this digest: the same under the same secret, in another process too.
  DomainId id(const Digest& digest);
  // Null when the domain was forgotten or never named. Valid until the next non-const call.
  const Digest* digest(DomainId id) const;
  bool open(DomainId id) const;  // named without namespace, salt and tenant. REQUIRES: the domain is known

  void hold(DomainId id);     // one more segment is in it. REQUIRES: the domain is known
  void release(DomainId id);  // one segment fewer. REQUIRES: as many were held

  size_t size() const { return records_.size(); }
  size_t bytes() const;

 private:
  struct Record {
    Digest digest{};
    bool open = false;
    size_t segments = 0;
    std::list<DomainId>::iterator place;  // in idle_ while segments == 0, else in held_
  };

  void forget_oldest();

  HashSecret secret_;
  std::map<Digest, DomainId> ids_;
  std::map<DomainId, Record> records_;
  std::list<DomainId> idle_;  // least recently named first
  std::list<DomainId> held_;
  DomainId last_ = 0;
};

}  // namespace kvilt
