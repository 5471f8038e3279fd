// Makes paths over the network devices of this host, whatever provider carries them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config.h"
#include "runtime/context.h"
#include "runtime/fabric/datagram/fault_io.h"
#include "runtime/fabric/datagram/options.h"
#include "runtime/fabric/interfaces.h"
#include "runtime/fabric/memory.h"
#include "runtime/fabric/nic_board.h"
#include "runtime/fabric/path.h"
#include "runtime/fabric/rdma.h"
#include "runtime/fabric/region_registry.h"

namespace nccl_ha::fabric {

class DatagramPort;

/// What carries a path's bytes.  The number is wire format (handle and hello).
enum class FabricKind : uint8_t {
  datagram = 1,  ///< UDP sockets
  verbs = 2,     ///< RC queue pairs
  ud = 3,        ///< the datagram engine over UD queue pairs
};
const char* to_text(FabricKind kind);
/// The kind that a number from the wire stands for; nullopt for a number that means none.
std::optional<FabricKind> fabric_kind(uint8_t number);
/// An error when HA_NCCL_FABRIC names nothing that there is.
Result<void> check_fabric_name(const Config& config);
/// HA_NCCL_FABRIC names a fabric of RDMA devices: nothing else is to be used.
bool fabric_is_forced(const Config& config);

/// What NCCL sees as a network device.
struct NetDevice : DeviceFacts {
  FabricKind kind = FabricKind::datagram;
  size_t index = 0;  ///< of interfaces(), or of the RDMA ports
};

/// Where a connection lives: a device and the fabric used on it.
struct Attachment {
  size_t device = 0;  ///< of devices()
  FabricKind kind = FabricKind::datagram;
};

/// Where a path of some fabric may begin or end on this host.
struct Place {
  Attachment at;
  uint16_t number = 0;   ///< of the port or interface; two addresses of one have the same
  IpAddress address;     ///< family 0: none is known
  std::string pci_path;  ///< empty for a software device
};

/// Registered memory.  Plain data; taken back with Provider::remove_memory.
struct Registration {
  FabricKind kind = FabricKind::datagram;
  bool host = true;  ///< not GPU memory
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  size_t device = 0;
  uint64_t handle = 0;      ///< the provider's
  bool per_device = false;  ///< PathTraits::keys_per_device
  /// These keys are good for paths made there.
  bool serves(const Attachment& at) const {
    return kind == at.kind && (!per_device || device == at.device);
  }
};

/// All fabrics of this host behind one face.  A port per worker and interface or RDMA port is
/// opened when the first path needs it and closed with the last one.
class Provider {
 public:
  /// Decides which fabric the devices use (HA_NCCL_FABRIC) and says so in the log.
  static Result<std::unique_ptr<Provider>> make(const Config& config,
                                                std::vector<NetInterface> interfaces,
                                                size_t workers);
  /// The same over RDMA ports that `rdma` makes of the board, instead of those of this host.
  using RdmaSource = std::function<std::unique_ptr<RdmaPorts>(NicBoard& board)>;
  static Result<std::unique_ptr<Provider>> make(const Config& config,
                                                std::vector<NetInterface> interfaces,
                                                size_t workers, const RdmaSource& rdma);

  /// Any thread.
  const std::vector<NetInterface>& interfaces() const { return interfaces_; }
  const std::vector<NetDevice>& devices() const { return devices_; }
  Memory& memory() { return memory_; }
  ~Provider();

