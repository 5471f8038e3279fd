// A path over an RC queue pair.  Made by Port::create_path.
//
// Connecting: both sides move their queue pair to RTS as soon as they know the peer's address.  The
// active side then sends a small and a full-size probe; the passive side answers with two of its
// own.  So `ready` means that packets of the path MTU get through both ways, and nothing is sent
// before the peer can take it (a packet that comes too early costs a whole retransmission timeout).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/fabric/verbs/port.h"

namespace nccl_ha::fabric::verbs {

/// What the peer needs to know; travels in the control stream.
struct WireAddress {
  LinkLayer link = LinkLayer::ethernet;
  uint32_t queue_pair = 0;  ///< 24 bits
  uint32_t packet_sequence = 0;
  uint16_t lid = 0;
  uint8_t mtu = 3;  ///< verbs' code
  Gid gid{};
  bool has_ece = false;
  uint32_t ece_vendor = 0;
  uint32_t ece_options = 0;
  uint32_t ece_compatibility = 0;
};
inline constexpr size_t wire_address_bytes = 48;
void encode(const WireAddress& address, std::span<std::byte, wire_address_bytes> out);
/// nullopt: not ours, or impossible values.
std::optional<WireAddress> decode_address(std::span<const std::byte> bytes);

class VerbsPath final : public Path {
 public:
  ~VerbsPath() override;

  std::span<const std::byte> local_address() const override { return local_bytes_; }
  Result<void> connect(std::span<const std::byte> peer_address) override;
  PathState state() const override { return state_; }
  CompletionStatus cause() const override { return cause_; }
  [[nodiscard]] Errc post_write(const WritePost& post) override;
  [[nodiscard]] Errc post_send(const SendPost& post) override;
  [[nodiscard]] Errc post_receive(const ReceivePost& post) override;
  [[nodiscard]] Errc post_flush(const FlushPost& post) override;
  uint32_t write_bytes_max() const override { return write_max_; }
  const PathTraits& traits() const override { return traits_; }
  void failure_domains(FailureDomains& domains) const override;
  void fail(const Error& why) override;
  std::string describe() const override;

  ibv_qp* queue_pair() const { return qp_; }

 private:
  friend class Port;

  enum class Internal : uint8_t { no, small_probe, full_probe, marker };
  struct SendSlot {
    uint64_t id = 0;
    uint32_t bytes = 0;
    CompletionKind kind = CompletionKind::write;
    bool unsignaled = false;
    Internal internal = Internal::no;
  };
  struct ReceiveSlot {
    uint64_t id = 0;
    bool internal = false;
  };

  VerbsPath(Port& port, const PathOptions& options, PathOwner* owner, uint32_t slot,
            uint16_t generation, size_t queue);
  Result<void> open(const GidPreference& want);
  Result<void> post_probe_receives();
  Error no_way(int error) const;
  ibv_ah_attr route_to(const WireAddress& peer) const;
  /// The peer's address is known to be reachable: the queue pair is made ready, and tried out.
  Result<void> go_ready();
  void look_at_resolution();
  Result<void> to_ready(const WireAddress& peer);
  void query_ece();
  Result<void> open_flush();
  Result<void> move_to_rts(ibv_qp* qp, const ibv_ah_attr& route, uint32_t peer_qp,
                           uint32_t peer_psn, uint32_t own_psn, ibv_mtu mtu);
  /// Whether a post can be taken now.
  Errc send_room() const;
  /// The next work request, all but its opcode and what goes with that filled in.
  ibv_send_wr& push(const SendSlot& slot, std::span<const Gather> gathers, bool can_inline);
  void post_probes();
  void post_marker();
  /// A probe or a marker.
  void post_internal(Internal what, CompletionKind kind, std::span<const Gather> gathers);
  void flush_posts();
  void post_pending();
  void choose_signals(uint32_t first, size_t count);
  void hand_over_receives();
  void on_wc(const ibv_wc& wc, const WorkId& id);
  void on_send(const ibv_wc& wc, uint32_t position);
  void on_receive(const ibv_wc& wc, uint32_t position);
  void on_flush(const ibv_wc& wc, uint32_t position);
  void complete_send(CompletionStatus status);
  void finish_send(CompletionStatus status);
  /// The device reports a work request as failed, and with it the path.
  void fail_for(CompletionStatus status, const ibv_wc& wc, const SendSlot* slot);
  void check_ready();
  void break_path(CompletionStatus cause, const Error& why);
  Duration connect_limit() const {
    return options_.connect_limit > Duration(0) ? options_.connect_limit
                                                : port_.options_.connect_timeout;
  }
  void on_timer();

