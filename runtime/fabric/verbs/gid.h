// Which entry of a port's GID table a queue pair should use.  Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/result.h"
#include "runtime/fabric/interfaces.h"

namespace nccl_ha::fabric::verbs {

using Gid = std::array<uint8_t, 16>;

/// Who can use an entry of the table.
enum class GidScope : uint8_t {
  here,       ///< its interface is in this network namespace, or it names none
  elsewhere,  ///< its interface is in another one
  hidden,     ///< sysfs does not show the entry to this process
};

struct GidEntry {
  uint32_t index = 0;
  GidScope scope = GidScope::here;
  Gid bytes{};
  bool roce_v2 = false;  ///< false: InfiniBand or RoCE v1
  std::string netdev;    ///< RoCE only
};

/// The IP address that a RoCE GID stands for; an IPv4 one is written as an IPv4-mapped IPv6
/// address.
IpAddress gid_address(const Gid& gid);
/// fe80::/10: a default GID made of the port's GUID, or a link-local address.
bool gid_link_local(const Gid& gid);
std::string gid_text(const Gid& gid);

struct GidPreference {
  int64_t index = -1;              ///< fixed by the user; -1: choose
  bool infiniband = false;         ///< link layer: RoCE rules do not apply
  int64_t roce_version = 2;        ///< 1 or 2
  uint8_t family = 4;              ///< 4 or 6, preferred
  std::optional<IpAddress> range;  ///< only addresses inside (prefix_len says how many bits)
};

/// A work request names its entry in 8 bits.
inline constexpr uint32_t gid_index_max = 255;

/// nullopt: none fits.  As NCCL chooses: hidden entries are left out unless `index` names one; then
/// family goes before reach, and reach before version, and among equals the lowest index wins.
/// Entries of interfaces elsewhere are the last choice: a container without interfaces of its own
/// has no others.
std::optional<GidEntry> select_gid(std::span<const GidEntry> table, const GidPreference& want);

}  // namespace nccl_ha::fabric::verbs
