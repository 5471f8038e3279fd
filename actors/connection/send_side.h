// The connecting side: finds a route, says hello, and watches over the stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/cable_ports.h"
#include "actors/connection/rails.h"
#include "actors/connection/send_recovery.h"
#include "actors/connection/sender.h"
#include "actors/connection/side.h"
#include "actors/endpoint.h"
#include "actors/rejoin.h"
#include "actors/route.h"
#include "ha/flow.h"
#include "ha/route_rounds.h"
#include "runtime/engine/timer_wheel.h"

namespace nccl_ha {

struct SendOptions {
  std::vector<Route> routes;
  std::string why_not;  ///< why none of them may lead anywhere; empty: they may
  uint64_t nonce = 0;
  Duration timeout{};
  int traffic_class = -1;          ///< asked for by NCCL; -1: none
  CablePorts ports;                ///< where it may live besides its endpoint's devices
  fabric::FabricKind peer_kind{};  ///< of the peer's device; only with `ports`
  /// Where a cable that was dialled leads to the peer no more.
  struct Relays {
    std::vector<Route> routes;  ///< of the stream
    fabric::FabricKind kind{};
    /// Over which ways the connection goes then; nothing: relays do not lead there, or a cable
    /// does.  The worker's thread; null: nobody relays.
    std::function<std::optional<fabric::RailDevices>()> ways;
  };
  Relays relays;
  std::shared_ptr<ha::HintSource> hints;  ///< HA_NCCL_RAIL_MODE=1; null: the host's agent's
};

/// The actor that connects; `worker` was assigned by the engine.
std::unique_ptr<Actor> make_send_connection(fabric::Provider& provider, Engine& engine,
                                            size_t worker, std::shared_ptr<SendEndpoint> endpoint,
                                            SendOptions options);

/// One thread.
class SendSide final : public Side, private SendRecovery::Owner {
 public:
  SendSide(const ConnectionParts& parts, SideOwner& owner, std::shared_ptr<SendEndpoint> endpoint,
           SendOptions options);
  ~SendSide() override;

  const char* name() const override { return "send-connection"; }
  Channel* channel() override { return &channel_; }
  Driver* driver() override { return &endpoint_->driver; }
  void begin() override;
  void on_stream_open(Stream& stream) override;
  void on_control(const ControlReader::Message& message) override;
  void on_deadline() override;
  void on_settled() override;
  void on_usable() override;
  void on_doorbell() override { sender_.pump(); }
  void on_failure(const Error& error, bool told) override { (void)error, (void)told; }
  void on_peer_gone(const Error& error) override;
  void on_confirm() override;
  void on_unconfirmed() override;
  void on_stream_lost(const Error& why) override;
  void on_stream_back() override;
  bool takes_streams() const override { return false; }
  CloseNotice last_words() const override;
  bool all_done() const override { return sender_.idle() && !sender_.eager().any_open(); }
  /// For what the caller believes sent, unless it gives up in the middle.
  bool waits_to_close() const override { return sender_.eager().any_open() && sender_.idle(); }
  bool exposed(const Lane& lane, bool closing) const override {
    (void)closing;
    return lane.bytes_open != 0;
  }
  std::string wanted_peer() const override;
  void on_lane_ready(size_t lane) override { recovery_.on_lane_ready(lane); }
  void on_lane_failed(size_t lane, const Error& error) override {
    recovery_.on_lane_failed(lane, error);
  }
  void on_lane_drained(size_t lane) override { recovery_.on_lane_drained(lane); }
  void on_slow_rail(size_t rail) override { recovery_.on_slow_rail(rail); }
  void on_interfaces_renewed() override;
  void on_looked() override { recovery_.look_for_slowness(); }
  void on_domain_up(const fabric::FailureDomain& domain) override {
    recovery_.renewal().on_domain_up(domain);
  }
  bool told_paths() const override { return attempt_.said_hello; }
  void on_first_address() override;
  void on_lane_address(size_t lane) override { recovery_.renewal().on_lane_address(lane); }
  void stop() override;

 private:
  void on_steps_taken() override;
  void on_all_sent() override { owner_.on_all_sent(); }
  void try_route();
  bool take_relays();
  void live_at(const fabric::Attachment& attachment, const fabric::RailDevices& devices);
  void settle_returns();
  void on_route_timer();
  void on_route_error(const Error& error);
  Result<void> move_to_stream(const sockaddr_storage& local);
  /// `why` no address was reached, behind what says it best.
  std::string out_of_reach(const std::string& why) const;
  /// For a connection that did not come up in time.
  std::string what_is_missing() const;
  void dial_again(const Error& error);
  void begin_anew(Duration in);
  bool dial_later(const Error& error);
  void note_route_error(const std::string& error);
  void send_hello();
  void on_welcome(std::span<const std::byte> payload);
  bool agree_on_rails(const Welcome& welcome);
  void on_end(std::span<const std::byte> payload);
  void on_peer_closed(std::span<const std::byte> payload);
  std::vector<Rejoin::Way> rejoin_ways(const Welcome& welcome) const;
  void renew_rejoin_ways();
  bool waits_for_peer() const;
  void watch_stream();
  void look_after_stream();

  ConnectionParts parts_;
  ConnectionState& state_;
  PathSet& paths_;
  ControlLink& control_;
  SideOwner& owner_;
  const std::shared_ptr<SendEndpoint> endpoint_;
  SendChannel& channel_;
  SendOptions options_;
  Sender sender_;
  SendRecovery recovery_;
  size_t route_ = 0;        ///< that was dialled last
  ha::RouteRounds rounds_;  ///< of those that paths may be made over
  Timer route_timer_;
  Timer again_timer_;
  std::string route_errors_;
  std::string early_end_;  ///< the last one's error
  struct Attempt {
    uint32_t number = 0;
    bool said_hello = false;
    Moment begun{};  ///< with its dial; then its hello
  };
  Attempt attempt_;  ///< under way, until there is a welcome
  bool welcomed_ = false;
  PeerEnds ends_;
  bool peer_ready_ = false;
  bool peer_takes_eager_ = false;
  ha::HostAddress peer_address_;  ///< of its first rail
  Timer stream_timer_;
  uint32_t unconfirmed_ = 0;  ///< the first message when last looked
  uint32_t heard_ = 0;        ///< the peer's next one then
};

}  // namespace nccl_ha
