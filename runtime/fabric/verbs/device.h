// RDMA devices and their ports: what there is, what is usable, registered memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/fabric/verbs/conductor.h"
#include "runtime/fabric/verbs/device_health.h"
#include "runtime/fabric/verbs/gid.h"
#include "runtime/fabric/verbs/library.h"
#include "runtime/fabric/verbs/protection_domain.h"
#include "runtime/fabric/verbs/queue_faults.h"
#include "runtime/fabric/verbs/resolver.h"

namespace nccl_ha::fabric::verbs {

enum class LinkLayer : uint8_t { ethernet = 1, infiniband = 2 };
const char* to_text(LinkLayer layer);

/// One port as it was when asked.
struct PortInfo {
  std::string device;  ///< mlx5_0
  uint8_t port = 1;    ///< counted from 1
  uint8_t port_count = 1;
  LinkLayer link = LinkLayer::ethernet;
  bool known_link = true;  ///< false: it is neither, as EFA's
  bool active = false;
  std::string state;         ///< as verbs names it, for people
  uint16_t lid = 0;          ///< InfiniBand only
  bool global_only = false;  ///< InfiniBand: packets have a global routing header, or do not leave
  uint32_t mtu = 1024;       ///< active path MTU, bytes of payload
  uint32_t message_max = 0;  ///< bytes of one write
  int64_t speed_mbps = 0;    ///< 10^6 bit/s: lanes times lane rate
  uint64_t guid = 0;         ///< of the card, which several devices may share
  std::string pci_path;      ///< in sysfs; empty for a software device
  int numa_node = -1;
  std::string netdev;  ///< RoCE: the network interface beneath
  std::vector<GidEntry> gids;

  /// Whoever has no GID reaches nobody.
  bool needs_gid() const { return link == LinkLayer::ethernet || global_only; }
};

/// Bits of verbs' width and speed codes (IBTA, PortInfo attribute) as lanes and Mbit/s.
int width_lanes(uint8_t code);
int64_t lane_mbps(uint8_t code);
/// What sysfs says of a port, as in "800 Gb/sec (4X XDR)", in Mbit/s; 0: something else.
int64_t rate_mbps(std::string_view text);

/// The GUID of a device's node as sysfs says it; 0: it does not.
uint64_t node_guid_of(const std::string& device);
/// PortInfo::pci_path of its ports.
std::string device_path_of(const std::string& device);

/// What NCCL_IB_HCA means: see settings.def.  Pure.
bool hca_selected(std::string_view spec, std::string_view device, unsigned port);

enum class MemoryKind : uint8_t { host, gpu };

/// Memory registered with a device.  Shared by all who register the same range.
struct Region {
  ibv_mr* mr = nullptr;
  uint32_t local_key() const { return mr->lkey; }
  uint32_t remote_key() const { return mr->rkey; }
};

/// An opened device: context, protection domain, registration cache.  Any thread unless stated
/// otherwise.  Lives as long as somebody holds it, which every port does; and one whose firmware
/// hangs as long as the process, as a command of its conductor's is still about it.
class Device {
 public:
  static Result<std::shared_ptr<Device>> open(const Library& library, ibv_device* device,
                                              const Config& config);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }
  const Library& library() const { return library_; }
  ibv_context* context() const { return context_; }
  ibv_pd* pd() const { return pd_; }
  const ibv_device_attr& attributes() const { return attributes_; }
  unsigned port_count() const { return attributes_.phys_port_cnt; }

  /// Its descriptor does not block.  The caller's, for close_channel().
  Result<ibv_comp_channel*> open_channel() const;
  /// Null is allowed.
  void close_channel(ibv_comp_channel* channel) const;
  /// The kernel has ended all that this process had there (fence_proof.h).  Asks the kernel, and no
  /// firmware.
  bool taken_away() const;

  /// The firmware answers a question, or was asked none for want of something; where it does not
  /// answer, the device counts as failed from now on.  Blocks as long as the device takes.
  bool answers();
  /// It did not fail, and is not seen to hang: a command that hangs for hung_after makes it count
  /// as failed.
  bool may_answer();
  /// A command that takes so long is no slow one any more: of all, destroying a queue pair of
  /// Soft-RoCE's takes longest, some seconds where the interface has no link.
  static constexpr Duration hung_after = std::chrono::seconds(5);
  /// That of so much memory may take so much longer, 2 s for 1 GB: the kernel pins its pages, and
  /// lets go of them, in a fraction of that (docs/hardware.md asks how long it takes).
  static Duration time_to_pin(size_t length) { return Duration(2 * length); }
  /// Asks the device now; a flap may have changed everything but the name.
  Result<PortInfo> query(uint8_t port) const;

