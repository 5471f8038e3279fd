// How busy a host's own end of a rail is, from two readings of its NIC's counters.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "runtime/base/instant.h"

namespace nccl_ha::ha {

/// Counters of a NIC, which only grow but for queues; what nobody tells stays 0.
struct NicReading {
  Instant at{};
  uint64_t bytes_out = 0;
  uint64_t bytes_in = 0;
  uint64_t pauses_out = 0;  ///< PFC or link-level pause frames sent: this host asks others to stop
  uint64_t pauses_in = 0;   ///< and received: it is asked to
  uint64_t discards = 0;    ///< packets that had no room, either way
  std::optional<uint64_t> queue_out;  ///< bytes, where the NIC tells
  std::optional<uint64_t> queue_in;
};

struct NicLoad {
  Duration interval{};
  uint64_t bytes_out = 0;  ///< all since the reading before
  uint64_t bytes_in = 0;
  uint64_t pauses_out = 0;
  uint64_t pauses_in = 0;
  uint64_t discards = 0;
  double used = 0;    ///< of the outgoing rate, 0 to 1
  uint8_t level = 0;  ///< as a switch tells it: 0 to 255
};

/// The level of a link that is full and nothing else: transfers fill links.
inline constexpr uint8_t level_full_link = 128;
/// That of one that loses packets, or has a queue of queue_full and more.
inline constexpr uint8_t level_discards = 224;
/// So much time of a link's rate in its queue is several round trips of a network of hosts.
inline constexpr Duration queue_full = std::chrono::microseconds(500);

/// Of a queue before a link of `mbps`; of an unknown rate (0) it says nothing.
inline uint8_t queue_level(uint64_t bytes, int64_t mbps) {
  if (mbps <= 0) {
    return 0;
  }
  const double ns = static_cast<double>(bytes) * 8e3 / static_cast<double>(mbps);
  const double full = ns / static_cast<double>(queue_full.count());
  return static_cast<uint8_t>(level_discards * std::min(1.0, full));
}

/// Bytes alone say nothing of queues: up to `busy_from` of the rate the level stays 0, and a full
/// link alone is no more than half.  Who is asked to pause, loses packets or has a queue is
/// congested beyond that.  `mbps`: 10^6 bit/s; 0: unknown, so that bytes do not count.
inline NicLoad nic_load(const NicReading& before, const NicReading& now, int64_t mbps) {
  constexpr double busy_from = 0.9;
  constexpr double pauses_full = 1000;  // in a second: switches repeat them far more often
  const auto grown = [](uint64_t from, uint64_t to) { return to >= from ? to - from : 0; };
  NicLoad load;
  load.interval = now.at - before.at;
  load.bytes_out = grown(before.bytes_out, now.bytes_out);
  load.bytes_in = grown(before.bytes_in, now.bytes_in);
  load.pauses_out = grown(before.pauses_out, now.pauses_out);
  load.pauses_in = grown(before.pauses_in, now.pauses_in);
  load.discards = grown(before.discards, now.discards);
  const double seconds = static_cast<double>(load.interval.count()) * 1e-9;
  if (seconds <= 0) {
    return load;
  }
  if (mbps > 0) {
    const double bits = static_cast<double>(load.bytes_out) * 8;
    load.used = std::clamp(bits / (static_cast<double>(mbps) * 1e6 * seconds), 0.0, 1.0);
  }
  double level = std::max(0.0, (load.used - busy_from) / (1 - busy_from)) * level_full_link;
  if (load.pauses_in != 0) {
    const double share = static_cast<double>(load.pauses_in) / (pauses_full * seconds);
    level = std::max(level, 64 + 160 * std::min(1.0, share));
  }
  if (load.discards != 0) {
    level = std::max<double>(level, level_discards);
  }
  level = std::max<double>(level, queue_level(now.queue_out.value_or(0), mbps));
  load.level = static_cast<uint8_t>(std::min(level, 255.0));
  return load;
}

}  // namespace nccl_ha::ha
