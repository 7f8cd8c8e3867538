#include "server/tenants.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/reserved_tenants.h"

namespace kvilt::server {
namespace {

std::string text_of(const ApiKey& key) { return {key.blake2b.begin(), key.blake2b.end()}; }

// The key of "Bearer KEY"; empty: there is none.
std::string_view bearer(std::string_view authorization) {
  constexpr std::string_view kBearer = "bearer ";
  if (authorization.size() <= kBearer.size()) return {};
  for (size_t i = 0; i < kBearer.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(authorization[i])) != kBearer[i]) return {};
  }
  authorization.remove_prefix(std::min(authorization.find_first_not_of(' ', kBearer.size()), authorization.size()));
  return authorization;
}

}  // namespace

Tenant::Tenant(std::string name, int max_requests, int requests_per_minute)
    : name_(std::move(name)),
      max_requests_(max_requests),
      requests_per_minute_(requests_per_minute),
      left_(requests_per_minute) {}

Result<Tenant::Place> Tenant::enter(const std::shared_ptr<Tenant>& tenant) {
  KVILT_ASSIGN(std::vector<Place> places, enter(tenant, 1));
  return std::move(places[0]);
}

Result<std::vector<Tenant::Place>> Tenant::enter(const std::shared_ptr<Tenant>& tenant, int count) {
  Tenant& t = *tenant;
  const int most = t.max_requests_ == 0 ? std::numeric_limits<int>::max() : t.max_requests_;
  std::vector<Place> places;
  places.reserve(static_cast<size_t>(count));
  int now = t.running_;
  while (count <= most - now) {
    if (!t.running_.compare_exchange_weak(now, now + count)) continue;
    for (int i = 0; i < count; ++i) places.push_back(Place(tenant));
    return places;
  }
  if (count > most) {
    return error(Code::kInvalidArgument,
                 "{} answers are asked for at once; this key's tenant may have {} being made or waiting: ask for fewer",
                 count, most);
  }
  if (count > 1) {
    return error(Code::kOverLimit,
                 "this key's tenant has {} answers being made or waiting, and {} more make more than the {} that it "
                 "may: try again when some have ended",
                 now, count, most);
  }
  return error(Code::kOverLimit,
               "this key's tenant has {} answers being made or waiting, the most it may: try again "
               "when one has ended",
               t.max_requests_);
}

Status Tenant::arrive(Clock::time_point now) {
  ++requests_;
  if (requests_per_minute_ == 0) return {};
  MutexLock lock(mutex_);
  const double minutes = std::chrono::duration<double, std::ratio<60>>(now - filled_).count();
  left_ = std::min<double>(requests_per_minute_, left_ + minutes * requests_per_minute_);
  filled_ = now;
  if (left_ >= 1) {
    left_ -= 1;
    return {};
  }
  return error(Code::kOverLimit, "this key's tenant may send {} requests a minute: try again soon",
               requests_per_minute_);
}

Tenant::Counts Tenant::counts() const { return {running_, requests_, refused_, prompt_, cached_, generated_}; }

void Tenant::count(const Completion& completion) {
  if (completion.finish == Finish::kError) return;
  prompt_ += static_cast<uint64_t>(completion.usage.prompt);
  cached_ += static_cast<uint64_t>(completion.usage.prefix + completion.usage.reused);
  generated_ += static_cast<uint64_t>(completion.completion_tokens);
}

Tenants::Tenants(const ServerOptions& options) : several_(!options.tenants.empty()) {
  for (const TenantOptions& wanted : options.tenants) {
    all_.push_back(std::make_shared<Tenant>(wanted.name, wanted.max_requests, wanted.requests_per_minute));
    for (const ApiKey& key : wanted.keys) by_key_[text_of(key)] = {all_.back(), key.admin};
  }
  if (several_) return;
  all_.push_back(std::make_shared<Tenant>("", 0, 0));
  if (options.api_key.empty()) {
    anyone_ = {all_.back(), true};
  } else {
    by_key_[text_of(ApiKey::of(options.api_key, true))] = {all_.back(), true};
  }
}

const Caller* Tenants::caller(std::string_view authorization) const {
  if (anyone_.tenant) return &anyone_;
  const std::string_view key = bearer(authorization);
  if (key.empty()) return nullptr;
  // What the look-up's time tells is about a hash, from which no key can be found.
  const auto known = by_key_.find(text_of(ApiKey::of(key, false)));
  return known == by_key_.end() ? nullptr : &known->second;
}

Status check_tenants(const ServerOptions& options) {
  constexpr auto kWrong = Code::kInvalidArgument;
  if (options.tenants.empty()) return {};
  if (!options.api_key.empty())
    return error(kWrong, "--api-key (KVILT_API_KEY) and --tenants exclude each other: the file names all keys");
  if (options.open_metrics)
    return error(kWrong,
                 "--open-metrics and --tenants exclude each other: the numbers tell of all tenants; give who "
                 "reads them an admin's key");
  std::set<std::string> names, keys;
  const auto check_share = [&](const char* name, const char* of, float TenantOptions::*member) -> Status {
    double all = 0;
    for (const TenantOptions& tenant : options.tenants) all += tenant.*member;
    if (all <= 1 + 1e-6) return {};
    return error(kWrong, "{}: the tenants' shares make {:.3g} together; they share one {}", name, all, of);
  };
  KVILT_TRY(check_share("pool_share", "pool", &TenantOptions::pool_share));
  KVILT_TRY(check_share("disk_share", "folder", &TenantOptions::disk_share));
  for (const TenantOptions& tenant : options.tenants) {
    if (is_reserved_tenant(tenant.name))
      return error(kWrong, "a tenant is named '{}', which the server uses for itself", tenant.name);
    if (!names.insert(tenant.name).second) return error(kWrong, "two tenants are named '{}'", tenant.name);
    if (tenant.keys.empty()) return error(kWrong, "tenant '{}' has no key", tenant.name);
    for (const ApiKey& key : tenant.keys) {
      if (!keys.insert(text_of(key)).second) return error(kWrong, "a key of tenant '{}' is given twice", tenant.name);
    }
  }
  return {};
}

}  // namespace kvilt::server
