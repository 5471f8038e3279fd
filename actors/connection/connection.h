// One side of a connection: the actor that owns its parts and leads it through its phases.
//
// Life: handshake (hello, welcome, connectivity check) -> usable -> lingering -> gone, or failed
// from anywhere.  A failure is final: published once, told to the peer, and what every later call
// gets.  docs/walks.md shows who calls whom.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/connection/control_link.h"
#include "actors/connection/failover.h"
#include "actors/connection/liveness.h"
#include "actors/connection/path_set.h"
#include "actors/connection/side.h"
#include "actors/connection/state.h"
#include "actors/connection_message.h"
#include "ha/close_linger.h"
#include "ha/refusal_excuse.h"
#include "runtime/base/run_limit.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/timer_wheel.h"

namespace nccl_ha {

class Engine;

class Connection final : public Actor,
                         private ConnectionOwner,
                         private SideOwner,
                         private ControlLink::Owner,
                         private Liveness::Owner {
 public:
  using MakeSide =
      std::function<std::unique_ptr<Side>(const ConnectionParts& parts, SideOwner& owner)>;
  /// `worker` was assigned by the engine and is given back at the end.
  Connection(fabric::Provider& provider, Engine& engine, size_t worker, const MakeSide& make_side);
  ~Connection() override;

  const char* name() const override { return side_->name(); }
  void start(Context& context) override;
  void on(const Message& message) override;
  void stop() override;
  bool lingers() const override { return state_.phase != ConnectionPhase::gone; }
  bool owes() const override { return state_.live() && side_->waits_to_close(); }
  void on_no_memory() override;

 private:
  // ConnectionOwner
  void fail(const Error& error, bool tell_peer) override;
  std::string peer_name() const;
  std::string peer_text() const override;
  void on_path_state(fabric::Path& path, fabric::PathState state, const Error& error) override;
  void on_path_address(fabric::Path& path) override;
  void on_path_link_down(fabric::Path& path, const Error& why) override {
    liveness_.on_link_down(paths_.index_of(&path), why);
  }
  void on_fence_stuck(const Error& error) override { failover_.tell_stuck(error); }
  void on_late_completion(const fabric::Completion& completion) override;
  void on_work_back(size_t lane) override;
  void on_lane_decided() override { tell_usable(); }
  // SideOwner
  void arm_deadline(Duration in) override;
  void end_handshake() override;
  void enter_usable() override;
  void refused(const std::optional<Refusal>& why) override;
  void part_with_peer(const Error& why) override;
  void close() override;
  void on_all_sent() override;
  void finish() override;
  // ControlLink::Owner
  void on_stream_open(Stream& stream) override { side_->on_stream_open(stream); }
  void on_control(const ControlReader::Message& message) override;
  void on_confirm() override { side_->on_confirm(); }
  void on_last_words() override { hear_last_words(); }
  void on_peer_left() override { linger_.on_peer_left(); }
  bool peer_may_leave() const override { return side_->peer_may_leave(); }
  void on_heard() override { look_whether_over(); }
  void on_unconfirmed() override { side_->on_unconfirmed(); }
  void on_stream_lost(const Error& why) override { side_->on_stream_lost(why); }
  void on_stream_back() override { side_->on_stream_back(); }
  bool takes_streams() const override { return side_->takes_streams(); }
  const Error& failure() const override { return failure_; }
  void on_refused(const Refusal& why) override { refused(why); }
  void on_peer_gone(const Error& why) override;
  void on_attempt() override { liveness_.probe_usable(); }
  void on_inbox() override;
  // Liveness::Owner
  void on_lane_failed(size_t lane, const Error& why) override { side_->on_lane_failed(lane, why); }
  void on_domain_up(const fabric::FailureDomain& domain) override {
    control_.rejoin().dial_now();
    side_->on_domain_up(domain);
  }
  void on_interfaces_renewed() override { side_->on_interfaces_renewed(); }
  void on_looked() override { side_->on_looked(); }

  /// What the caller left; with every message, as a full mailbox has no room for another doorbell.
  void take_news();
  /// Memory was not known to the path of that lane, which is no reason to end the connection.
  bool excuses(size_t lane);
  bool take_early(const ControlReader::Message& message);
  void tell_usable();
  /// The device's other rails have come up or failed, or have had their time.
  bool rails_decided() const;
  void on_rails_overdue();
  void on_deadline();
  /// The connection is over; `words` (empty: confirms what was heard) leave over the stream and all
  /// paths that work, which go on for a bounded time.
  void part(std::vector<std::byte> words, const Error& why,
            Duration wanted = ha::CloseLinger::limit);
  Duration patience_of_peer() const;
  template <class Call>
  void say_last(Call&& call);
  void hear_last_words();
  void end_as_peer_left();
  void tell_summary() const;
  void look_whether_over();
  void on_linger_timer();
  void end_linger(const Error& why);
  void stop_timers();

  ConnectionState state_;
  PathSet paths_{state_};
  ControlLink control_{*this, state_, paths_};
  Liveness liveness_{*this, state_, paths_, control_};
  Failover failover_{state_, paths_, control_, liveness_};
  const size_t worker_index_;
  std::unique_ptr<Side> side_;
  std::vector<std::vector<std::byte>> early_;  ///< of the peer's, before this side was ready
  Error failure_{};                            ///< for a peer that comes back after it
  ha::RefusalExcuse refusals_;
  ha::CloseLinger linger_;
  bool closed_ = false;  ///< by the caller or the end of the engine: the actor ends with the linger
  Timer deadline_;       ///< of the handshake
  RunLimit limit_;       ///< the same
  Timer rails_timer_;    ///< of paths on other rails, which the caller waits for
  bool rails_overdue_ = false;
  Timer linger_timer_;
};

}  // namespace nccl_ha
