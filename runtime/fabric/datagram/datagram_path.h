// A path over unreliable datagrams (usnic's "endpoint").  Made by DatagramPort::create_path.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/fabric/datagram/acknowledger.h"
#include "runtime/fabric/datagram/network_estimate.h"
#include "runtime/fabric/datagram/path_check.h"
#include "runtime/fabric/datagram/path_ends.h"
#include "runtime/fabric/datagram/path_environment.h"
#include "runtime/fabric/datagram/posted_receives.h"
#include "runtime/fabric/datagram/receive_window.h"
#include "runtime/fabric/datagram/request_ring.h"
#include "runtime/fabric/datagram/segment_sizes.h"
#include "runtime/fabric/datagram/send_window.h"
#include "runtime/fabric/datagram/silence.h"

namespace nccl_ha::fabric {

/// Leads its parts: requests are cut into segments, which the send window holds until they are
/// acknowledged; what arrives goes through the receive window to its place, to posted receives and
/// into acknowledgements.
class DatagramPath final : public Path {
 public:
  /// `id` is the number that the environment's table gave.
  DatagramPath(PathEnvironment& environment, const PathOptions& options, PathOwner* owner,
               uint32_t id);
  ~DatagramPath() override;

  std::span<const std::byte> local_address() const override { return ends_.local_bytes(); }
  Result<void> connect(std::span<const std::byte> peer_address) override;
  PathState state() const override { return state_; }
  CompletionStatus cause() const override { return cause_; }
  [[nodiscard]] Errc post_write(const WritePost& post) override;
  [[nodiscard]] Errc post_receive() override;
  uint64_t progress() const override { return statistics_.segments_acked; }
  void flush_acks() override { acks_.hurry(); }
  void failure_domains(FailureDomains& domains) const override;
  void fail(const Error& why) override;
  std::string describe() const override;

  const DatagramPathCounters& statistics() const { return statistics_; }
  /// usnic's self-check: nullopt when the parts are sound and the counters agree with them, else
  /// what does not hold.
  std::optional<std::string> self_check() const;

  // For the port, which pulls segments and acknowledgements out of its paths, inside its guard.
  uint32_t id() const { return id_; }
  uint64_t token() const { return ends_.local().token.told(); }
  uint64_t domain() const { return options_.domain; }
  /// The path's frames are sealed.
  bool sealed() const { return options_.shared.has_value(); }
  /// The payload of a whole frame; nullopt: it is not the peer's, or came before.
  std::optional<std::span<const std::byte>> open(const FrameHeader& header,
                                                 std::span<const std::byte> frame);
  bool fallback() const { return options_.fallback; }
  const SocketAddress& peer_command() const { return ends_.peer().command; }
  const SocketAddress& peer_data() const { return ends_.peer().data; }
  ReadyLink& ready_link() { return ready_link_; }
  size_t completions_max() const { return requests_.capacity() + receives_.capacity(); }
  /// There is a segment to send, and window and credits allow it.
  bool sendable() const {
    return state_ == PathState::ready && requests_.unsent() &&
           outgoing_.has_room(network_.window());
  }
  bool send_next();  ///< stages one segment; false: the path failed
  bool congested() const { return outgoing_.in_flight() >= network_.window(); }
  bool transmit_again(Segment& segment);
  /// A segment that was sent is lost, or did not leave.
  void queue_resend(Segment& segment);
  void on_evicted(Segment& segment);
  void send_ack();  ///< stages what is owed
  void on_frame(const FrameHeader& header, std::span<const std::byte> payload);
  /// A write with this sequence number would be new.
  bool takes(uint32_t sequence) const {
    return state_ != PathState::error && incoming_.check(sequence) == ReceiveWindow::Verdict::fresh;
  }
  /// The frame's payload lies where it belongs.
  void on_placed(const FrameHeader& header, std::span<const std::byte> payload) {
    on_segment(header, payload, true);
    handle_ack(header, {});
  }
  void on_fast_receive() { ++statistics_.fast_receives; }
  void report(const Completion& completion) { owner_->on_completion(completion); }
  void report_state() {
    const Error error = error_;
    owner_->on_path_state(*this, state_, error);
  }

 private:
  // sending (path_send.cpp)
  void make_ready() {
    if (env_.ready.push(ready_link_)) {
      env_.wake();
    }
  }
  bool transmit(Segment& segment, Channel channel);
  void send_command(const FrameHeader& header, std::span<const std::byte> payload = {}) {
    env_.stage.command(peer_command(), header, payload, seal_.get());
  }
  FrameHeader header_for(const Segment& segment, const WorkRequest& request);
  void handle_ack(const FrameHeader& header, std::span<const std::byte> selective);
  Duration sample_of(const FrameHeader& header) const;
  void detect_losses();
  void replace(Segment& segment);
  void complete_requests();
  void arm_tail_probe();
  void send_tail_probe();
  bool starved() const;  ///< work to send, nothing in flight, no credits

  // receiving (path_receive.cpp)
  void on_segment(const FrameHeader& header, std::span<const std::byte> payload, bool in_place);
  void arrived(const FrameHeader& header, std::span<const std::byte> payload, bool in_place);
  bool put(const FrameHeader& header, std::span<const std::byte> payload);
  void refuse(const FrameHeader& header);
  void deliver();
  bool deliver_front();

  // birth, check and death (path_connect.cpp)
  void send_check();
  void on_ping(const FrameHeader& header);
  void on_pong(const FrameHeader& header);
  void on_timer();
  void finish_check();
  /// Allocates nothing.
  void break_path(CompletionStatus first, Error why);
  void flush_requests(CompletionStatus first);
  Duration connect_limit() const;
  /// Bytes of a frame beside its payload.
  uint32_t overhead() const {
    return static_cast<uint32_t>(header_bytes + (sealed() ? seal_bytes : 0));
  }

  PathEnvironment& env_;
  PathOwner* owner_;
  const PathOptions options_;
  const uint32_t id_;
  PathEnds ends_;
  std::unique_ptr<FrameSeal> seal_;  ///< from connect() on; null: frames carry none
  PathState state_ = PathState::idle;
  Error error_;
  CompletionStatus cause_ = CompletionStatus::ok;
  Timer timer_;  ///< of the check while connecting, of the tail probe when ready
  PathCheck check_;
  CounterBlock<DatagramPathCounters> counters_;
  DatagramPathCounters& statistics_ = *counters_;

  // sending
  RequestRing requests_;
  SegmentSizes sizes_;
  SendWindow outgoing_;
  NetworkEstimate network_;
  Silence silence_;
  ReadyLink ready_link_{*this};

  // receiving
  ReceiveWindow incoming_;
  PostedReceives receives_;
  Acknowledger acks_;
};

}  // namespace nccl_ha::fabric
