// What the paths of a port have of it: time, memory, the way out, and the lists in which they say
// that they have something to do.  One thread.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "runtime/engine/poller.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/fabric/datagram/completion_queue.h"
#include "runtime/fabric/datagram/hotel.h"
#include "runtime/fabric/datagram/options.h"
#include "runtime/fabric/datagram/path_lists.h"
#include "runtime/fabric/datagram/send_stage.h"
#include "runtime/fabric/memory.h"
#include "runtime/telemetry/counter_file.h"
#include "runtime/telemetry/recorder.h"

namespace nccl_ha::fabric {

class DatagramPath;

/// Knows the paths by their numbers.
class PathTable {
 public:
  /// From the path's destructor.
  virtual void remove(DatagramPath& path) = 0;

 protected:
  ~PathTable() = default;
};

/// A stretch in which registered memory is touched; nests.
class NestingGuard {
 public:
  MemoryGuard& guard() { return guard_; }
  int depth() const { return depth_; }
  void enter() {
    if (depth_++ == 0) {
      guard_.enter();
    }
  }
  void exit() {
    if (--depth_ == 0) {
      guard_.exit();
    }
  }

 private:
  MemoryGuard guard_;
  int depth_ = 0;
};

class GuardScope {
 public:
  explicit GuardScope(NestingGuard& guard) : guard_(guard) { guard_.enter(); }
  ~GuardScope() { guard_.exit(); }
  GuardScope(const GuardScope&) = delete;
  GuardScope& operator=(const GuardScope&) = delete;

 private:
  NestingGuard& guard_;
};

/// What a port is given.  All of it outlives the port.
struct PortServices {
  Memory* memory = nullptr;
  Clock* clock = nullptr;
  TimerWheel* timers = nullptr;
  Random* random = nullptr;
  Recorder* recorder = nullptr;    ///< may be null
  const LostTime* lost = nullptr;  ///< time in which nobody could look; may be null
  CounterPlace counters = {};
};

/// The port has it, by value, so that a path is one step away from all of it; it outlives the
/// paths.
struct PathEnvironment : PortServices {
  PathEnvironment(const PortServices& services, const DatagramOptions& settings,
                  std::unique_ptr<PacketIo> io, uint32_t mtu, Poller& its_poller,
                  PathTable& its_table)
      : PortServices(services),
        options(settings),
        now(services.clock->now()),
        hotel(now),
        counter_block(services.counters, "datagrams " + text(io->local(Channel::command))),
        stage(std::move(io), settings.offload, statistics),
        table(its_table),
        interface_mtu(mtu != 0 ? mtu : static_cast<uint32_t>(stage.io().datagram_bytes_max())),
        poller_(its_poller) {}

  const DatagramOptions options;
  Instant now;  ///< of the pass, or of the call that came in between
  NestingGuard guard;
  Hotel hotel;
  CounterBlock<DatagramPortCounters> counter_block;
  DatagramPortCounters& statistics = *counter_block;
  ReadyList ready;
  ResendList resends;
  AckList acks;
  CompletionQueue completions;
  SendStage stage;
  PathTable& table;
  const uint32_t interface_mtu;  ///< bytes of an IP packet, or of a datagram where there is no IP
  bool acks_due = false;         ///< acknowledgements must leave before this pass ends

  /// The clock is read anew.
  void refresh() { now = clock->now(); }
  uint32_t now_us() const { return static_cast<uint32_t>(now.time_since_epoch().count() / 1000); }
  /// Something is to be done: the next pass does it.
  void wake() { poller_.wake(); }
  void complete(const Completion& completion) {
    completions.push(completion);
    wake();
  }
  /// The path's state has changed; its owner is told.
  void queue_state(DatagramPath& path) {
    completions.states().push_back(&path);
    wake();
  }
  /// Whatever was staged leaves.
  void flush_all() {
    const GuardScope scope(guard);
    stage.flush(Channel::command);
    stage.flush(Channel::data);
  }

  /// Something came or went that is more than a heartbeat: more may follow.
  void mark_active() { active_until_ = now + active_time; }
  /// Payload was sent, and has been acknowledged, is to be sent again, or is given up.
  void on_flight(uint64_t bytes) { payload_in_flight_ += bytes; }
  void on_landing(uint64_t bytes) {
    payload_in_flight_ -= bytes;
    if (bytes != 0) {
      mark_active();
    }
  }
  bool active() const { return now < active_until_ || payload_in_flight_ != 0; }

 private:
  static constexpr Duration active_time = std::chrono::milliseconds(1);
  Instant active_until_{};
  uint64_t payload_in_flight_ = 0;
  Poller& poller_;
};

}  // namespace nccl_ha::fabric
