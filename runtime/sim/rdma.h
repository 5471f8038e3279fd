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
#include <vector>

#include "runtime/clock.h"
#include "runtime/config.h"
#include "runtime/fabric/verbs/device.h"
#include "runtime/random.h"
#include "runtime/sim/network.h"

namespace nccl_ha::sim {

struct RdmaQueuePair;
struct RdmaPacket;

class RdmaNic {
 public:
  /// What all NICs of a world count together.
  struct Counts {
    uint64_t packets = 0;
    uint64_t lost = 0;          ///< packets that met a lossy or dead link, NIC or queue pair
    uint64_t sent_again = 0;    ///< packets
    uint64_t late = 0;          ///< completions that were held back
    uint64_t after_error = 0;   ///< packets that came for a queue pair in error or gone
    uint64_t bytes_posted = 0;  ///< of writes into memory that count_memory() names
    uint64_t bytes_landed = 0;  ///< of those, what is in that memory
  };
  struct Conditions {
    double late = 0;        ///< part of the completions that are held back
    Duration latest{};      ///< by at most that much
    std::string violation;  ///< empty: nobody broke the rules of the interface
    Counts counts;
    /// Memory of which every byte written is counted; by address.
    std::map<uint64_t, uint64_t> counted;
  };

  /// `conditions` are shared by all NICs of a world and outlive them.
  RdmaNic(Network& network, Conditions& conditions, uint64_t seed, Ip address, std::string name,
          uint32_t number);
  ~RdmaNic();
  RdmaNic(const RdmaNic&) = delete;
  RdmaNic& operator=(const RdmaNic&) = delete;

  /// Its only port, opened as a process opens it; `netdev` is what the interface is called.
  Result<fabric::verbs::UsablePort> open(const Config& config, const std::string& netdev);

  // --- faults
  /// The port loses its link or finds it again; the device says so.
  void set_port(bool up);
  /// The address moves to another place of the GID table: queue pairs that use the old one are cut
  /// off, new ones are not.
  void move_gid();
  /// The device fails, says so and does nothing any more; `forgets` what it had acknowledged and
  /// not yet reported.
  void fail_for_good(bool forgets = false);
  bool failed() const { return failed_; }

 private:
  friend struct RdmaFunctions;
  struct Region;
  struct CompletionQueue;
  struct Context;
  struct Device;

  void report(ibv_event_type type);
  void post_send(RdmaQueuePair& pair, const ibv_send_wr& request);
  void pump(RdmaQueuePair& pair);
  bool read_memory(const RdmaQueuePair& pair, RdmaPacket& packet) const;
  void send_packet(const RdmaQueuePair& pair, RdmaPacket packet);
  void transmit(Ip to, Duration wire_time, const RdmaPacket& packet);
  void arrive(const RdmaPacket& packet);
  void on_request(RdmaQueuePair& pair, const RdmaPacket& packet);
  bool take_request(RdmaQueuePair& pair, const RdmaPacket& packet);
  void on_answer(RdmaQueuePair& pair, const RdmaPacket& packet);
  void acknowledged(RdmaQueuePair& pair, uint64_t below);
  void answer(const RdmaQueuePair& pair, uint8_t kind, uint64_t psn);
  void arm(RdmaQueuePair& pair);
  void on_timeout(uint32_t number);
  void break_pair(RdmaQueuePair& pair, ibv_wc_status first);
  void flush(RdmaQueuePair& pair, ibv_wc_status first);
  void complete(ibv_cq* queue, const ibv_wc& completion);
  RdmaQueuePair* find(uint32_t number);
  Region* find_region(uint32_t key, uint64_t address, uint64_t length, bool local) const;

  Network& network_;
  Conditions& conditions_;
  Random random_;
  const Ip address_;
  const std::string name_;
  const uint32_t number_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Device> device_;
  bool up_ = true;
  bool failed_ = false;
  uint32_t gid_place_ = 1;
  Instant wire_free_{};
  uint32_t next_pair_ = 16;
  uint32_t next_key_ = 1;
  std::map<uint32_t, RdmaQueuePair*> pairs_;
  std::map<uint32_t, Region*> regions_;  ///< by either key
  std::vector<CompletionQueue*> queues_;
  std::vector<ibv_async_event> events_;
};

}  // namespace nccl_ha::sim
