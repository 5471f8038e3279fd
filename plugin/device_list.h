// The devices that NCCL sees: those of the provider, or several of them as rails of one.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/fabric/device.h"

namespace nccl_ha::plugin {

/// Numbers are NCCL's; a device that was listed keeps its number.  Any thread.
class DeviceList {
 public:
  struct Device {
    fabric::RailDevices rails;  ///< of the provider
    std::string name;           ///< those of its rails, joined by +
    int64_t speed_mbps = 0;     ///< of all its rails together
    bool has_pci_path = false;  ///< NCCL knows where it is
    int port = 1;               ///< of the card, as NCCL counts them
    /// What NCCL merged, by its own numbers; one that it did not merge is its own only member.
    std::vector<int> members;
  };

  /// One device for each of `all`, but one for HA_NCCL_HCA_SOUT and HA_NCCL_HCA_SUP together, and
  /// one for those that share a port.  An error says which of the first two is missing.  Until
  /// end() it can only be done again with the same devices: NCCL keeps their numbers, and what it
  /// has merged.
  Result<void> begin(const Config& config, std::span<const fabric::NetDevice> all);
  /// There are none any more, and no memory of them.
  void end();
  size_t count() const;
  /// Nothing: there is no such device.
  std::optional<Device> find(int device) const;
  /// The rails of each.
  std::vector<fabric::RailDevices> ports() const;
  /// NCCL's makeVDevice: one more device, of two to four that NCCL did not merge.  Its number,
  /// which stays when the same are merged again.
  Result<int> merge(std::span<const int> members);

 private:
  static constexpr size_t devices_max = 256;  ///< NCCL does not ask for so many

  mutable std::mutex mutex_;
  std::vector<Device> devices_;
};

}  // namespace nccl_ha::plugin
