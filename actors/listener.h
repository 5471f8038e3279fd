// Accepts control connections for one NCCL listen and hands finished connections to accept().
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "actors/endpoint.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/fabric/provider.h"
#include "runtime/streams/stream.h"

namespace nccl_ha {

class Engine;

/// Messages to a listener.
enum class ListenerMessage : uint32_t {
  close = 1,  ///< the caller is done with it
};

/// Shared by the listener, its half-made connections and the thread that calls accept().
class ListenChannel {
 public:
  explicit ListenChannel(uint64_t nonce) : nonce_(nonce) {}
  ~ListenChannel();

  uint64_t nonce() const { return nonce_; }

  // Actors' side, any worker.
  /// Queues a ready connection; false when the listener is closed already.
  bool offer(std::shared_ptr<ReceiveEndpoint> endpoint);
  void fail(const Error& error);
  /// An unauthenticated peer may hold a place for a while; bounded, so that many cannot starve the
  /// real peer.
  bool enter() { return pending_.fetch_add(1, std::memory_order_relaxed) < pending_max; }
  void end_pending() { pending_.fetch_sub(1, std::memory_order_relaxed); }

  // Caller's side.
  /// The oldest ready connection, or null.  One caller thread at a time.
  std::shared_ptr<ReceiveEndpoint> take();
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  const Error& failure() const { return failure_; }
  void close() { closed_.store(true, std::memory_order_release); }
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  void attach(ActorId actor) { actor_ = actor; }
  ActorId actor() const { return actor_; }

 private:
  static constexpr uint32_t pending_max = 256;
  const uint64_t nonce_;
  std::atomic<ReceiveEndpoint*> ready_{nullptr};  // newest first
  ReceiveEndpoint* ordered_ = nullptr;            // caller's: oldest first
  std::atomic<uint32_t> pending_{0};
  std::atomic<bool> closed_{false};
  std::atomic<bool> failing_{false};
  std::atomic<bool> failed_{false};
  Error failure_{};
  ActorId actor_{};
};

class Listener final : public Actor, private AcceptorOwner {
 public:
  /// `fd` is bound and listening; ownership passes.
  /// Connections are made at `devices`; where there are `ports`, at that one of them at whose NIC
  /// the peer arrived.
  Listener(fabric::Provider& provider, Engine& engine, int fd, const fabric::RailDevices& devices,
           std::shared_ptr<ListenChannel> channel, std::vector<fabric::RailDevices> ports = {});
  ~Listener() override;
  const char* name() const override { return "listener"; }
  void start(Context& context) override;
  void on(const Message& message) override;
  void stop() override;

 private:
  void on_accept(int fd) override;
  void on_acceptor_error(const Error& error) override;
  fabric::RailDevices devices_of(int fd) const;

  fabric::Provider& provider_;
  Engine& engine_;
  int fd_;
  const fabric::RailDevices devices_;
  const std::vector<fabric::RailDevices> ports_;
  std::shared_ptr<ListenChannel> channel_;
  Context* context_ = nullptr;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace nccl_ha
