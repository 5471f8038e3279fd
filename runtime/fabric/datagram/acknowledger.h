// What a path owes its peer of acknowledgement: with the next frame that leaves, after a delay, or
// at once.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "runtime/fabric/datagram/path_environment.h"
#include "runtime/fabric/datagram/receive_window.h"

namespace nccl_ha::fabric {

class Acknowledger {
 public:
  /// `leisure`: PathOptions::ack_leisure.
  Acknowledger(PathEnvironment& environment, DatagramPath& path, DatagramPathCounters& statistics,
               Duration leisure)
      : env_(environment),
        statistics_(statistics),
        link_(path),
        delay_(environment.options.ack_delay + leisure),
        every_(environment.options.ack_every * (leisure > Duration(0) ? leisurely_times : 1)) {}
  ~Acknowledger() { env_.acks.forget(link_); }
  Acknowledger(const Acknowledger&) = delete;
  Acknowledger& operator=(const Acknowledger&) = delete;

  /// A new segment came, which its sender sent at `sent_us`.  `end`: the last of what was posted.
  void on_arrival(uint32_t sent_us, bool end) {
    echo_us_ = sent_us;
    echo_at_ = env_.now;
    have_echo_ = true;
    ++arrivals_;
    ends_ += end ? 1 : 0;
  }
  /// How long an acknowledgement may wait, here and at the peer.
  Duration delay() const { return delay_; }
  /// A delay would leave the sender with little room.
  bool many() const { return arrivals_ >= every_ || ends_ >= env_.options.ack_every; }
  /// Segments were delivered, or could not be.  A sender without credits waits for news of some.
  void on_credits(uint32_t credits) {
    if (credits == 0) {
      credits_closed_ = true;
    } else if (credits_closed_) {
      credits_closed_ = false;
      owe(true);
    }
  }

  bool owes() const { return arrivals_ != 0 || link_.urgent || link_.delayed; }
  void owe(bool urgent) {
    env_.wake();
    if (urgent) {
      env_.acks.urge(link_);
    } else {
      env_.acks.delay(link_, env_.now + delay_);
    }
  }
  /// What is owed leaves before the pass ends.
  void hurry() {
    if (arrivals_ != 0) {
      owe(true);
      env_.acks_due = true;
    }
  }

  /// A frame that leaves anyway takes along what there is to say.
  void piggyback(FrameHeader& header, const ReceiveWindow& window) {
    write(header, window);
    if (window.gap()) {
      return;  // the bitmap has to follow
    }
    if (arrivals_ != 0 || link_.urgent) {
      ++statistics_.acks_piggybacked;
    }
    settle();
  }
  /// So does one that leaves for nothing else.
  void acknowledge(FrameHeader& header, const ReceiveWindow& window) {
    write(header, window);
    ++statistics_.acks_sent;
    settle();
  }
  /// Nothing is owed, nor has to be said.
  void settle() {
    arrivals_ = 0;
    ends_ = 0;
    env_.acks.settle(link_);
  }

 private:
  /// Parts of a long write are acknowledged so many times less often: still a small share of the
  /// window (HA_NCCL_DGRAM_WINDOW), and each acknowledgement is a packet.
  static constexpr uint32_t leisurely_times = 8;

  void write(FrameHeader& header, const ReceiveWindow& window) {
    header.sent_us = env_.now_us();
    header.flags |= flag_ack;
    header.acknowledge = window.next();
    header.credits = static_cast<uint16_t>(std::min<uint32_t>(window.credits(), UINT16_MAX));
    if (have_echo_) {
      const int64_t held =
          std::chrono::duration_cast<std::chrono::microseconds>(env_.now - echo_at_).count();
      if (held >= 0 && held < UINT16_MAX) {
        header.flags |= flag_echo;
        header.echo_us = echo_us_;
        header.ack_delay_us = static_cast<uint16_t>(held);
      }
      have_echo_ = false;
    }
  }

  PathEnvironment& env_;
  DatagramPathCounters& statistics_;
  AckLink link_;
  const Duration delay_;
  const uint32_t every_;  ///< arrivals
  uint32_t echo_us_ = 0;  ///< the peer's time of the newest segment
  Instant echo_at_{};     ///< when that came
  bool have_echo_ = false;
  uint32_t arrivals_ = 0;        ///< segments that no frame has acknowledged
  uint32_t ends_ = 0;            ///< of them: the last ones of what was posted
  bool credits_closed_ = false;  ///< the peer was left without
};

}  // namespace nccl_ha::fabric
