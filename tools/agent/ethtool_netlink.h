// Standard statistics of a NIC over generic netlink (the kernel's Documentation/networking/
// ethtool-netlink.rst): the same names for every driver, where `ethtool -S` has the driver's own.
#pragma once

#include <linux/netlink.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ha/nic_load.h"
#include "runtime/base/result.h"

struct nl_sock;

namespace nccl_ha::tools {

/// What a driver tells of these, since the interface came up.
struct StandardStatistics {
  std::optional<uint64_t> pauses_out;  ///< link-level pause frames (IEEE 802.3, 30.3.4.2)
  std::optional<uint64_t> pauses_in;   ///< the same, 30.3.4.3
  std::optional<uint64_t> lost_out;    ///< frames lost inside the MAC (30.3.1.1.12)
  std::optional<uint64_t> lost_in;     ///< the same, 30.3.1.1.15

  bool empty() const { return !pauses_out && !pauses_in && !lost_out && !lost_in; }
  /// After the driver's own statistics: those hold the same frames, perhaps with others
  /// (PFC), so that the larger count holds.
  void add_to(ha::NicReading& reading) const;
};

/// Adds what a reply to ETHTOOL_MSG_PAUSE_GET or ETHTOOL_MSG_STATS_GET says; false: it is neither,
/// or malformed.  `message` is as long as its header says.
bool read_statistics_reply(const nlmsghdr& message, StandardStatistics& statistics);

/// A socket to the kernel's ethtool family.  One thread.
class EthtoolNetlink {
 public:
  /// Errc::system: the kernel has no such family (before 5.6), or no socket is to be had.
  static Result<std::unique_ptr<EthtoolNetlink>> open();
  ~EthtoolNetlink();
  EthtoolNetlink(const EthtoolNetlink&) = delete;
  EthtoolNetlink& operator=(const EthtoolNetlink&) = delete;

  /// What the driver does not tell is missing; Errc::system: there is no such interface.
  Result<StandardStatistics> statistics(const std::string& interface);

 private:
  EthtoolNetlink(nl_sock* socket, int family) : socket_(socket), family_(family) {}
  Result<void> ask(const std::string& interface, uint8_t command, StandardStatistics& statistics);

  nl_sock* const socket_;
  const int family_;
};

}  // namespace nccl_ha::tools
