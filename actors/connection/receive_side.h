// The accepting side: checks the hello, agrees on the paths, and hands the connection to accept().
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

/// A peer that knows the nonce of a listen.
struct Arrival {
  std::unique_ptr<Stream> stream;
  ControlReader reader;  ///< with what was read from the stream behind the hello
  Hello hello;
};

/// The actor that serves the connection for which it has come, at those devices.  The load was
/// added to `worker`, which is where the door is.
std::unique_ptr<Actor> make_receive_connection(fabric::Provider& provider, Engine& engine,
                                               size_t worker, const fabric::RailDevices& devices,
                                               std::shared_ptr<ListenChannel> listen,
                                               Arrival arrival);

/// One thread.
class ReceiveSide final : public Side, private Receiver::Owner {
 public:
  ReceiveSide(const ConnectionParts& parts, SideOwner& owner, const fabric::RailDevices& devices,
              std::shared_ptr<ListenChannel> listen, Arrival arrival);
  ~ReceiveSide() override;

  const char* name() const override { return "receive-connection"; }
  Channel* channel() override { return endpoint_ ? &endpoint_->channel : nullptr; }
  Driver* driver() override { return endpoint_ ? &endpoint_->driver : nullptr; }
  void begin() override;
  void on_stream_open(Stream& stream) override { (void)stream; }
  void on_control(const ControlReader::Message& message) override;
  void on_deadline() override;
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
  void on_hello(const Hello& hello);
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
  Arrival arrival_;  ///< until begin()
  const std::shared_ptr<ListenChannel> listen_;
  std::optional<Hello> hello_;  ///< the peer's, until the welcome answers it
  bool told_paths_ = false;     ///< the welcome was sent
  Timer welcome_timer_;         ///< until it has led to something
  // From the hello on.
  std::shared_ptr<ReceiveEndpoint> endpoint_;
  std::optional<Receiver> receiver_;
  std::optional<ReceiveRecovery> recovery_;  ///< until the peer has left
  ha::CloseTail tail_;
  uint64_t eager_expected_ = 0;  ///< messages that the sender knows to have arrived
  Timer tail_timer_;
};

}  // namespace nccl_ha
