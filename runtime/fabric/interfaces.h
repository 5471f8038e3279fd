// The network interfaces of this host, and which of them to use.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/ip_address.h"
#include "runtime/base/result.h"

namespace nccl_ha::fabric {

/// Which port of which NIC an interface is on: several PCI functions may be on one.
struct PortIdentity {
  /// Of the NIC: phys_switch_id, or where the driver has none the system image GUID of the RDMA
  /// device on the same PCI function.  Empty: not known.
  std::string switch_id;
  std::string port_name;  ///< phys_port_name: "p0" is a port, "pf0vf1" a virtual function
};
/// `classes`: /sys/class, but for tests.
PortIdentity read_port_identity(const std::string& interface,
                                const std::string& classes = "/sys/class");

struct NetInterface {
  std::string name;
  int ifindex = 0;
  std::vector<IpAddress> addresses;  ///< IPv4 first; link-local ones only when there is no other
  uint32_t mtu = 1500;               ///< bytes
  int64_t speed_mbps = 10000;        ///< 10^6 bit/s; 10000 when the driver does not say
  int numa_node = -1;
  std::string pci_path;  ///< in sysfs; empty when it is no PCI device
  PortIdentity port;
  std::array<uint8_t, 6> mac{};
  uint64_t guid = 0;  ///< unique among hosts and interfaces
  bool loopback = false;
  bool up = false;
};

/// All interfaces that have an IP address, by index.
Result<std::vector<NetInterface>> list_interfaces();

/// Those to use, by NCCL_SOCKET_IFNAME's rules: a comma-separated list of name prefixes; `^` in
/// front excludes, `=` asks for exact names.  "": everything that is up except loopback and
/// container bridges, or loopback when nothing else is up.  `family`: "", "AF_INET" or "AF_INET6".
/// Pure.  No match is an error that lists what there is.
Result<std::vector<NetInterface>> select_interfaces(const std::vector<NetInterface>& all,
                                                    std::string_view ifname_spec,
                                                    std::string_view family);

/// Index of the interface that owns `address`, or that a link-local one names as its scope; nullopt
/// for a foreign one.
std::optional<size_t> find_interface(const std::vector<NetInterface>& interfaces,
                                     const sockaddr* address);
/// `address` with the prefix length that an interface has for it, if one owns it.
IpAddress with_prefix(const std::vector<NetInterface>& interfaces, IpAddress address);

}  // namespace nccl_ha::fabric
