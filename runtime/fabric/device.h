// Devices, where on them connections live, and where their paths may begin or end.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/base/ip_address.h"

namespace nccl_ha::fabric {

/// What carries a path's bytes.  The number is wire format (handle and hello); each factory has its
/// own (PathFactory::kind), 0 stands for none.
enum class FabricKind : uint8_t {};

/// What a device is, whatever carries its paths.
struct DeviceFacts {
  std::string name;    ///< unique
  std::string netdev;  ///< the interface beneath, or itself; empty: there is none
  uint64_t guid = 0;
  std::string pci_path;  ///< empty for a software device
  int numa_node = -1;
  int64_t speed_mbps = 0;
  std::string switch_id;  ///< of the NIC that its port is on (PortIdentity); empty: not known
  std::string port_name;  ///< of that port there
  int port = 1;
  bool peer_memory = false;  ///< GPU pointers can be registered
  bool dmabuf = false;       ///< GPU memory can be registered by DMA-BUF descriptor
};

/// How a NIC is called where all fabrics meet (NicNotice, FailureDomain).
inline const std::string& nic_name(const DeviceFacts& device) {
  return device.netdev.empty() ? device.name : device.netdev;
}

/// What NCCL sees as a network device.
struct NetDevice : DeviceFacts {
  FabricKind kind{};
  size_t index = 0;  ///< its number among those of its kind
  /// The interface whose addresses come first for control connections.
  size_t control_interface = 0;
};

/// A device as it was opened once.  What comes in its place after a reset knows memory by keys of
/// its own, and the same number may be a key of other memory there.
struct OpenedDevice {
  constexpr OpenedDevice(size_t number = 0, uint32_t which = 0)
      : device(number), incarnation(which) {}
  size_t device;                                          ///< of Provider::devices()
  uint32_t incarnation;                                   ///< Attachment::incarnation
  auto operator<=>(const OpenedDevice&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// Where a connection lives: a device and the fabric used on it.
struct Attachment {
  size_t device = 0;  ///< of Provider::devices()
  FabricKind kind{};
  uint8_t way = 0;  ///< of a path, where its kind has several to the same peer; 0: the first
  /// Which of those that were the device one after the other (PathFactory::incarnation()).
  uint32_t incarnation = 0;
  uint32_t returns = 0;  ///< of devices of this host by then (Provider::live_at())

  OpenedDevice opened() const { return {device, incarnation}; }
};

inline constexpr size_t rails_per_device_max = 4;

/// The devices beneath one device of NCCL's, a rail each: connections live at the first one.
struct RailDevices {
  RailDevices(size_t only = 0) : devices{only} {}
  /// Of a connection whose kind has several ways to a peer, as many as serve at once.
  static RailDevices ways_of(size_t device, size_t ways) {
    RailDevices rails;
    rails.devices.fill(device);
    rails.count = std::clamp<size_t>(ways, 1, rails_per_device_max);
    rails.are_ways = true;
    return rails;
  }
  size_t first() const { return devices.front(); }
  bool operator==(const RailDevices&) const = default;

  std::array<size_t, rails_per_device_max> devices{};  ///< of Provider::devices()
  size_t count = 1;
  bool sout_and_sup =
      false;  ///< HA_NCCL_HCA_SOUT and HA_NCCL_HCA_SUP: the second may not reach all hosts
  bool are_ways = false;  ///< rails are ways of the one device (Attachment::way)
};

/// Where a path of some fabric may begin or end on this host.
struct Place {
  Attachment at;
  uint16_t number = 0;   ///< of the port or interface; two addresses of one have the same
  IpAddress address;     ///< family 0: none is known
  std::string pci_path;  ///< empty for a software device

  /// Of that device, of the place's own kind, whichever incarnation.
  bool is_of(size_t device) const {
    return at.incarnation == 0 ? number == device : at.device == device;
  }
};

}  // namespace nccl_ha::fabric
