// A kind of fabric as the provider sees it.  A kind is added by registering a factory
// (Provider::Sources::kinds): nobody else names it.
//
// Any thread, unless stated otherwise; what a factory answers stays the same for its life, but for
// places, which change with the interfaces.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/engine/context.h"
#include "runtime/fabric/device.h"
#include "runtime/fabric/interface_table.h"
#include "runtime/fabric/memory.h"
#include "runtime/fabric/nic_board.h"
#include "runtime/fabric/own_memory.h"
#include "runtime/fabric/path.h"
#include "runtime/fabric/region_registry.h"

namespace nccl_ha::fabric {

class Provider;

/// What the factories of a provider share.  It outlives them.
struct FabricHost {
  size_t workers = 0;
  InterfaceTable interfaces;       ///< in order of use, once the devices are chosen
  std::vector<NetDevice> devices;  ///< of the chosen kind
  Memory memory;                   ///< of all kinds without keys_per_device
  NicBoard nics;

  /// A device is this interface, or shares its cable.
  bool beneath_device(const NetInterface& own) const;
  /// One number for all interfaces that share a cable: the first one's.
  static size_t cable_of(const InterfaceTable::List& interfaces, size_t interface);
};

class PathFactory {
 public:
  virtual ~PathFactory() = default;
  PathFactory() = default;
  PathFactory(const PathFactory&) = delete;
  PathFactory& operator=(const PathFactory&) = delete;

  /// Once, before the first path is made: all kinds are there, for one that is made over others.
  virtual void begin(Provider& provider) { (void)provider; }

  virtual FabricKind kind() const = 0;
  /// What HA_NCCL_FABRIC calls it.
  virtual const char* setting() const = 0;
  /// What messages call it: "the peer uses ...".
  virtual const char* text() const = 0;
  /// Every host has it: it serves connections between devices of different kinds.
  virtual bool universal() const { return false; }

  /// Those that it would offer under these settings, once; the first kind that has some is used.
  virtual std::vector<NetDevice> devices() const = 0;
  /// Connections at this device may use the kind.
  virtual bool serves(const NetDevice& device) const { return device.kind == kind(); }
  /// What is known of paths at a device that it serves, but the bandwidth.
  virtual PathTraits traits(const NetDevice& device) const = 0;
  /// How many paths a connection begins with.
  virtual size_t paths_wanted() const { return 1; }
  /// To so many ways of its own to the same peer (Attachment::way) a connection may give load at
  /// once; 1: it has one, or the others stand by.
  virtual size_t ways_at_once() const { return 1; }
  /// How many connections a device of this kind can have, if not `most`.
  virtual size_t connections_max(const NetDevice& device, size_t most) const {
    (void)device;
    return most;
  }
  /// Where paths of this kind may begin or end on this host for a connection that lives at `of`,
  /// whatever its kind: this is how one kind offers fallback paths to another.
  virtual void add_places(const Attachment& of, std::vector<Place>& places) const = 0;
  /// Place::number of a path made there; UINT16_MAX: not known.  `local` as in create_path().
  virtual uint16_t place_number(const Attachment& at, const sockaddr* local) const {
    (void)local;
    return static_cast<uint16_t>(at.device);
  }
  /// What the NIC of a path made there is called; empty where it is not known.
  virtual std::string nic_of(const NetDevice& device, const sockaddr* local) const {
    (void)local;
    return nic_name(device);
  }

  /// Which of those that were the device one after the other it is now: 0 for the first one, and a
  /// greater number each time that the device has come back after a reset or a removal.
  virtual uint32_t incarnation(const NetDevice& device) const {
    (void)device;
    return 0;
  }
  /// The device takes so long with something that nobody should wait behind it for a new path.
  virtual bool is_busy(const Attachment& at) const {
    (void)at;
    return false;
  }

  // Kinds with PathTraits::keys_per_device only: all others use FabricHost::memory.  An incarnation
  // that is over counts as a device that has failed.
  /// A device that hangs holds nobody up for long.  A worker gets EBUSY; others get keys that are
  /// good for nothing, as whoever asks has paths over other devices, or none.
  virtual Result<RegionKeys> add_memory(const Attachment& at, const RegionOrigin& origin,
                                        Waits who);
  /// `origin` is of `bytes`.  Asks the device nothing.
  virtual Result<std::shared_ptr<OwnMemory>> own_memory(const Attachment& at,
                                                        const RegionOrigin& origin,
                                                        std::shared_ptr<void> bytes);
  /// As Provider::remove_memory().
  virtual void remove_memory(const Attachment& at, const RegionKeys& keys,
                             std::shared_ptr<void> keep);

  /// On the context's thread.  `local` chooses among a host's addresses where the kind has several.
  /// PathOptions::route is the kind's own business.
  virtual Result<OwnedPath> create_path(Context& context, const Attachment& at,
                                        const sockaddr* local, const PathOptions& options,
                                        PathOwner* owner) = 0;
};

/// HA_NCCL_FABRIC names one that not every host has: nothing else is to be used.
bool fabric_is_forced(const Config& config);
/// An error when `fabric` is neither "auto" nor one of `settings`.
Result<void> check_fabric_setting(const std::string& fabric,
                                  const std::vector<const char*>& settings);

}  // namespace nccl_ha::fabric
