// The stream between two neighbours on a route: whole messages, and pings that show that the other
// one still runs.  Worker's thread.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "relay/hop_source.h"
#include "relay/session_message.h"
#include "relay/session_seal.h"
#include "runtime/base/run_limit.h"
#include "runtime/engine/context.h"
#include "runtime/streams/stream.h"

namespace nccl_ha::relay {

class SessionStream final : private StreamOwner {
 public:
  class Owner {
   public:
    virtual void on_session_open(SessionStream& stream) = 0;
    /// Pings are not told.  May destroy the stream, as the next one.
    virtual void on_session_message(SessionStream& stream, SessionMessage message) = 0;
    /// Once; nothing comes after it.
    virtual void on_session_lost(SessionStream& stream, const Error& error) = 0;

   protected:
    ~Owner() = default;
  };
  static constexpr Duration ping_apart = std::chrono::milliseconds(500);
  /// Silent for so long, while dialled too: the neighbour's process or host is gone, or the cable.
  /// Of time in which this process ran.
  static constexpr Duration silence_max = std::chrono::milliseconds(2000);

  /// With a key, both sides show that they have it before anything else; without, they do not.
  /// Where the keys are a job's that are open, the side that is dialled does as the other one does,
  /// and does without where that one shows a key that is not known here: a ping without a seal
  /// says so.
  /// `encrypts`: this side wants what goes beside the stream encrypted (HA_NCCL_ENCRYPT).
  SessionStream(Context& context, Owner* owner, SessionKeys keys, bool encrypts);
  ~SessionStream() override;
  SessionStream(const SessionStream&) = delete;
  SessionStream& operator=(const SessionStream&) = delete;

  /// The owner hears that it is open, which is when the other side has shown its key, or lost.
  /// `peer`: the ticket of the process there, if it has one.
  Result<void> dial(const NextHop& next, const Ticket& peer = {});
  /// Takes a connected socket.
  Result<void> adopt(int fd);
  void set_owner(Owner* owner) { owner_ = owner; }
  /// What cannot be written is lost together with the stream, of which the owner hears.
  void send(const SessionMessage& message);
  /// Sends what was written and closes; the owner hears nothing any more.
  void close();

  /// Lost, because the other side did not show that it has the cluster's key.
  bool unauthenticated() const { return unauthenticated_; }
  /// Of the process that a stream is sealed for; none: both sides have the cluster's key, or none.
  Ticket ticket() const { return seal_ ? seal_->ticket() : Ticket{}; }
  /// Lost, because the other side speaks another version, or is no relay node.
  bool misunderstood() const { return misunderstood_; }
  /// For paths to the neighbour, once it is open; nullopt: there is no key, or a job's, which says
  /// who the neighbour is and hides nothing.
  std::optional<SharedKey> shared() const {
    return seal_ && seal_->open() && keys_.has_own() ? std::optional(seal_->shared())
                                                     : std::nullopt;
  }
  /// This host's own on the way to the neighbour.
  Result<sockaddr_storage> local_address();
  /// Where it speaks from.
  Result<sockaddr_storage> peer_address();

 private:
  void on_stream_open(Stream& stream) override;
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override;
  void on_stream_closed(Stream& stream, const Error& error) override;
  void on_timer();
  void begin();
  void make_seal(bool dials);
  bool is_unsealed(std::span<const std::byte> bytes) const;
  void take(std::span<const std::byte> bytes);
  /// The other side's first message; false: it has none of our keys.
  Result<void> shake_hands(std::span<const std::byte> bytes);
  Result<void> shake_hands(const SessionHello& hello, std::span<const std::byte> bytes);
  void reject(const Error& error);
  void refuse(const Error& error);
  void lose(const Error& error);

  Context& context_;
  Owner* owner_;
  SessionKeys keys_;
  const bool encrypts_;
  Ticket peer_;
  uint32_t peer_key_ = 0;  ///< NextHop::key
  std::optional<SessionSeal> seal_;
  bool dials_ = false;
  bool connected_ = false;
  bool unauthenticated_ = false;
  bool misunderstood_ = false;
  std::unique_ptr<Stream> stream_;
  std::vector<std::byte> received_;
  Timer timer_;
  RunLimit silence_;
  bool lost_ = false;
  bool closed_ = false;  ///< this side has ended the stream
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace nccl_ha::relay