  /// Any thread.  `domain` ties the region to one connection where the fabric can.
  Result<Registration> add_memory(const Attachment& at, uint64_t domain, void* base, size_t length,
                                  bool gpu);
  Result<Registration> add_dmabuf(const Attachment& at, void* base, size_t length, uint64_t offset,
                                  int fd);
  /// Any thread.  When it returns nobody touches the memory for this registration any more.
  Result<void> remove_memory(const Registration& registration);
  /// The keys by which `other` knows memory that `at` knows by `key`; registers it there the first
  /// time, which takes as long as the kernel takes to pin it.  `domain` as in add_memory().
  Result<RegionKeys> keys_on(const Attachment& other, uint64_t domain, const Attachment& at,
                             uint32_t key, bool key_is_local);
  /// What is known of paths made there before there is one.
  PathTraits traits(const Attachment& at) const;
  /// How many paths a connection there begins with.
  size_t paths_wanted(const Attachment& at) const;
  /// Paths there will be asked to flush.
  bool needs_flushes(const Attachment& at) const;
  /// Place::number of a path made there; UINT16_MAX: not known.  `local` as in create_path().
  uint16_t place_number(const Attachment& at, const sockaddr* local) const;
  /// Whether a peer may have paths of this kind to a device, and what it is told if not.
  bool accepts(size_t device, FabricKind kind) const;
  std::string refusal(size_t device, FabricKind kind) const;
  /// How many connections a device has queue pairs for, at most `most`; `config` says how many each
  /// takes, those in reserve included.
  size_t connections_max(size_t device, const Config& config, size_t most) const;
  /// All that could carry paths of a kind, and behind them interfaces whose datagrams may take over
  /// for RDMA; `at.device` of those over UDP is `device`.
  std::vector<Place> places(const Attachment& device) const;
  /// What the NIC of a path made there is called (NicNotice); empty where it is not known.
  std::string nic_of(const Attachment& at, const sockaddr* local) const;
  NicBoard& nics() { return nics_; }
  /// Index of the interface that owns `address`; nullopt for a foreign one.
  std::optional<size_t> interface_of(const sockaddr* address) const;

  /// Before the first path: datagram ports run over what `open` gives for a local address instead
  /// of UDP sockets (a simulated network).
  using PacketSource = std::function<Result<std::unique_ptr<PacketIo>>(const SocketAddress& local)>;
  void use_packets(PacketSource open) { packet_source_ = std::move(open); }

  /// Before the first path: how a DMA-BUF descriptor is duplicated; -1 with errno where it is not.
  void use_duplicate(std::function<int(int fd)> duplicate) { duplicate_ = std::move(duplicate); }

  /// On the worker's thread.  `local` chooses interface and family of a datagram path.
  Result<OwnedPath> create_path(Context& context, const Attachment& at, const sockaddr* local,
                                const PathOptions& options, PathOwner* owner);

 private:
  struct Slot {
    SocketAddress address;
    std::weak_ptr<DatagramPort> port;
  };
  /// In the book: the table of those that reach memory by the processor.
  static constexpr size_t own_table = SIZE_MAX;
  Provider();
  size_t port_of(const Attachment& at) const { return devices_[at.device].index; }
  bool above_rdma(const NetInterface& own) const;
  void add_interfaces(const Attachment& device, std::vector<Place>& places) const;
  IpAddress with_prefix(IpAddress address) const;
  Result<std::unique_ptr<PacketIo>> open_udp(const SocketAddress& local) const;
  Result<void> find_rdma(const Config& config);
  void choose_devices(const Config& config);
  Result<OwnedPath> create_ud_path(Context& context, const Attachment& at,
                                   const PathOptions& options, PathOwner* owner);
  /// Gives the port of `slot`, over what `open` makes when there is none.
  using PacketOpen = std::function<Result<std::unique_ptr<PacketIo>>()>;
  Result<std::shared_ptr<DatagramPort>> open_port(Context& context,
                                                  std::weak_ptr<DatagramPort>& slot, uint32_t mtu,
                                                  const PacketOpen& open);

  DatagramOptions options_;
  FaultPlan faults_;
  int socket_bytes_ = 0;
  bool offload_ = true;
  PacketSource packet_source_;
  std::function<int(int)> duplicate_;
  std::vector<NetInterface> interfaces_;
  std::vector<NetDevice> devices_;
  NicBoard nics_;
  std::unique_ptr<RdmaPorts> rdma_;                                 // null: none is used
  std::vector<std::vector<std::weak_ptr<DatagramPort>>> ud_ports_;  // per worker and RDMA port
  Memory memory_;
  RegionRegistry book_;
  bool keeps_book_ = false;
  bool backs_with_datagrams_ = false;
  bool forced_ = false;           ///< HA_NCCL_FABRIC names RDMA devices: nothing else is to be used
  bool flushes_always_ = false;   ///< HA_NCCL_IB_FLUSH
  size_t ib_paths_ = 1;           ///< HA_NCCL_IB_QPS
  size_t dgram_paths_ = 1;        ///< HA_NCCL_DGRAM_PATHS
  int adaptive_routing_ = -1;     ///< HA_NCCL_IB_ADAPTIVE_ROUTING
  uint32_t end_apart_above_ = 0;  ///< HA_NCCL_IB_AR_THRESHOLD
  std::vector<std::vector<Slot>> ports_;  // per worker, touched by that worker only
};

}  // namespace nccl_ha::fabric
