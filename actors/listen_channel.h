// What the caller of listen() shares with the connections that are made for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "actors/control.h"
#include "actors/endpoint.h"
#include "runtime/engine/actor.h"

namespace nccl_ha {

/// Its connections all live on the worker at whose door it is asked for (actors/door.h).
class ListenChannel {
 public:
  explicit ListenChannel(uint64_t nonce) : nonce_(nonce) {}
  ~ListenChannel();
  ListenChannel(const ListenChannel&) = delete;
  ListenChannel& operator=(const ListenChannel&) = delete;

  uint64_t nonce() const { return nonce_; }

  // The worker's thread.
  /// Queues a ready connection; false when the listen is closed already.
  bool offer(const std::shared_ptr<ReceiveEndpoint>& endpoint);
  /// The first failure counts.
  void fail(const Error& error);
  /// `own` has been made for that hello.  Where another one has heard the same peer for the same
  /// connection, one of them is in vain and is to end, of which nobody need hear: that of the
  /// earlier attempt, as the peer begins anew only while it knows no answer; what it said first may
  /// still come last.
  std::optional<ActorId> begin(const Hello& hello, ActorId own);
  /// It is usable: each hello that is still to come is an earlier attempt's.
  void settle(ActorId own);
  void leave(ActorId own);

  // The caller's.
  /// The oldest ready connection, or null.  One caller thread at a time, as close().
  std::shared_ptr<ReceiveEndpoint> take();
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  const Error& failure() const { return failure_; }
  /// What was offered before can be taken, and nothing is offered from now on.
  void close();

 private:
  struct Begun {
    RejoinPoint peer;
    uint32_t attempt = 0;
    ActorId actor;
  };
  void collect(ReceiveEndpoint* left);

  const uint64_t nonce_;
  std::atomic<ReceiveEndpoint*> ready_{nullptr};          ///< newest first
  std::deque<std::shared_ptr<ReceiveEndpoint>> ordered_;  ///< caller's: oldest first
  std::vector<Begun> begun_;                              ///< the worker's
  std::atomic<bool> failed_{false};
  Error failure_{};
};

}  // namespace nccl_ha
