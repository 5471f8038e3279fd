// One NIC's datagram engine on one worker (usnic's "module"): the command and the data channel,
// the list of paths ready to send, the retransmission list, the hotel, and the completions of all
// paths.  Owner thread only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/clock.h"
#include "runtime/fabric/datagram/hotel.h"
#include "runtime/fabric/datagram/options.h"
#include "runtime/fabric/datagram/send_queue.h"
#include "runtime/fabric/datagram/statistics.h"
#include "runtime/fabric/datagram/wire.h"
#include "runtime/fabric/memory.h"
#include "runtime/fabric/packet_io.h"
#include "runtime/fabric/path.h"
#include "runtime/poller.h"
#include "runtime/random.h"
#include "runtime/recorder.h"
#include "runtime/timer_wheel.h"

namespace nccl_ha::fabric {

/// Datagrams being gathered for one channel, sent with one call.
class SendBatch {
 public:
  static constexpr size_t messages_max = 16;
  static constexpr size_t frames_max = 64;
  static constexpr size_t datagram_bytes = 1216;  ///< of the command channel, fits any IPv6 path

  bool empty() const { return count_ == 0; }

  std::array<OutDatagram, messages_max> messages;
  std::array<iovec, frames_max * 3> parts;
  size_t part_count = 0;
  size_t count_ = 0;
  // Command channel: frames are copied; data channel: headers only, payload stays in place.
  std::array<std::array<std::byte, datagram_bytes>, messages_max> copies;
  std::array<std::array<std::byte, header_bytes>, frames_max> headers;
  std::array<Segment*, frames_max> segments;   ///< data channel: whose frame it is
  std::array<uint8_t, frames_max> message_of;  ///< data channel: which message it went into
  size_t frame_count = 0;
  std::array<size_t, messages_max> message_bytes;
  std::array<const DatagramPath*, messages_max> message_path;
};

class DatagramPort final : public Poller, private PacketSink {
 public:
  struct Environment {
    Memory* memory = nullptr;
    Clock* clock = nullptr;
    TimerWheel* timers = nullptr;
    Random* random = nullptr;
    Recorder* recorder = nullptr;    ///< may be null
    const LostTime* lost = nullptr;  ///< time in which nobody could look; may be null
  };

  /// `interface_mtu`: bytes of an IP packet; 0 where there is no IP: what `io` takes.
  DatagramPort(std::unique_ptr<PacketIo> io, const DatagramOptions& options,
               const Environment& environment, uint32_t interface_mtu);
  ~DatagramPort() override;

  /// The path is the caller's; it must be destroyed before the port.
  Result<std::unique_ptr<Path>> create_path(const PathOptions& options, PathOwner* owner);

  // Poller
  unsigned poll(Clock& time) override;
  Duration max_poll_gap() const override;
  std::optional<Instant> next_deadline() override;
  size_t wait_fds(std::span<int> out) const override;
  bool prepare_sleep() override;

  const PortStatistics& statistics() const { return statistics_; }
  const DatagramOptions& options() const { return options_; }
  size_t path_count() const { return live_paths_; }
  PacketIo& io() { return *io_; }

 private:
  friend class DatagramPath;
  friend class GuardScope;

  // PacketSink
  Placement place(std::span<const std::byte> head, size_t total, size_t segment) override;
  void placed(size_t total) override;
  void packet(std::span<const std::byte> datagram) override;

  DatagramPath* find(const FrameHeader& header);
  void remove(DatagramPath& path);

  // sending (port_send.cpp)
  unsigned progress_sends();
  unsigned progress_resends();
  unsigned progress_acks();
  bool stage_command(DatagramPath& path, const FrameHeader& header,
                     std::span<const std::byte> payload);
  bool stage_data(DatagramPath& path, Segment& segment, const FrameHeader& header,
                  std::span<const iovec> payload);
  bool stage_probe(DatagramPath& path, const FrameHeader& header, size_t payload_bytes);
  void flush(Channel channel);
  void flush_all();
  void make_ready(DatagramPath& path);
  void queue_resend(Segment& segment);
  void schedule_ack(DatagramPath& path, bool urgent);
  void unlist_ack(DatagramPath& path);

