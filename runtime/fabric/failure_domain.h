// What fails as one: a NIC at either end of a path, a host in between.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace nccl_ha::fabric {

struct FailureDomain {
  enum class Kind : uint8_t {
    local_nic,   ///< the interface beneath, or the RDMA port where there is none
    remote_nic,  ///< the address that the peer's has
    host,        ///< between this one and the peer's
  };
  Kind kind = Kind::local_nic;
  std::string name;
  bool operator==(const FailureDomain&) const = default;
};

/// Those of a path; whoever is in one of them may fail with it.
using FailureDomains = std::vector<FailureDomain>;

inline bool contains(const FailureDomains& domains, const FailureDomain& one) {
  return std::find(domains.begin(), domains.end(), one) != domains.end();
}

}  // namespace nccl_ha::fabric
