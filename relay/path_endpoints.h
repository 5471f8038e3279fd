// Where the last relay on a route finds the paths that end in this process.  One per worker; its
// paths keep it.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "relay/session_acceptor.h"
#include "runtime/base/secret.h"

namespace nccl_ha::relay {

class PathEndpoints final : private SessionAcceptor::Handler {
 public:
  class Member {
   public:
    virtual void on_request(std::unique_ptr<SessionStream> stream, SetupRequest request) = 0;

   protected:
    ~Member() = default;
  };
  /// That of the context's worker, which has the same keys for all.
  static Result<std::shared_ptr<PathEndpoints>> of(Context& context, const SessionKeys& keys);

  uint16_t port() const { return acceptor_->port(); }
  /// The token that the member's requests have.
  Secret enter(Member* member);
  void leave(Secret token) { members_.erase(token); }

 private:
  PathEndpoints(Context& context, SessionKeys keys) : context_(context), keys_(std::move(keys)) {}
  void on_request(std::unique_ptr<SessionStream> stream, SetupRequest request) override;

  Context& context_;
  SessionKeys keys_;
  std::unique_ptr<SessionAcceptor> acceptor_;
  std::map<Secret, Member*> members_;  ///< by token
};

}  // namespace nccl_ha::relay
