// base/reserved_tenants.h: names of tenants that this program uses for itself; nobody else may have one.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace kvilt {

inline constexpr std::string_view kPeerTenant =
    "(peer)";  // whose work a prefill server's answers to decode servers are
inline constexpr std::array kReservedTenants{kPeerTenant};

inline bool is_reserved_tenant(std::string_view name) {
  return std::ranges::find(kReservedTenants, name) != kReservedTenants.end();
}

}  // namespace kvilt
