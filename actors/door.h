// Where peers come in: one listening socket of a worker, for its listens and its connections.
//
// The first message of a stream says for whom it is: hello names a listen by its nonce, rejoin and
// probe a connection by its token.  Who names one that is not there is told that it is absent.  An
// unauthenticated peer has a few seconds, and less where there are many of them
// (runtime/streams/admission.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "actors/cable_ports.h"
#include "actors/control.h"
#include "actors/listen_channel.h"
#include "runtime/base/secret.h"
#include "runtime/engine/context.h"
#include "runtime/fabric/provider.h"
#include "runtime/streams/stream.h"

namespace nccl_ha {

class Engine;

/// This process.
ProcessId own_process();
/// Says it on a stream that ends with it.
void answer_and_close(std::unique_ptr<Stream> stream, std::span<const std::byte> frame);

/// Open while there is anything that may be asked for.
class Door final : public std::enable_shared_from_this<Door> {
 public:
  /// What is made for who says hello: connections at `devices`, or at the one of `ports` where the
  /// peer arrived.
  struct Listen {
    fabric::Provider& provider;
    Engine& engine;
    fabric::RailDevices devices;
    CablePorts ports;
    std::shared_ptr<ListenChannel> channel;
  };
  class Member {
   public:
    /// `call` is rejoin or probe.  Takes over the stream and what has been read from it behind
    /// that.
    virtual void on_call(ControlType call, std::unique_ptr<Stream> stream,
                         ControlReader reader) = 0;

   protected:
    ~Member() = default;
  };

  /// That of the context's worker, which those who are asked for there keep.  Any thread.
  static std::shared_ptr<Door> of(Context& context);
  explicit Door(Context& context);

  // Any thread, as long as the engine is there.
  /// The port; from now on peers may ask for it by its nonce.
  Result<uint16_t> add(const Listen& listen);
  void remove(uint64_t nonce);

  // The worker's.
  /// The token by which the peer names the member; nullopt (logged): nobody can come in.
  std::optional<Secret> enter(Member* member);
  void leave(Secret token);
  uint16_t port() const { return port_; }  ///< for members
  const ProcessId& process() const { return process_; }
  /// Who has not said yet for whom it is.
  size_t waiting() const;

 private:
  class Porter;
  /// `make`: hands the porter over to the worker.
  template <class Make>
  Result<uint16_t> open(Make&& make);
  std::optional<Listen> find(uint64_t nonce);
  size_t expected();  ///< listens, each of which a peer comes for
  void close_if_unused();
  void end_listens(const Error* why);

  Context& context_;
  const ProcessId process_;
  std::mutex mutex_;
  std::map<uint64_t, Listen> listens_;  ///< by nonce; under the mutex, as the next two
  uint16_t port_ = 0;                   ///< 0: it is closed
  ActorId porter_id_;                   ///< of who stands at the open door
  std::map<Secret, Member*> members_;   ///< the worker's, as the next
  Porter* porter_ = nullptr;            ///< once it has begun
};

}  // namespace nccl_ha
