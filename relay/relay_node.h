// The relay node: takes setup requests and passes on what others send.  One per worker that relays.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "relay/relay_session.h"
#include "relay/session_acceptor.h"
#include "runtime/engine/actor.h"

namespace nccl_ha::relay {

class RelayNode final : public Actor,
                        private SessionAcceptor::Handler,
                        private RelaySession::Owner {
 public:
  struct Counts {
    uint64_t opened = 0;   ///< sessions that were begun
    uint64_t ended = 0;    ///< of them
    uint64_t refused = 0;  ///< requests for routes that are none, or too many
    uint64_t frames = 0;   ///< of sessions that have ended
    uint64_t bytes = 0;    ///< the same
  };
  /// On the node's thread: whether new sessions are taken, once at the start and when that changes.
  using Tell = std::function<void(bool relays)>;
  /// `ports` as HA_NCCL_LISTEN_PORTS.  `hops` and `next` outlive the node and its sessions.
  RelayNode(HopSource& hops, const NextHops& next, const RelayOptions& options, std::string ports,
            Tell tell = nullptr);

  const char* name() const override { return "relay-node"; }
  void start(Context& context) override;
  void on(const Message& message) override { (void)message; }
  void stop() override;

  /// 0: it does not listen; failure() says why.
  uint16_t port() const { return acceptor_ ? acceptor_->port() : uint16_t{0}; }
  const Error& failure() const { return failure_; }
  const Counts& counts() const { return counts_; }
  const std::vector<RelaySession*>& sessions() const { return sessions_; }

 private:
  void on_request(std::unique_ptr<SessionStream> stream, SetupRequest request) override;
  void on_session_end(RelaySession& session, const std::string& why) override;
  Result<NextHop> next_of(const SetupRequest& request) const;

  HopSource& hops_;
  const NextHops& next_;
  RelayOptions options_;
  std::string ports_;
  Tell tell_;
  Context* context_ = nullptr;
  std::unique_ptr<SessionAcceptor> acceptor_;
  std::vector<RelaySession*> sessions_;  ///< actors of this worker
  Counts counts_;
  Error failure_{};
};

}  // namespace nccl_ha::relay
