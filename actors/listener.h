// Accepts control connections for one NCCL listen and hands finished connections to accept().
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "actors/cable_ports.h"
#include "actors/connection_message.h"
#include "actors/control.h"
#include "actors/endpoint.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/fabric/provider.h"
#include "runtime/streams/admission.h"
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
  /// A half-made connection and its worker.
  struct Guest {
    size_t worker = 0;
    ActorId actor;
    bool operator==(const Guest&) const = default;
  };
  /// A peer that has not shown yet that it knows the nonce has a place for a while.  Who gives way
  /// for it, if anybody does (runtime/streams/admission.h).  `place`: its place.
  std::optional<Guest> enter(const Origin& origin, uint64_t* place);
  void attach(uint64_t place, const Guest& guest);
  void leave(uint64_t place);
  /// The guest at `place` knows the nonce, and gives up its place.  Where another one has heard the
  /// same peer for the same connection, one of them is in vain and is to end, of which nobody need
  /// hear: that of the earlier attempt, as the peer begins anew only while it knows no answer; what
  /// it said first may still come last.
  std::optional<Guest> begin(uint64_t place, const Hello& hello, const Guest& guest);
  /// Its connection is usable: each hello that is still to come is an earlier attempt's.
  void settle(uint64_t place);
  /// So many have one.  Any thread.
  size_t waiting() {
    const std::lock_guard lock(waiting_mutex_);
    return waiting_.size();
  }

  // Caller's side.
  /// The oldest ready connection, or null.  One caller thread at a time.
  std::shared_ptr<ReceiveEndpoint> take();
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  const Error& failure() const { return failure_; }
  /// What was offered before can be taken, and nothing is offered from now on.
  void close() {
    std::lock_guard lock(waiting_mutex_);
    closed_.store(true, std::memory_order_release);
  }
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  void attach(ActorId actor) { actor_ = actor; }
  ActorId actor() const { return actor_; }

 private:
  static constexpr size_t waiting_max = 256;
  struct Waiting {
    Origin origin;
    uint64_t place = 0;
    Guest guest;
  };
  struct Begun {
    RejoinPoint peer;
    uint32_t attempt = 0;
    uint64_t place = 0;
    Guest guest;
  };
  const uint64_t nonce_;
  std::atomic<ReceiveEndpoint*> ready_{nullptr};  // newest first
  ReceiveEndpoint* ordered_ = nullptr;            // caller's: oldest first
  std::mutex waiting_mutex_;                      ///< close() and offer() hold it too
  std::vector<Waiting> waiting_;                  ///< who came first first
  std::vector<Begun> begun_;                      ///< of peers that know the nonce
  uint64_t places_ = 0;                           ///< that were given
  std::atomic<bool> closed_{false};
  std::atomic<bool> failing_{false};
  std::atomic<bool> failed_{false};
  Error failure_{};
  ActorId actor_{};
};

/// Tells a guest something.  Any thread.
void tell(Engine& engine, const ListenChannel::Guest& guest, ConnectionMessage what);

class Listener final : public Actor, private AcceptorOwner {
 public:
  /// `fd` is bound and listening; ownership passes.
  /// Connections are made at `devices`, or at the one of `ports` where the peer arrived.
  Listener(fabric::Provider& provider, Engine& engine, int fd, const fabric::RailDevices& devices,
           std::shared_ptr<ListenChannel> channel, CablePorts ports = {});
  ~Listener() override;
  const char* name() const override { return "listener"; }
  void start(Context& context) override;
  void on(const Message& message) override;
  void stop() override;

 private:
  void on_accept(int fd) override;
  void on_acceptor_error(const Error& error) override;
  static Origin origin_of(int fd);
  fabric::RailDevices devices_of(int fd) const;

  fabric::Provider& provider_;
  Engine& engine_;
  int fd_;
  const fabric::RailDevices devices_;
  const CablePorts ports_;
  std::shared_ptr<ListenChannel> channel_;
  Context* context_ = nullptr;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace nccl_ha
