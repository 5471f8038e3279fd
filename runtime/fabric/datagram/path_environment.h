// What the paths of a port have of it: time, memory, the way out, and the lists in which they say
// that they have something to do.  One thread.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/engine/poller.h"
#include "runtime/fabric/datagram/ack_list.h"
#include "runtime/fabric/datagram/activity.h"
#include "runtime/fabric/datagram/completion_queue.h"
#include "runtime/fabric/datagram/hotel.h"
#include "runtime/fabric/datagram/nesting_guard.h"
#include "runtime/fabric/datagram/options.h"
#include "runtime/fabric/datagram/path_table.h"
#include "runtime/fabric/datagram/port_services.h"
#include "runtime/fabric/datagram/ready_list.h"
#include "runtime/fabric/datagram/segment.h"
#include "runtime/fabric/datagram/send_stage.h"

namespace nccl_ha::fabric {

/// The port has it, by value, so that a path is one step away from all of it; it outlives the
/// paths.
struct PathEnvironment : PortServices {
  PathEnvironment(const PortServices& services, const DatagramOptions& settings,
                  std::unique_ptr<PacketIo> io, uint32_t mtu, Poller& its_poller)
      : PortServices(services),
        options(settings),
        now(services.clock->now()),
        hotel(now),
        counter_block(services.counters, "datagrams " + text(io->local(Channel::command))),
        stage(std::move(io), settings.offload, statistics),
        interface_mtu(mtu != 0 ? mtu : static_cast<uint32_t>(stage.io().datagram_bytes_max())),
        poller_(its_poller) {}

  const DatagramOptions options;
  Instant now;  ///< of the pass, or of the call that came in between
  NestingGuard guard;
  Hotel hotel;
  CounterBlock<DatagramPortCounters> counter_block;
  DatagramPortCounters& statistics = *counter_block;
  PathTable paths;
  ReadyList ready;
  ResendList resends;
  size_t resends_passed = 0;  ///< looked at in vain since one came, or room for some
  AckList acks;
  CompletionQueue completions;
  SendStage stage;
  Activity activity;
  std::vector<std::byte> opened;  ///< payload of the frame at hand, where it came encrypted
  const uint32_t interface_mtu;   ///< bytes of an IP packet, or of a datagram where there is no IP
  bool acks_due = false;          ///< acknowledgements must leave before this pass ends

  /// The clock is read anew.
  void refresh() { now = clock->now(); }
  uint32_t now_us() const { return static_cast<uint32_t>(now.time_since_epoch().count() / 1000); }
  Moment moment() const { return {now, lost == nullptr ? Duration(0) : lost->total()}; }
  /// All of them wait for their congestion windows.
  bool resends_wait() const { return resends_passed >= resends.size(); }
  /// Something is to be done: the next pass does it.
  void wake() { poller_.wake(); }
  void record(TraceEvent event, uint32_t path, uint64_t a, uint64_t b) {
    if (recorder != nullptr) {
      recorder->record(event, path, a, b, now);
    }
  }

  /// A path that is made, and one that is being destroyed, which has sent what it had staged: it
  /// leaves the table, the completions, and the ready and resend lists.  Its Acknowledger takes
  /// itself off `acks`.
  void enter(DatagramPath& path);
  void leave(DatagramPath& path);
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

 private:
  Poller& poller_;
};

}  // namespace nccl_ha::fabric
