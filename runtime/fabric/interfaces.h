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
#include "runtime/fabric/links.h"

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
  std::vector<std::string> other_names;
  int ifindex = 0;
  /// Those to try first come first: of networks before 169.254/16, IPv4 before IPv6; link-local
  /// ones of IPv6 only when there is no other.
  std::vector<IpAddress> addresses;
  std::vector<IpAddress> link_local;  ///< the others: a standby may be there, but nobody dials them
  uint32_t mtu = 1500;                ///< bytes
  int64_t speed_mbps = 10000;         ///< 10^6 bit/s; 10000 when the driver does not say
  int numa_node = -1;
  std::string pci_path;  ///< in sysfs; empty when it is no PCI device
  PortIdentity port;
  std::array<uint8_t, 6> mac{};
  uint64_t guid = 0;  ///< unique among hosts and interfaces
  bool loopback = false;
  bool up = false;
  LinkClass leads_to = LinkClass::nic;
  bool is_port = false;              ///< of a bridge or bond, which has its packets
  std::vector<uint64_t> cables;      ///< LinkTree::cables_of
  std::vector<std::string> lies_on;  ///< the names of the links beneath
  bool offered = true;               ///< NCCL may see it as a device; else it only stands by
  std::string why_not;               ///< it is not offered, or not used at all

  /// It has no address that somebody gave it.
  bool only_self_assigned() const { return addresses.empty() || addresses.front().self_assigned(); }
  std::vector<IpAddress> all_addresses() const;
  /// Both end with one cable.
  bool shares_cable(const NetInterface& other) const;
};

/// All interfaces that have an IP address, by index.
Result<std::vector<NetInterface>> list_interfaces();
/// The same of links that were listed, but for what only sysfs knows.  Pure.
std::vector<NetInterface> make_interfaces(const LinkList& list);

/// What was decided besides what is used.
struct SelectionNotes {
  std::vector<std::string> warnings;   ///< of what the setting asks for and the host lacks
  std::vector<NetInterface> left_out;  ///< each with its why_not
};

/// Those to use, by NCCL_SOCKET_IFNAME's rules: a comma-separated list of name prefixes; `^` in
/// front excludes, also what lies on an excluded one; `=` asks for exact names.  "": all that may
/// lead to other hosts, or loopback when nothing else is up.  First come those that are offered:
/// the best class there is, one for each cable; the others stand by.  `family`: "", "AF_INET" or
/// "AF_INET6".  Pure.  No match is an error that lists what there is.
Result<std::vector<NetInterface>> select_interfaces(const std::vector<NetInterface>& all,
                                                    std::string_view ifname_spec,
                                                    std::string_view family,
                                                    SelectionNotes* notes = nullptr);
/// The same without those that only stand by.
Result<std::vector<NetInterface>> select_offered(const std::vector<NetInterface>& all,
                                                 std::string_view ifname_spec,
                                                 std::string_view family);

/// Index of the interface that owns `address`, or that a link-local one names as its scope; nullopt
/// for a foreign one.
std::optional<size_t> find_interface(const std::vector<NetInterface>& interfaces,
                                     const sockaddr* address);
/// Where a device's folder in sysfs says that it is on PCI, that of a sub-function below its
/// function; empty: nowhere.
std::string pci_path_of(const std::string& device);
/// `address` with the prefix length that an interface has for it, if one owns it.
IpAddress with_prefix(const std::vector<NetInterface>& interfaces, IpAddress address);

}  // namespace nccl_ha::fabric
