// The accepting side: checks who knocks, agrees on the paths, and hands the connection to accept().
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "actors/connection/receive_recovery.h"
#include "actors/connection/receiver.h"
#include "actors/connection/side.h"
#include "actors/endpoint.h"
#include "ha/close_tail.h"
#include "runtime/engine/mailbox.h"
#include "runtime/engine/timer_wheel.h"

namespace nccl_ha {

class ListenChannel;

/// The actor that serves a connection that `fd` was accepted for, at those devices.  It takes the
/// descriptor over; `worker` was assigned by the engine.
std::unique_ptr<Actor> make_receive_connection(fabric::Provider& provider, Engine& engine,
                                               size_t worker, int fd,
                                               const fabric::RailDevices& devices,
                                               std::shared_ptr<ListenChannel> listener,
                                               uint64_t place);

/// One thread.
class ReceiveSide final : public Side, private Receiver::Owner {
 public:
  ReceiveSide(const ConnectionParts& parts, SideOwner& owner, int fd,
              const fabric::RailDevices& devices, std::shared_ptr<ListenChannel> listener,
              uint64_t place);
  ~ReceiveSide() override;

  const char* name() const override { return "receive-connection"; }
  Channel* channel() override { return endpoint_ ? &endpoint_->channel : nullptr; }
  Driver* driver() override { return endpoint_ ? &endpoint_->driver : nullptr; }
  void begin() override;
  void on_stream_open(Stream& stream) override { (void)stream; }
  void on_control(const ControlReader::Message& message) override;
  void on_deadline() override;
  void on_turned_out() override;
  void on_begun_anew() override;
  void on_settled() override;
  void on_usable() override;
  void on_doorbell() override { receiver_->take_submitted(); }
  void on_failure(const Error& error, bool told) override;
  void on_peer_gone(const Error& error) override;
  void on_stream_lost(const Error& why) override;
  bool peer_may_leave() const override { return tail_.under_way(); }
  bool takes_streams() const override { return true; }
  CloseNotice last_words() const override;
  bool all_done() const override;
  bool exposed(const Lane& lane, bool closing) const override;
  std::string wanted_peer() const override { return "a peer"; }
  bool needs_paths() const override { return !receiver_ || !receiver_->alone(); }
  void on_lane_ready(size_t lane) override {
    if (recovery_) {
      recovery_->on_lane_ready(lane);
    }
  }
  void on_lane_failed(size_t lane, const Error& error) override;
  void on_lane_drained(size_t lane) override {
    if (recovery_) {
      recovery_->on_lane_drained(lane);
    }
  }
  void on_interfaces_renewed() override {
    if (recovery_) {
      recovery_->tell_ends();
    }
  }
  void on_domain_up(const fabric::FailureDomain& domain) override {
    if (recovery_) {
      recovery_->on_domain_up(domain);
    }
  }
  bool told_paths() const override { return told_paths_; }
  void on_first_address() override;
  void on_lane_address(size_t lane) override {
    if (recovery_) {
      recovery_->on_lane_address(lane);
    }
  }
  void stop() override;

 private:
  void reject_peer(std::string_view why);
  void on_hello(std::span<const std::byte> payload);
  /// What the peer is refused for; nullopt: nothing.
  std::optional<Refusal> judge(const Hello& hello) const;
  Result<void> make_paths(const Hello& hello);
  void send_welcome(const Hello& hello);
  void agree_on_rails(const Hello& hello, Welcome& welcome);
  void look_after_welcome();
  void on_peer_closed(std::span<const std::byte> payload);
  void look_at_tail();
  void on_posted_alone() override;
  void on_open_changed() override {
    if (recovery_) {
      recovery_->watch_budget();
    }
  }
  /// The sender has left, and what it sent before waits here for its receives, or for a flush.
  void stay_alone();
  bool may_flush() const;
  void end_with_peer();

  ConnectionParts parts_;
  ConnectionState& state_;
  PathSet& paths_;
  ControlLink& control_;
  SideOwner& owner_;
  int fd_;  ///< until begin()
  const std::shared_ptr<ListenChannel> listener_;
  const uint64_t place_;        ///< there, until the peer has shown the nonce
  std::optional<Hello> hello_;  ///< the peer's, until the welcome answers it
  bool told_paths_ = false;     ///< the welcome was sent
  Timer welcome_timer_;         ///< until it has led to something
  bool welcome_ = false;        ///< the peer knew the nonce
  bool overdue_ = false;        ///< it should have said so by now
  // From the hello on.
  std::shared_ptr<ReceiveEndpoint> endpoint_;
  std::optional<Receiver> receiver_;
  std::optional<ReceiveRecovery> recovery_;  ///< until the peer has left
  ha::CloseTail tail_;
  uint64_t eager_expected_ = 0;  ///< messages that the sender knows to have arrived
  Timer tail_timer_;
};

}  // namespace nccl_ha
