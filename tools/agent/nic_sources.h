// Where the counters of a NIC come from: the kernel's statistics, the driver's own, those of the
// RDMA device.  Each source adds what it knows to a reading.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ha/nic_load.h"
#include "runtime/base/result.h"

namespace nccl_ha::tools {

class NicSource {
 public:
  virtual ~NicSource() = default;
  /// For people: "sysfs", "ethtool", "ethtool netlink", "rdma mlx5_0".
  virtual std::string name() const = 0;
  /// False: it has nothing to say, now at least.
  virtual bool add(ha::NicReading& reading) = 0;
};

/// Names and values of a driver's statistics, as `ethtool -S` shows them.
using DriverStatistics = std::vector<std::pair<std::string, uint64_t>>;
/// Adds what is told by names that drivers use for pauses, discards and queues.
void add_driver_statistics(const DriverStatistics& statistics, ha::NicReading& reading);
/// Asks the driver (SIOCETHTOOL).
Result<DriverStatistics> driver_statistics(const std::string& interface);

/// Those that an interface has; `root`: "/sys", or a copy of it in tests.  The first one is always
/// there.
std::vector<std::unique_ptr<NicSource>> nic_sources(const std::string& interface,
                                                    const std::string& root = "/sys");

}  // namespace nccl_ha::tools
