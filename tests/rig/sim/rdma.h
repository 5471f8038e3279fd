// RDMA NICs of a simulation: what rdma-core would drive, on virtual time.
//
// The product's own verbs fabric runs over them, through a table of functions like the library's. A
// queue pair keeps the rules of a reliable connection (IBTA 9.7): packets in order, go-back-N,
// acknowledgements, timeouts, retries, receivers that are not ready.  A write is in the peer's
// memory as soon as its packets arrive, whatever became of the sender meanwhile; completions may
// come late; and everything that is outstanding is flushed when a queue pair goes into error. Reads
// are of one packet, as flushes are.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/config.h"
#include "runtime/base/random.h"
#include "runtime/fabric/verbs/device.h"
#include "tests/rig/sim/network.h"
#include "tests/rig/sim/rdma_faults.h"
#include "tests/rig/sim/rdma_memory.h"

namespace nccl_ha::sim {

struct RdmaPacket;
struct RdmaQueuePair;
struct RdmaWork;

/// The functions that a process finds where it would find rdma-core's.
const fabric::verbs::Library& rdma_library();

class RdmaNic {
 public:
  /// Many round trips, and less than any limit by which silence is judged.
  static constexpr Duration stall = std::chrono::milliseconds(10);

  /// What all NICs of a world count together.
  struct Counts {
    uint64_t packets = 0;
    uint64_t lost = 0;        ///< packets that met a lossy or dead link, NIC or queue pair
    uint64_t sent_again = 0;  ///< packets
    /// Times that a device waited for its own timeout, or a queue pair ended while its device had
    /// waited for `stall` or more: a packet is lost, or its repetition came in the wrong order.
    uint64_t stalled = 0;
    uint64_t late = 0;          ///< completions that were held back
    uint64_t after_error = 0;   ///< packets that came for a queue pair in error or gone
    uint64_t lagging = 0;       ///< requests taken after modify_qp to ERR returned
    uint64_t after_death = 0;   ///< writes of devices that had failed
    uint64_t forgotten = 0;     ///< completions that a device had not reported when it failed
    uint64_t kept = 0;          ///< work requests and receives that queue pairs never gave back
    uint64_t refused = 0;       ///< requests, for memory that a device does not know
    uint64_t calls_failed = 0;  ///< of the interface
    uint64_t calls_slow = 0;
    uint64_t bytes_posted = 0;  ///< of writes into memory that count_memory() names
    uint64_t bytes_landed = 0;  ///< of those, what is in that memory
  };
  struct Conditions {
    double late = 0;    ///< part of the completions that are held back
    Duration latest{};  ///< by at most that much
    Duration waited{};  ///< by the thread whose turn it is, in calls that took long
    /// Remote addresses, of which no device finds the memory by any key.
    std::pair<uint64_t, uint64_t> unknown{};
    std::string violation;  ///< empty: nobody broke the rules of the interface
    Counts counts;
    /// Memory of which every byte written is counted; by address.
    std::map<uint64_t, uint64_t> counted;
    /// Queue pairs whose last write into that memory announces nothing: the one that does is to
    /// follow.
    size_t half_posted = 0;
  };

  /// An address for each port.  `conditions` are shared by all NICs of a world and outlive them.
  RdmaNic(Network& network, Conditions& conditions, uint64_t seed, const std::vector<Ip>& addresses,
          std::string name, uint32_t number, const DeviceTraits& traits = {});
  RdmaNic(Network& network, Conditions& conditions, uint64_t seed, Ip address, std::string name,
          uint32_t number)
      : RdmaNic(network, conditions, seed, std::vector{address}, std::move(name), number) {}
  ~RdmaNic();
  RdmaNic(const RdmaNic&) = delete;
  RdmaNic& operator=(const RdmaNic&) = delete;

  /// Its ports, opened as a process opens them; `netdevs` is what their interfaces are called.
  /// `library` outlives the NIC.
  Result<std::vector<fabric::verbs::UsablePort>> open_ports(
      const Config& config, std::span<const std::string> netdevs,
      const fabric::verbs::Library& library = rdma_library());
  /// The first of them.
  Result<fabric::verbs::UsablePort> open(const Config& config, const std::string& netdev,
                                         const fabric::verbs::Library& library = rdma_library());

  /// Its queue pairs, in the order in which they were made.
  std::vector<const RdmaQueuePair*> queue_pairs() const;

