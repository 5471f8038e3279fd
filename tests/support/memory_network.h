// An in-memory network of datagrams for tests: deterministic, on manual time, with loss,
// duplication, reordering, delay, an MTU and packet filters.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/fabric/packet_io.h"
#include "tests/rig/sim/packet_queue.h"

namespace nccl_ha::test {

class MemoryNetwork {
 public:
  explicit MemoryNetwork(uint64_t seed) : random_(seed) {}

  struct Faults {
    double drop = 0;
    double duplicate = 0;
    double reorder = 0;
    Duration delay = std::chrono::microseconds(20);
    size_t datagram_max = 65507;  ///< larger ones vanish, as behind a switch with a small MTU
    /// Decides per datagram; false drops it.
    std::function<bool(fabric::Channel, std::span<const std::byte>)> pass;
  };
  Faults faults;

  struct Counts {
    uint64_t sent = 0;
    uint64_t dropped = 0;
    uint64_t duplicated = 0;
    uint64_t reordered = 0;
  };
  Counts counts;

  std::unique_ptr<fabric::PacketIo> open();
  /// A datagram from nowhere, due at once.
  void inject(uint16_t to_port, std::vector<std::byte> bytes) {
    queues_[to_port].push_front({now_, std::move(bytes)});
  }
  void set_time(Instant now) { now_ = now; }
  /// When the next datagram arrives; nullopt when none is under way.
  std::optional<Instant> next_arrival() const;

 private:
  friend class MemoryIo;
  void transmit(fabric::Channel channel, uint16_t to_port, std::vector<std::byte> bytes);

  Random random_;
  Instant now_{};
  uint16_t next_port_ = 1000;
  std::map<uint16_t, sim::PacketQueue> queues_;
};

}  // namespace nccl_ha::test
