// A path over unreliable datagrams (usnic's "endpoint").  Made by DatagramPort::create_path.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/fabric/datagram/copy.h"
#include "runtime/fabric/datagram/path_environment.h"
#include "runtime/fabric/datagram/receive_window.h"

namespace nccl_ha::fabric {

class DatagramPath final : public Path {
 public:
  /// `id` is its number in the environment's table.
  DatagramPath(PathEnvironment& environment, const PathOptions& options, PathOwner* owner,
               uint32_t id);
  ~DatagramPath() override;

  std::span<const std::byte> local_address() const override { return local_bytes_; }
  Result<void> connect(std::span<const std::byte> peer_address) override;
  PathState state() const override { return state_; }
  CompletionStatus cause() const override { return cause_; }
  [[nodiscard]] Errc post_write(const WritePost& post) override;
  [[nodiscard]] Errc post_send(const SendPost& post) override;
  [[nodiscard]] Errc post_receive(const ReceivePost& post) override;
  uint64_t progress() const override { return statistics_.segments_acked; }
  void flush_acks() override;
  void failure_domains(FailureDomains& domains) const override;
  void fail(const Error& why) override;
  std::string describe() const override;

  const DatagramPathCounters& statistics() const { return statistics_; }
  /// usnic's self-check: nullopt when the counters agree with the state, else what does not.
  std::optional<std::string> self_check() const;
  uint32_t mtu() const { return mtu_; }
  uint32_t congestion_window() const { return congestion_.window(); }
  const RttEstimator& rtt() const { return rtt_; }

