// The kinds of fabric of this host behind one face: its devices, its memory, paths over them.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/engine/context.h"
#include "runtime/fabric/errands.h"
#include "runtime/fabric/path_factory.h"
#include "runtime/fabric/standard_kinds.h"

namespace nccl_ha::fabric {

/// Registered memory.  Plain data; taken back with Provider::remove_memory.
struct Registration {
  FabricKind kind{};
  bool host = true;  ///< not GPU memory
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  size_t device = 0;
  uint32_t incarnation = 0;    ///< of that
  uint32_t returns = 0;        ///< Attachment::returns, when it was registered
  uint64_t handle = 0;         ///< the provider's
  bool per_device = false;     ///< PathTraits::keys_per_device
  bool placed_by_nic = false;  ///< PathTraits::placed_by_nic, of paths made there
  /// The keys at the devices of the other rails, in their order (register_on_rails); 0: none.
  std::array<uint32_t, rails_per_device_max - 1> rail_local_keys{};
  std::array<uint32_t, rails_per_device_max - 1> rail_remote_keys{};
};

/// Knows kinds only as factories.
class Provider {
 public:
  /// Makes a kind of its own over what the provider has.
  using Kind = std::function<std::unique_ptr<PathFactory>(const Config& config, FabricHost& host)>;
  struct Sources {
    StandardSources standard;
    std::vector<Kind> kinds;  ///< besides the standard ones; asked for devices before them
  };
  /// Decides which fabric the devices use (HA_NCCL_FABRIC) and says so in the log.
  static Result<std::unique_ptr<Provider>> make(const Config& config,
                                                std::vector<NetInterface> interfaces,
                                                size_t workers, const Sources& sources = {});
  ~Provider();

  /// Any thread.
  std::shared_ptr<const InterfaceTable::List> interfaces() const { return host_.interfaces.now(); }
  /// From now on the interfaces are listed again when the kernel tells of changes (NicBoard), on a
  /// thread of its own.  Once, before the first connection.
  void follow_kernel();
  /// Ends that thread until the kernel tells of the next change.  While nobody can: no engine runs.
  void rest() { errands_.reset(); }
  /// These are this host's interfaces now: connections hear of it where it matters to them.
  void renew_interfaces(const std::vector<NetInterface>& all);
  const std::vector<NetDevice>& devices() const { return host_.devices; }
  Memory& memory() { return host_.memory; }
  NicBoard& nics() { return host_.nics; }

  /// Any thread.  The device as it is now, for a connection that begins.
  Attachment live_at(size_t device, FabricKind kind) const;
  /// Any thread.  As PathFactory::is_busy().
  bool is_busy(const Attachment& at) const { return factory(at).is_busy(at); }

  /// Any thread.  `domain` ties the region to one connection where the fabric can.
  Result<Registration> add_memory(const Attachment& at, uint64_t domain, void* base, size_t length,
                                  bool gpu);
  /// The same for memory of paths' own; whole pages.  Asks no device: paths that are made with it
  /// do (PathOptions::memory).  `own_domain`: it is for those with PathOptions::own_domain.
  Result<std::shared_ptr<OwnMemory>> own_memory(const Attachment& at, uint64_t domain,
                                                std::shared_ptr<void> bytes, size_t length,
                                                bool own_domain = false);
  Result<Registration> add_dmabuf(const Attachment& at, uint64_t domain, void* base, size_t length,
                                  uint64_t offset, int fd);
  /// Registers what add_memory() or add_dmabuf() registered at the first of `devices` with the
  /// others as well, so that nobody has to when data is to go there.  A device that does not take
  /// it is told in the log, and gets no data of it.
  void register_on_rails(const RailDevices& devices, uint64_t domain, Registration& registration);
  /// Any thread.  Whether paths of a connection that lives at `at` know memory by these keys.
  static bool fits(const Registration& known, const Attachment& at) {
    return known.incarnation == at.incarnation && known.returns >= at.returns;
  }
  /// The same memory by keys of that connection's: it was registered for another one, since which,
  /// or before which, a device has come back.  It waits as a worker does (timed_out: ask again), as
  /// whoever asks has other connections.
  Result<Registration> adapt(const Registration& known, const Attachment& at);
  /// Any thread.  When it returns nobody touches the memory for this registration any more.  With
  /// `keep`, which holds the memory until then, that may be later: nobody waits for a device.
  Result<void> remove_memory(const Registration& registration,
                             std::shared_ptr<void> keep = nullptr);
  /// The keys by which `other` knows memory that `at` knows by `key`; registers it there the first
  /// time, which takes as long as the kernel takes to pin it.  `domain` as in add_memory().
  Result<RegionKeys> keys_on(const Attachment& other, uint64_t domain, const Attachment& at,
                             uint32_t key, bool key_is_local, Waits who = Waits::worker);
  /// The keys by which paths at `other` with PathOptions::own_domain know memory that the processor
  /// knows by `key` in that domain (add_memory()); registers it there the first time.
  Result<RegionKeys> keys_in_domain(const Attachment& other, uint64_t domain, uint32_t key);
  /// Any thread.  A connection of that domain has memory of a GPU which only devices may touch:
  /// what the processor would carry to or from there fails.
  bool has_gpu_memory(uint64_t domain);
  /// Before the first path: how a DMA-BUF descriptor is duplicated; -1 with errno where it is not.
  void use_duplicate(std::function<int(int fd)> duplicate) { duplicate_ = std::move(duplicate); }
  /// The rails of a connection of that kind whose peer may use all of `devices`.
  RailDevices rails_of(FabricKind kind, const RailDevices& devices) const;
  /// A registration serves every connection of the device, whatever its peer.
  bool memory_is_global(size_t device) const;

