// server/tenants_file.cc: the file of tenants and their API keys (docs/formats/tenants.md), for kvilt serve --tenants.
// Not here: what keys are good for (tenants.h).
#include <fmt/format.h>
#include <sodium.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/reserved_tenants.h"
#include "server/json_fields.h"
#include "server/server.h"

namespace kvilt {
namespace {

using server::ApiResult;
using server::Fields;
using server::Json;

constexpr size_t kMaxTenantsFile = size_t{16} << 20;
constexpr size_t kMaxTenantName = 128, kMaxKeyBytes = 1024;
constexpr size_t kShortestKey = 16;  // bytes; shorter ones can be guessed
constexpr int kMaxLimit = 1 << 30;

bool is_tenant_name(const std::string& name) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; };
  return !name.empty() && std::ranges::all_of(name, fits);
}

void refuse_others(const Json& object, std::initializer_list<std::string_view> known, Fields& fields) {
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::find(known, name) == known.end())
      fields.fail(name, fmt::format("is not known; there are {}", fmt::join(known, ", ")));
  }
}

// {"key": TEXT} or {"blake2b": HEX}, with a role or without.
ApiResult<ApiKey> read_key(const Json& json, const std::string& path) {
  if (!json.is_object()) return server::ApiError{400, path + ": must be an object with key or blake2b", "", ""};
  Fields fields(json, path + ".");
  std::string key, hash, role = "user";
  fields.string("key", &key, kMaxKeyBytes);
  fields.string("blake2b", &hash, kMaxKeyBytes);
  fields.string("role", &role, kMaxKeyBytes);
  refuse_others(json, {"key", "blake2b", "role"}, fields);
  if (key.empty() == hash.empty()) fields.fail("key", "either it or blake2b must be given");
  if (hash.empty() && key.size() < kShortestKey)
    fields.fail("key", fmt::format("has {} bytes; at least {} are needed", key.size(), kShortestKey));
  if (key.find_first_of(" \t\r\n") != std::string::npos) fields.fail("key", "must not hold spaces or line ends");
  if (role != "user" && role != "admin") fields.fail("role", "must be user or admin");
  ApiKey out = ApiKey::of(key, role == "admin");
  if (!hash.empty()) {
    size_t bytes = 0;
    const int bad =
        sodium_hex2bin(out.blake2b.data(), out.blake2b.size(), hash.data(), hash.size(), nullptr, &bytes, nullptr);
    if (bad != 0 || bytes != out.blake2b.size() || hash.size() != 2 * bytes)
      fields.fail("blake2b", "must be 64 hexadecimal digits, as of b2sum -l 256");
  }
  if (fields.error()) return *fields.error();
  return out;
}

ApiResult<TenantOptions> read_tenant(const Json& json, const std::string& path) {
  if (!json.is_object()) return server::ApiError{400, path + ": must be an object", "", ""};
  Fields fields(json, path + ".");
  TenantOptions out;
  fields.string("name", &out.name, kMaxTenantName);
  fields.integer("max_requests", 0, kMaxLimit, &out.max_requests);
  fields.integer("requests_per_minute", 0, kMaxLimit, &out.requests_per_minute);
  fields.number("pool_share", 0, 1, &out.pool_share);
  fields.number("disk_share", 0, 1, &out.disk_share);
  refuse_others(json, {"name", "keys", "max_requests", "requests_per_minute", "pool_share", "disk_share"}, fields);
  if (is_reserved_tenant(out.name)) {
    fields.fail("name", fmt::format("is {}, which the server uses for itself: choose another", out.name));
  } else if (!is_tenant_name(out.name))
    fields.fail("name", "must be letters, digits, '-', '_' and '.', at least one");
  const Json* keys = fields.find("keys");
  if (!keys || !keys->is_array() || keys->empty()) fields.fail("keys", "must be a list of at least one");
  if (fields.error()) return *fields.error();
  for (size_t i = 0; i < keys->size(); ++i) {
    auto key = read_key((*keys)[i], fmt::format("{}.keys[{}]", path, i));
    if (!key.ok()) return key.error();
    out.keys.push_back(key.value());
  }
  return out;
}

// A warning, since containers mount secrets for all to read. The masks: a group may read, as of the cache's key file.
void warn_if_open(const std::string& path, const Json& tenants) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return;
  const auto is_plain = [](const Json& key) { return key.contains("key"); };
  const bool plain =
      std::ranges::any_of(tenants, [&](const Json& tenant) { return std::ranges::any_of(tenant["keys"], is_plain); });
  constexpr mode_t kMayWrite = 022, kMayRead = 004;
  if ((about.st_mode & kMayWrite) != 0) {
    spdlog::warn("{}: others may write it, and so let anybody in: chmod 600 it", path);
  } else if (plain && (about.st_mode & kMayRead) != 0) {
    spdlog::warn("{}: others may read the API keys in it: chmod 600 it, or give blake2b instead of key", path);
  }
}

}  // namespace

ApiKey ApiKey::of(std::string_view key, bool admin) {
  ApiKey out{{}, admin};
  crypto_generichash(out.blake2b.data(), out.blake2b.size(), reinterpret_cast<const unsigned char*>(key.data()),
                     key.size(), nullptr, 0);
  return out;
}

Result<std::vector<TenantOptions>> read_tenants(const std::string& path) {
  if (sodium_init() < 0) return error(Code::kInternal, "libsodium cannot be initialised");
  KVILT_ASSIGN(const std::string text, read_file(path, kMaxTenantsFile));
  auto parsed = server::parse_json(text);
  if (!parsed.ok()) return error(Code::kInvalidArgument, "{}: {}", path, parsed.error().message);
  const Json& json = parsed.value();
  if (!json.is_object() || json.size() != 1 || !json.contains("tenants") || !json["tenants"].is_array())
    return error(Code::kInvalidArgument, "{}: must be an object with a list 'tenants', and nothing else", path);
  std::vector<TenantOptions> out;
  for (size_t i = 0; i < json["tenants"].size(); ++i) {
    auto tenant = read_tenant(json["tenants"][i], fmt::format("tenants[{}]", i));
    if (!tenant.ok()) return error(Code::kInvalidArgument, "{}: {}", path, tenant.error().message);
    out.push_back(std::move(tenant.value()));
  }
  // Without one there would be no key, and everybody would be let in.
  if (out.empty()) return error(Code::kInvalidArgument, "{}: 'tenants' is empty: name at least one", path);
  warn_if_open(path, json["tenants"]);
  return out;
}

}  // namespace kvilt