  // For the port, which pulls segments and acknowledgements out of its paths, inside its guard.
  uint32_t id() const { return id_; }
  uint64_t token() const { return local_.token; }
  uint64_t domain() const { return options_.domain; }
  bool fallback() const { return options_.fallback; }
  const SocketAddress& peer_command() const { return peer_.command; }
  PathLinks& links() { return links_; }
  size_t completions_max() const { return requests_.size() + receives_.size(); }
  /// There is a segment to send, and window and credits allow it.
  bool sendable() const;
  bool send_next();  ///< stages one segment; false: batch full or the path failed
  bool congested() const { return in_flight_ >= congestion_.window(); }
  bool transmit_again(Segment& segment);
  /// A segment that was sent is lost, or did not leave.
  void queue_resend(Segment& segment);
  void on_evicted(Segment& segment);
  void send_ack();  ///< stages what is owed
  void on_frame(const FrameHeader& header, std::span<const std::byte> payload);
  /// A write with this sequence number would be new.
  bool takes(uint32_t sequence) const {
    return state_ != PathState::error && window_.check(sequence) == ReceiveWindow::Verdict::fresh;
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
  [[nodiscard]] Errc push(WorkRequest&& request);
  void make_ready() {
    if (env_.ready.push(links_)) {
      env_.wake();
    }
  }
  bool transmit(Segment& segment, Channel channel);
  FrameHeader header_for(const Segment& segment, const WorkRequest& request);
  bool payload_of(const Segment& segment, const WorkRequest& request, iovec (&parts)[gathers_max],
                  size_t* count);
  void plan_segments(WorkRequest& request) const;
  void stamp(FrameHeader& header);  ///< times and the piggy-backed acknowledgement
  void handle_ack(const FrameHeader& header, std::span<const std::byte> selective);
  void acknowledged(Segment& segment);
  uint32_t apply_selective(uint32_t from, std::span<const std::byte> bitmap);
  void detect_losses();
  void complete_requests();
  void arm_tail_probe();
  void send_tail_probe();
  bool budget_spent();
  bool starved() const;  ///< work to send, nothing in flight, no credits

  // receiving (path_receive.cpp)
  void on_segment(const FrameHeader& header, std::span<const std::byte> payload, bool in_place);
  std::byte* destination(const FrameHeader& header);
  void refuse(const FrameHeader& header);
  void arrived(const FrameHeader& header, std::span<const std::byte> payload, bool in_place);
  void deliver();
  bool deliver_front();
  void schedule_ack(bool urgent);

  // connecting (path_connect.cpp)
  void send_check();
  void on_ping(const FrameHeader& header);
  void on_pong(const FrameHeader& header);
  void on_timer();
  void finish_check(uint32_t mtu);

  void break_path(CompletionStatus first, const Error& why);
  Duration connect_limit() const {
    return options_.connect_limit > Duration(0) ? options_.connect_limit
                                                : env_.options.connect_timeout;
  }

  struct Receive {
    uint64_t id;
    std::byte* address;
    uint32_t length;
    uint32_t key;
  };

  PathEnvironment& env_;
  PathOwner* owner_;
  const PathOptions options_;
  const uint32_t id_;
  WireAddress local_;
  std::array<std::byte, wire_address_bytes> local_bytes_{};
  WireAddress peer_;
  PathState state_ = PathState::idle;
  Error error_;
  CompletionStatus cause_ = CompletionStatus::ok;
  bool stale_peer_ = true;  ///< connect() not called: nothing may be sent

  // sending
  std::vector<WorkRequest> requests_;  // ring, power of two
  uint32_t request_mask_;
  uint32_t request_head_ = 0;  ///< oldest incomplete
  uint32_t request_next_ = 0;  ///< next to give segments to
  uint32_t request_tail_ = 0;
  std::vector<Segment> segments_;  // ring by sequence
  uint32_t segment_mask_ = 0;
  uint32_t una_ = 0;        ///< oldest unacknowledged sequence
  uint32_t next_ = 0;       ///< next sequence to send
  uint32_t limit_ = 0;      ///< first sequence that may not be sent (credits)
  uint32_t in_flight_ = 0;  ///< segments in the network as far as we know
  uint64_t in_flight_bytes_ = 0;
  std::array<uint64_t, channel_count> order_{};  ///< transmissions per channel
  std::array<uint64_t, channel_count>
      acked_order_{};  ///< newest transmission known to have arrived
  uint32_t duplicate_acks_ = 0;
  uint32_t mtu_ = 0;
  uint32_t segment_payload_max_ = 0;
  uint32_t tiny_max_ = 0;
  uint64_t bytes_max_ = 0;  ///< in flight, from the peer's socket buffer
  uint16_t fragment_ = 0;
  Instant progress_{};  ///< of acknowledgement, or when the network was last empty
  Instant last_backoff_{};
  // Of the silence that timeouts met.
  Instant silent_after_{};  ///< what progress_ was
  Moment silent_since_{};   ///< the first of these timeouts
  RttEstimator rtt_;
  CongestionControl congestion_;
  PathLinks links_{*this};

  // receiving
  ReceiveWindow window_;
  std::vector<Receive> receives_;  // ring, power of two
  uint32_t receive_mask_;
  uint32_t receive_head_ = 0;
  uint32_t receive_tail_ = 0;
  uint32_t echo_us_ = 0;
  Instant echo_at_{};
  bool have_echo_ = false;
  uint32_t unacked_arrivals_ = 0;
  uint32_t stashed_ = 0;
  bool credits_closed_ = false;

  // connecting
  Timer timer_;
  enum class TimerUse : uint8_t { none, check, tail_probe } timer_use_ = TimerUse::none;
  std::vector<uint32_t> candidates_;
  size_t candidate_ = 0;
  uint32_t attempt_ = 0;
  std::array<std::optional<FrameHeader>, channel_count> early_pings_;
  uint32_t candidate_tries_ = 0;
  bool small_answered_ = false;
  bool full_answered_ = false;
  Instant check_deadline_{};

  CounterBlock<DatagramPathCounters> counters_;
  DatagramPathCounters& statistics_ = *counters_;
};

}  // namespace nccl_ha::fabric