  /// The one of that number, which all share who ask while somebody has it.
  Result<std::shared_ptr<ProtectionDomain>> domain(uint64_t number);
  /// Registers, or counts one more user of a registration of exactly this range.  A wider one is
  /// not taken: its owner may have freed the part in question, and the allocator mapped it anew.
  /// `domain`: null: the device's own.
  Result<Region> add(void* base, size_t length, MemoryKind kind,
                     std::shared_ptr<ProtectionDomain> domain = nullptr);
  /// Registers, for whoever ends it.
  Result<ibv_mr*> make_region(ibv_pd* domain, void* base, size_t length, MemoryKind kind) const;
  /// GPU memory by DMA-BUF descriptor; `offset` into the buffer.
  Result<Region> add_dmabuf(void* base, size_t length, uint64_t offset, int fd,
                            std::shared_ptr<ProtectionDomain> domain = nullptr);
  /// One user less; the last one deregisters.  Nobody touches the memory any more then.  With
  /// `keep`, which holds the memory until the firmware has confirmed that, it does not wait;
  /// without it waits, unless the firmware hangs.
  void remove(const Region& region, std::shared_ptr<void> keep = nullptr);

  /// GPU pointers can be registered through a peer-memory module of the kernel.
  bool peer_memory() const { return peer_memory_; }
  /// The device takes DMA-BUF descriptors.
  bool dmabuf() const { return dmabuf_; }
  bool relaxed_ordering() const { return relaxed_ordering_; }

  /// Nothing is registered there any more that somebody has to take back.
  bool unused() const;

  /// Any thread.
  Resolver& resolver() { return *resolver_; }
  /// Any thread.
  Conductor& conductor() { return *conductor_; }
  /// Of what its users register, which may be large: no path waits for that.  Any thread.
  Conductor& registrar() { return *registrar_; }

  /// Where it is not usable, its ports fail their paths and make no more.
  DeviceHealth health;
  /// Which of its queues failed alone.
  QueueFaults faults;
  /// So often a LID, the GID table or the partition table may have changed; and the latter.
  std::atomic<uint64_t> address_changes{0};
  std::atomic<uint64_t> partition_changes{0};
  /// Somebody reads its asynchronous events.
  std::atomic<bool> watched{false};
  /// That paths use, or did, beside what their users registered (OwnMemory).
  std::atomic<size_t> own_memories{0};

 private:
  struct Entry {
    uint64_t begin = 0;
    size_t length = 0;
    ibv_mr* mr = nullptr;
    size_t users = 0;
    std::shared_ptr<ProtectionDomain> domain;  ///< null: the device's own
  };
  Device(const Library& library) : library_(library) {}
  /// Ends it, unless its firmware hangs.
  static void let_go(Device* device);
  void detect_gpu_support();
  /// The kernel's first pass over this process's objects has come to the oldest one.
  bool sentinel_gone() const;
  /// The device that was opened is no RDMA device of the kernel's any more.
  bool unregistered() const;
  int64_t speed_of(const PortInfo& info, const ibv_port_attr& attributes) const;
  void read_gids(PortInfo& info, int table_length) const;
  bool read_gid_table(PortInfo& info, int table_length) const;
  /// Finds the range or lets `make` register it.
  Result<Region> share(void* base, size_t length, std::shared_ptr<ProtectionDomain> domain,
                       const std::function<Result<ibv_mr*>(uint64_t start)>& make);
  Error refuse_memory(size_t length, const char* what) const;
  /// 0, or an errno value.
  int end_region(ibv_mr* mr) const;
  using Kept = std::list<std::shared_ptr<void>>;
  void end_own_region(ibv_mr* mr, Kept& keep);

  const Library& library_;
  std::string name_;
  ibv_context* context_ = nullptr;
  ibv_comp_channel* sentinel_ = nullptr;  ///< older than all else, so that it is the last to go
  int attribute_ = -1;  ///< in sysfs, which ends after all objects; -1: sysfs is not to be seen
  ibv_pd* pd_ = nullptr;
  ibv_device_attr attributes_{};
  bool relaxed_ordering_ = false;
  bool peer_memory_ = false;
  bool dmabuf_ = false;
  mutable std::mutex mutex_;
  std::vector<Entry> regions_;
  std::map<uint64_t, std::weak_ptr<ProtectionDomain>> domains_;
  Kept kept_;     ///< memory that the device may still write, as nothing proves that it does not
  Kept unasked_;  ///< of them, those of which the next answer of the firmware proves it
  std::unique_ptr<Resolver> resolver_;
  std::unique_ptr<Conductor> conductor_;
  std::unique_ptr<Conductor> registrar_;
};

/// A port that the plugin may use.
struct UsablePort {
  std::shared_ptr<Device> device;
  PortInfo info;
};

/// What a message of a call that failed with `error` (an errno) adds where it is ENOMEM and the
/// process has a limit: registered memory and a device's queues count against RLIMIT_MEMLOCK.  Else
/// nothing.
std::string memlock_hint(int error);

/// Which GID to use on a port under these settings.
Result<GidPreference> gid_preference(const Config& config, const PortInfo& port);

}  // namespace nccl_ha::fabric::verbs