  // completions
  void complete(const Completion& completion);
  void queue_state(DatagramPath& path);
  unsigned dispatch();

  bool nothing_waits() const;
  void look_whether_to_doze();
  void acknowledge_all();
  /// Something came or went that is more than a heartbeat: more may follow.
  void mark_active() { active_until_ = now_ + active_time; }
  /// Payload was sent, and has been acknowledged, is to be sent again, or is given up.
  void on_flight(uint64_t bytes) { payload_in_flight_ += bytes; }
  void on_landing(uint64_t bytes) {
    payload_in_flight_ -= bytes;
    if (bytes != 0) {
      mark_active();
    }
  }
  /// Something is to be done: the next pass does it.
  void wake() { back_off(false); }
  uint32_t now_us() const;

  std::unique_ptr<PacketIo> io_;
  DatagramOptions options_;
  Environment env_;
  uint32_t interface_mtu_;
  size_t command_bytes_;  ///< largest datagram of the command channel
  MemoryGuard guard_;
  int guard_depth_ = 0;
  Instant now_{};
  Hotel hotel_;
  PortStatistics statistics_;

  std::vector<DatagramPath*> paths_;
  std::vector<uint16_t> generations_;
  std::vector<uint32_t> free_paths_;
  size_t live_paths_ = 0;
  size_t fallback_paths_ = 0;  ///< of these
  static constexpr Duration active_time = std::chrono::milliseconds(1);
  Instant active_until_{};
  Instant look_at_{};  ///< while it is backed off: not before
  uint64_t payload_in_flight_ = 0;

  // ready-to-send ring (intrusive, FIFO)
  DatagramPath* ready_head_ = nullptr;
  DatagramPath* ready_tail_ = nullptr;
  Segment* resend_head_ = nullptr;
  Segment* resend_tail_ = nullptr;
  bool resends_blocked_ = false;  ///< all of them wait for their congestion windows
  // delayed acknowledgements in deadline order, urgent ones apart
  std::vector<DatagramPath*> urgent_acks_;
  DatagramPath* ack_head_ = nullptr;
  DatagramPath* ack_tail_ = nullptr;

  SendBatch command_;
  SendBatch data_;

  std::vector<Completion> completions_;  // ring
  size_t completion_head_ = 0;
  size_t completion_count_ = 0;
  size_t completion_need_ = 0;
  std::vector<DatagramPath*> state_events_;

  // the packet being placed
  static constexpr size_t place_frames_max = 64;
  std::array<std::array<std::byte, header_bytes>, place_frames_max> place_headers_;
  std::array<iovec, place_frames_max * 2 + 1> place_parts_;
  DatagramPath* place_path_ = nullptr;
  size_t place_count_ = 0;
  size_t place_segment_ = 0;
  size_t place_rest_ = 0;  // bytes behind the placed frames, read into scratch_
  uint32_t place_sequence_ = 0;
  std::vector<std::byte> zeros_;    // padding of full-size pings
  std::vector<std::byte> scratch_;  // frames without a place of their own
  unsigned pass_ = 0;
  bool acks_due_ = false;   ///< acknowledgements must leave before this pass ends
  bool data_busy_ = false;  ///< the last look at the data channel found something
  bool first_packet_ = false;
  bool fast_received_ = false;
};

/// Holds the port's memory guard; nests.
class GuardScope {
 public:
  explicit GuardScope(DatagramPort& port) : port_(port) {
    if (port_.guard_depth_++ == 0) {
      port_.guard_.enter();
    }
  }
  ~GuardScope() {
    if (--port_.guard_depth_ == 0) {
      port_.guard_.exit();
    }
  }
  GuardScope(const GuardScope&) = delete;
  GuardScope& operator=(const GuardScope&) = delete;

 private:
  DatagramPort& port_;
};

}  // namespace nccl_ha::fabric