  // The fence (verbs_path_fence.cpp).
  enum class Fence : uint8_t {
    none,        ///< the queue pair is not broken
    flushing,    ///< in ERR; its work comes back
    overdue,     ///< not all of it did in time, or the queue pair would not go to ERR
    destroying,  ///< the destroyer has it
    closed,      ///< nothing moves any more, and everything was reported
    failed,      ///< the device does not let go
  };
  bool all_returned() const;
  /// There is something for move_fence() to do.
  bool fence_moves() const;
  /// The port calls it after it has taken everything out of the completion queue.  May end the
  /// path.
  void move_fence();
  void look_at_flush();
  void look_at_destruction();
  int destruction_result() const;
  void close_fence(Counter& count, const char* proof);
  Duration lost_time() const;
  void fail_fence(int error);
  void take_back();
  /// Is there unacknowledged work?  Breaks the path when that has been so for too long.
  bool check_progress(const Moment& now);
  Error explain(const ibv_wc& wc, const SendSlot* slot) const;

  Port& port_;
  const Library& library_;
  PathOwner* owner_;
  const PathOptions options_;
  const uint32_t slot_;
  const uint16_t generation_;
  const size_t queue_;
  uint32_t reserved_ = 0;  ///< completion queue entries
  ibv_qp* qp_ = nullptr;
  ibv_qp* flush_qp_ = nullptr;
  uint32_t inline_max_ = 0;
  uint32_t write_max_ = 0;
  PortInfo info_;
  PathTraits traits_;
  std::optional<GidEntry> gid_;
  WireAddress local_;
  WireAddress peer_;
  std::array<std::byte, wire_address_bytes> local_bytes_{};
  PathState state_ = PathState::idle;
  std::shared_ptr<const Resolution> resolution_;  ///< while the peer's address is looked for
  Instant connect_deadline_{};
  bool state_event_ = false;
  Error error_;
  CompletionStatus cause_ = CompletionStatus::ok;
  Timer timer_;

  Fence fence_ = Fence::none;
  bool receive_returned_ = false;  ///< the device gave one back
  uint32_t own_sends_ = 0;         ///< the last ones, which the broken queue pair was never given
  uint32_t own_receives_ = 0;      ///< the same
  Instant broken_at_{};
  Duration lost_before_{};
  uint32_t seen_returned_ = 0;  ///< how many had come back when it was looked at last
  std::shared_ptr<const Destruction> destruction_;
  Instant destruction_deadline_{};

  /// Positions count up and wrap, in a work request at WorkId's 22 bits.  They begin shortly before
  /// that, so that each path of each test comes past it.
  static constexpr uint32_t first_position = UINT32_MAX - 23;

  // sending: a ring in posting order
  std::vector<SendSlot> sends_;
  uint32_t send_mask_ = 0;
  uint32_t send_head_ = first_position;
  uint32_t send_tail_ = first_position;
  uint32_t unsignaled_ = 0;
  uint64_t open_bytes_ = 0;     ///< posted and not completed
  uint64_t progress_ = 0;       ///< grows with completions and with posts that end idleness
  uint64_t seen_progress_ = 0;  ///< when it was looked at last
  Moment progress_seen_{};      ///< when it was seen to have grown
  bool overdue_ = false;        ///< we, not the device, found it dead
  std::vector<ibv_send_wr> pending_;
  std::vector<std::array<ibv_sge, gathers_max>> pending_sges_;
  size_t pending_count_ = 0;
  bool dirty_ = false;               ///< in the port's list
  VerbsPath* next_dirty_ = nullptr;  ///< in that list

  std::vector<ReceiveSlot> receives_;
  uint32_t receive_mask_ = 0;
  uint32_t receive_head_ = first_position;
  uint32_t receive_tail_ = first_position;
  uint32_t parked_ = 0;           ///< the last ones of these, which the device does not have yet
  bool needs_rx_refill_ = false;  ///< the port knows of them

  std::vector<uint64_t> flushes_;
  uint32_t flush_head_ = first_position;
  uint32_t flush_tail_ = first_position;

  unsigned probes_acknowledged_ = 0;
  unsigned probes_received_ = 0;
  bool probes_posted_ = false;
};

}  // namespace nccl_ha::fabric::verbs
