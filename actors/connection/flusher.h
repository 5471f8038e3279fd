// Flushes: what NICs wrote into GPU memory is made visible to the GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "actors/connection/announcer.h"
#include "actors/connection/side.h"
#include "actors/receive_channel.h"
#include "runtime/engine/timer_wheel.h"

namespace nccl_ha {

/// A read back pushes only what came through its own queue pair's NIC, so that each NIC that works
/// is asked.  One that failed can push nothing any more: its bytes get time instead.  One thread.
class Flusher {
 public:
  Flusher(const ConnectionParts& parts, ReceiveChannel& channel, Announcer& announcer);
  ~Flusher() { stop(); }
  Flusher(const Flusher&) = delete;
  Flusher& operator=(const Flusher&) = delete;
  void stop();

  /// Begins a flush that the caller has submitted.
  void flush(ReceiveRequest& request);
  void on_completion(const fabric::Completion& completion, Lane& lane);
  /// A lane is being taken down, or brought something after that: what its NIC has under way to
  /// memory needs a while.
  void on_lane_down();
  /// Flushes that waited for a path or a time are tried again.
  void flush_waiting();
  /// The sender has left: no path is made any more, and where none works time has to do.
  void stay_alone();

 private:
  /// False: nothing was asked, or can have come over it.
  bool ask(size_t lane, ReceiveRequest& request);
  bool ask_primaries(ReceiveRequest& request);
  bool ask_others(ReceiveRequest& request);
  bool post(size_t lane, ReceiveRequest& request);
  void wait(ReceiveRequest& request);
  void end(ReceiveRequest& request);
  bool by_time() const { return alone_ && !paths_.any_usable(); }

  ConnectionState& state_;
  PathSet& paths_;
  ReceiveChannel& channel_;
  Announcer& announcer_;
  std::vector<uint16_t> waiting_;  ///< for a lane or a time; indexes of requests
  Instant drained_at_{};  ///< what NICs that failed had under way to memory is there by then
  bool alone_ = false;
  Timer timer_;
};

}  // namespace nccl_ha
