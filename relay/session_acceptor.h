// Takes streams of neighbours and hands them on with their setup request.  Worker's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "relay/session_stream.h"
#include "runtime/base/run_limit.h"
#include "runtime/streams/admission.h"

namespace nccl_ha::relay {

class SessionAcceptor final : private AcceptorOwner, private SessionStream::Owner {
 public:
  class Handler {
   public:
    /// The stream's owner is the handler's to set.
    virtual void on_request(std::unique_ptr<SessionStream> stream, SetupRequest request) = 0;
    /// Somebody did not show the cluster's key.
    virtual void on_unauthenticated() {}

   protected:
    ~Handler() = default;
  };
  /// Neighbours that have not said yet what they want; for more than that others give way
  /// (runtime/streams/admission.h).
  static constexpr size_t pending_max = 64;
  /// How long one may take to say it.
  static constexpr Duration patience = std::chrono::milliseconds(5000);

  /// On a port of `ports` (HA_NCCL_LISTEN_PORTS has the form).
  static Result<std::unique_ptr<SessionAcceptor>> listen(Context& context, const std::string& ports,
                                                         SessionKeys keys, Handler& handler);
  ~SessionAcceptor() override;
  SessionAcceptor(const SessionAcceptor&) = delete;
  SessionAcceptor& operator=(const SessionAcceptor&) = delete;

  uint16_t port() const { return port_; }
  uint64_t refused() const { return refused_; }  ///< streams that said nothing that makes sense

 private:
  struct Pending {
    Origin origin;
    std::unique_ptr<SessionStream> stream;
    RunLimit limit;
  };
  SessionAcceptor(Context& context, SessionKeys keys, Handler& handler);
  void on_accept(int fd) override;
  void on_acceptor_error(const Error& error) override;
  void on_session_open(SessionStream& stream) override { (void)stream; }
  void on_session_message(SessionStream& stream, SessionMessage message) override;
  void on_session_lost(SessionStream& stream, const Error& error) override;
  std::unique_ptr<SessionStream> take(SessionStream& stream);
  void on_timer();

  Context& context_;
  SessionKeys keys_;
  Handler& handler_;
  std::unique_ptr<Acceptor> acceptor_;
  std::vector<Pending> pending_;
  Timer timer_;
  uint16_t port_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace nccl_ha::relay