  // Kinds, as messages and settings name them; good for any number that a peer sends.
  const char* text(FabricKind kind) const;
  const char* setting(FabricKind kind) const;
  bool is_universal(FabricKind kind) const;
  /// Connections at `device` may use `kind`.
  bool accepts(size_t device, FabricKind kind) const;
  /// Why not.
  std::string refusal(size_t device, FabricKind kind) const;
  /// The kind of a connection from `device` to a device of kind `peer`; nullopt: they have none in
  /// common that the settings allow.
  std::optional<FabricKind> kind_towards(size_t device, FabricKind peer) const;
  /// How many connections the device can have, at most `most`.
  size_t connections_max(size_t device, size_t most) const;

  // Of connections that live at `at`, whose kind the device accepts.
  /// What is known of paths made there before there is one.
  PathTraits traits(const Attachment& at) const;
  /// How many paths a connection there begins with.
  size_t paths_wanted(const Attachment& at) const;
  /// Paths there will be asked to flush.
  bool needs_flushes(const Attachment& at) const;
  /// Place::number of a path made there; UINT16_MAX: not known.  `local` as in create_path().
  uint16_t place_number(const Attachment& at, const sockaddr* local) const;
  /// Where paths of a connection that lives at `at` may begin or end on this host, places of its
  /// own kind first, those of one port in the order in which they are to be tried.
  std::vector<Place> places(const Attachment& at) const;
  /// What the NIC of a path made there is called (NicNotice); empty where it is not known.
  std::string nic_of(const Attachment& at, const sockaddr* local) const;

  /// On the worker's thread.  `local` chooses among a host's addresses where the kind has several.
  Result<OwnedPath> create_path(Context& context, const Attachment& at, const sockaddr* local,
                                const PathOptions& options, PathOwner* owner);

 private:
  /// In the registry: the table of those that reach memory by the processor.
  static constexpr OpenedDevice own_table{SIZE_MAX};
  Provider() = default;
  void choose_devices();
  uint32_t returns() const;
  PathFactory* find(FabricKind kind) const;
  PathFactory& factory(const Attachment& at) const;
  const NetDevice& device(const Attachment& at) const { return host_.devices[at.device]; }
  Registration registration_at(const Attachment& at, bool host, const RegionKeys& keys) const;
  Result<Registration> add_gpu_memory(const Attachment& at, uint64_t domain, RegionOrigin origin);
  Result<RegionKeys> add_there(const Attachment& other, const RegionOrigin& origin, Waits who);
  void keep_descriptor(RegionOrigin& origin) const;
  void remove_elsewhere(const OpenedDevice& at, uint32_t local_key,
                        const std::shared_ptr<void>& keep);
  void remove_there(const RegionRegistry::Elsewhere& other, const RegionKeys& keys,
                    const std::shared_ptr<void>& keep);
  /// RegionRegistry::on_other() of what this provider registers.
  Result<RegionKeys> on_other(const OpenedDevice& at, uint32_t key, bool key_is_local,
                              const RegionRegistry::Elsewhere& other, Waits who,
                              const RegionRegistry::Make& make);
  void look_at_interfaces();

  /// Listing the interfaces after news of the kernel's.
  enum class Look : uint8_t { none, under_way, once_more };

  FabricHost host_;
  std::vector<std::unique_ptr<PathFactory>> kinds_;
  std::function<int(int)> duplicate_;
  RegionRegistry regions_;
  bool keeps_regions_ = false;   ///< a connection may need memory on another device
  bool keeps_own_ = false;       ///< or what is in the own table on a device
  bool forced_ = false;          ///< fabric_is_forced
  bool flushes_always_ = false;  ///< HA_NCCL_IB_FLUSH
  std::string ifname_;           ///< HA_NCCL_IFNAME
  std::string family_;           ///< HA_NCCL_SOCKET_FAMILY
  std::atomic<Look> look_{Look::none};
  std::unique_ptr<Errands> errands_;  ///< last: they use the rest; of who has set `look_`
};

}  // namespace nccl_ha::fabric
