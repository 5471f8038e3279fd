#include "runtime/fabric/verbs/gid.h"

#include <arpa/inet.h>

#include <algorithm>
#include <tuple>

namespace nccl_ha::fabric::verbs {

IpAddress gid_address(const Gid& gid) {
  // RFC 4291, 2.5.5.2: ten zero bytes, two of ones, then the IPv4 address.
  IpAddress address;
  const bool zeros = std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t b) { return b == 0; });
  if (zeros && gid[10] == 0xFF && gid[11] == 0xFF) {
    address.family = 4;
    address.prefix_len = 32;
    std::copy(gid.begin() + 12, gid.end(), address.bytes.begin());
  } else {
    address.family = 6;
    address.prefix_len = 128;
    address.bytes = gid;
  }
  return address;
}

bool gid_link_local(const Gid& gid) { return gid[0] == 0xFE && (gid[1] & 0xC0) == 0x80; }

std::string gid_text(const Gid& gid) { return gid_address(gid).text(); }

std::optional<GidEntry> select_gid(std::span<const GidEntry> table, const GidPreference& want) {
  const GidEntry* best = nullptr;
  auto rank = [&](const GidEntry& entry) {
    const IpAddress address = gid_address(entry.bytes);
    const bool version = want.infiniband || entry.roce_v2 == (want.roce_version == 2);
    return std::tuple(entry.scope == GidScope::here,
                      want.infiniband || address.family == want.family,
                      want.infiniband || !gid_link_local(entry.bytes), version);
  };
  for (const GidEntry& entry : table) {
    const bool empty =
        std::all_of(entry.bytes.begin(), entry.bytes.end(), [](uint8_t b) { return b == 0; });
    if (empty || entry.index > gid_index_max) {
      continue;
    }
    if (want.index >= 0) {
      if (entry.index == static_cast<uint64_t>(want.index)) {
        return entry;
      }
      continue;
    }
    if (entry.scope == GidScope::hidden) {
      continue;
    }
    if (want.range && !want.infiniband && !want.range->same_subnet(gid_address(entry.bytes))) {
      continue;
    }
    if (best == nullptr || rank(entry) > rank(*best)) {
      best = &entry;
    }
  }
  return best == nullptr ? std::nullopt : std::optional(*best);
}

}  // namespace nccl_ha::fabric::verbs