  // --- faults
  /// A port loses its link or finds it again; the device says so.  `address` 0: all ports.
  void set_port(bool up, Ip address = 0);
  /// The addresses move to another place of the GID table: queue pairs that use the old one are cut
  /// off, new ones are not.
  void move_gid();
  /// The peers, or the router before them, have other MACs: address handles that were made before
  /// lead nowhere, and nobody is told.
  void move_neighbours() { ++neighbours_; }
  /// How a device ends.
  struct Death {
    /// What it had acknowledged and not yet reported.
    bool forgets = false;
    /// 0: after a reset, every call is refused.  Else the firmware has failed: calls that end
    /// something are taken for done and end nothing, those that make or ask something are refused,
    /// and what comes from the network reaches memory within that time.
    Duration writes_for{};
    /// The firmware hangs instead, and says nothing: calls of queue pairs and queues end when the
    /// kernel has taken the device away, and in vain.  Others, which workers and callers make too,
    /// are refused at once.
    bool hangs = false;
    /// The kernel needs so long until it has taken the device away.
    Duration gone_after = std::chrono::milliseconds(1);
  };
  /// The device fails, says so, and completes nothing any more.
  void fail_for_good(const Death& death);
  void fail_for_good() { fail_for_good({}); }
  /// The same NIC after fail_for_good(), when the kernel has taken it away: another device in its
  /// place, which numbers its keys anew.
  std::unique_ptr<RdmaNic> successor();
  const std::string& name() const { return name_; }
  std::vector<Ip> addresses() const;
  /// It is removed in order: calls are refused from now on, and its memory is gone before its queue
  /// pairs, which serve on until fail_for_good().
  void take_memory();
  bool failed() const { return failed_; }
  /// Its queue pairs of datagrams move to error, as Soft-RoCE's do when one finds no route.
  void break_datagrams();
  /// How its calls fail, and what it does within the rules.
  VerbFaults& verbs() { return verbs_; }
  /// Of a descriptor, as the kernel of its host does it.
  int duplicate(int fd);
  const RdmaMemory::Counts& memory() const { return memory_.counts(); }
  /// What its process has made of it and not given back.
  struct Objects {
    size_t pairs = 0;
    size_t regions = 0;
    size_t relaxed = 0;  ///< of these regions
    size_t queues = 0;
  };
  /// What a device had that has failed is the kernel's to end.
  Objects objects() const;

 private:
  friend struct RdmaFunctions;
  struct Region;
  struct CompletionQueue;
  struct Context;
  struct Device;
  struct Port {
    Ip address = 0;
    uint16_t lid = 0;
    bool up = true;
    uint32_t gid_place = 1;
    Instant wire_free{};
  };

  // --- the device (rdma.cpp)
  void report(ibv_event_type type, size_t port);
  int call(Verb verb, bool may_be_slow = true);
  const Port* port_of(Ip address) const;
  Ip address_of_lid(uint16_t lid) const;
  RdmaQueuePair* find(uint32_t number);
  /// Null: what `domain` knows by that key does not lie there.
  Region* find_region(const ibv_pd* domain, uint32_t key, uint64_t address, uint64_t length,
                      bool local) const;
  /// The driver answers calls that end something, and they end nothing.
  bool lies() const {
    return failed_ && !death_.hangs && network_.now() < gone_at_ && death_.writes_for > Duration{};
  }
  bool hangs() const { return failed_ && death_.hangs && network_.now() < gone_at_; }
  void take_late(const RdmaPacket& packet);
  void vanish();
  void close_channels();
  void break_pair(RdmaQueuePair& pair, ibv_wc_status first);
  void end_slowly(RdmaQueuePair& pair);
  void end_lag(uint32_t number);
  void flush(RdmaQueuePair& pair, ibv_wc_status first);
  void complete(RdmaQueuePair& pair, bool receive, ibv_wc& completion);
  void release(RdmaQueuePair& pair);
  void write(RdmaQueuePair& pair, const Region& region, std::byte* to,
             std::span<const std::byte> bytes);

  // --- packets (rdma_wire.cpp)
  RdmaPacket& new_packet();
  void drop(RdmaPacket& packet);
  void send_packet(const RdmaQueuePair& pair, RdmaPacket& packet);
  void transmit(Port& port, RdmaPacket& packet);
  void deliver(RdmaPacket& packet);
  void arrive(const RdmaPacket& packet);
  void post_datagram(RdmaQueuePair& pair, const ibv_send_wr& request);
  void on_datagram(RdmaQueuePair& pair, const RdmaPacket& packet);

  // --- reliable connections (rdma_connection.cpp)
  void post_send(RdmaQueuePair& pair, const ibv_send_wr& request);
  void count_posted(RdmaQueuePair& pair, const RdmaWork& work);
  void set_half_posted(RdmaQueuePair& pair, bool half);
  void pump(RdmaQueuePair& pair);
  bool read_memory(const RdmaQueuePair& pair, const RdmaWork& work, RdmaPacket& packet) const;
  void on_request(RdmaQueuePair& pair, const RdmaPacket& packet);
  bool take_request(RdmaQueuePair& pair, const RdmaPacket& packet);
  void on_answer(RdmaQueuePair& pair, const RdmaPacket& packet);
  void acknowledged(RdmaQueuePair& pair, uint64_t below);
  void answer(const RdmaQueuePair& pair, uint8_t kind, uint64_t number);
  void arm_timeout(const RdmaQueuePair& pair, Instant due);
  void on_timeout(uint32_t number);

  Network& network_;
  Conditions& conditions_;
  Random random_;
  VerbFaults verbs_;
  RdmaMemory memory_;
  std::vector<Port> ports_;
  const std::string name_;
  const uint32_t number_;
  const DeviceTraits traits_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Device> device_;
  bool failed_ = false;
  bool removing_ = false;
  Death death_;
  Instant failed_at_{};
  Instant gone_at_ = Instant::max();
  uint64_t neighbours_ = 0;  ///< so often they have moved
  uint32_t next_pair_ = 16;
  uint32_t next_key_ = 1;
  std::map<uint32_t, RdmaQueuePair*> pairs_;
  std::map<uint32_t, Region*> regions_;  ///< by either key
  std::vector<CompletionQueue*> queues_;
  std::vector<ibv_comp_channel*> channels_;
  std::vector<ibv_async_event> events_;
  std::vector<std::unique_ptr<RdmaPacket>> packets_;
  std::vector<RdmaPacket*> free_packets_;
};

}  // namespace nccl_ha::sim
