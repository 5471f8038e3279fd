// The relay node: takes setup requests and passes on what others send.  One per worker that relays.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "relay/relay_pool.h"
#include "relay/relay_session.h"
#include "relay/session_acceptor.h"
#include "runtime/engine/actor.h"
#include "runtime/streams/stream.h"
#include "runtime/telemetry/counter_file.h"

namespace nccl_ha::relay {

class RelayNode final : public Actor,
                        private SessionAcceptor::Handler,
                        private RelaySession::Owner,
                        private LinkWatchOwner {
 public:
  enum MessageKind : uint32_t {
    /// No session is taken any more, and those that are there end one after the other within arg
    /// milliseconds, so that not all connections look for another way at once.
    drain,
  };
  /// On the node's thread: whether new sessions are taken, once at the start and when that changes.
  using Tell = std::function<void(bool relays)>;
  /// On the node's thread: it drains, and has no session any more.
  using Drained = std::function<void()>;
  /// `ports` as HA_NCCL_LISTEN_PORTS.  `hops` and `next` outlive the node and its sessions.
  RelayNode(HopSource& hops, const NextHops& next, const RelayOptions& options, std::string ports,
            Tell tell = nullptr, Drained drained = nullptr);
  ~RelayNode() override;

  const char* name() const override { return "relay-node"; }
  void start(Context& context) override;
  void on(const Message& message) override;
  void stop() override;
  void on_no_memory() override;

  /// 0: it does not listen, and tries again where somebody has the port; failure() says why.
  uint16_t port() const { return acceptor_ ? acceptor_->port() : uint16_t{0}; }
  const Error& failure() const { return failure_; }
  const RelayCounters& counts() const { return *counters_; }
  bool draining() const { return counters_->draining != 0; }
  const std::vector<RelaySession*>& sessions() const { return sessions_; }
  const RelayPool& pool() const { return pool_; }
  /// By neighbour; of some no session is left.
  const std::map<NodeId, std::shared_ptr<Egress>>& egresses() const { return egresses_; }

 private:
  void on_request(std::unique_ptr<SessionStream> stream, SetupRequest request) override;
  void on_unauthenticated() override { ++counters_->unauthenticated; }
  void on_session_end(RelaySession& session, const std::string& why) override;
  void on_link(const std::string& interface, bool up) override;
  void listen();
  void begin_draining(Duration limit);
  void drain_on();
  void show_pool();
  Result<void> check_asker(SessionStream& stream, const SetupRequest& request) const;
  Result<void> check_ticket(const Ticket& ticket, const SetupRequest& request) const;
  Result<NextHop> next_of(const SetupRequest& request) const;
  Result<RelaySession::Share> share_of(const SetupRequest& request, const Ticket& ticket);
  std::shared_ptr<Egress> egress_to(NodeId neighbour);

  HopSource& hops_;
  const NextHops& next_;
  RelayOptions options_;
  std::string ports_;
  Tell tell_;
  Drained drained_;
  RelayPool pool_;
  std::map<NodeId, std::shared_ptr<Egress>> egresses_;  ///< by neighbour
  Context* context_ = nullptr;
  std::unique_ptr<SessionAcceptor> acceptor_;
  std::vector<RelaySession*> sessions_;  ///< actors of this worker
  CounterBlock<RelayCounters> counters_;
  Duration drain_apart_{};                 ///< between the ends of sessions
  std::unique_ptr<LinkWatch> link_watch_;  ///< null: nobody tells of links
  Timer drain_timer_;
  Timer listen_timer_;
  Error failure_{};
};

}  // namespace nccl_ha::relay
