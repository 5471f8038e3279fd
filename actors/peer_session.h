// A control stream that several connections share, and each connection's part of it
// (docs/sessions.md).
//
// The side that dials sets its connections up inside, each as over a stream of its own.  The door
// that took the stream hands each on as if it had come by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "actors/control.h"
#include "actors/route.h"
#include "actors/session_reader.h"
#include "ha/session_state.h"
#include "ha/unheard.h"
#include "runtime/engine/context.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/streams/stream.h"

namespace nccl_ha {

class PeerSession;

/// One connection's part of a session.  Each write is one whole message.
class SessionStream final : public Stream {
 public:
  explicit SessionStream(StreamOwner* owner) : owner_(owner) {}
  ~SessionStream() override { leave(); }

  void set_owner(StreamOwner* owner) override { owner_ = owner; }
  Result<void> write(std::span<const std::byte> bytes) override;
  /// The session's stream lags behind no longer than a connection that joins it would accept.
  bool all_arrived() const override;
  uint64_t session() const override;
  void shutdown_then_close() override;
  Result<sockaddr_storage> local_address() override;
  Result<sockaddr_storage> peer_address() override;
  const SharedKey* shared_key() const override;

 private:
  friend class PeerSession;
  void leave();
  void open();
  void hear(std::span<const std::byte> bytes);
  void end(const Error& error);

  std::shared_ptr<PeerSession> session_;  ///< null: it has none yet
  StreamOwner* owner_;
  std::optional<uint32_t> number_;  ///< from its first message on; the first one's from the open on
  bool open_ = false;
  bool ended_ = false;
};

/// Those of one worker, of which connections keep it.  Owner thread only.
class PeerSessions final : public std::enable_shared_from_this<PeerSessions> {
 public:
  static std::shared_ptr<PeerSessions> of(Context& context);
  explicit PeerSessions(Context& context) : context_(context) {}

  /// As PeerStreams::connect_tcp().  Joins only a session with a higher number than `after`
  /// (Stream::session()): one that was begun later.
  Result<std::unique_ptr<Stream>> connect(const Route& route, uint64_t after, StreamOwner* owner);
  /// The same for a part that waited in the session `after`.  `asks`: it may share one.
  Result<void> place(SessionStream& stream, const Route& route, uint64_t after, bool asks = true);
  uint64_t next_number() { return ++last_number_; }

 private:
  Context& context_;
  uint64_t last_number_ = 0;
  std::vector<std::weak_ptr<PeerSession>> dialled_;  ///< oldest first
};

/// Lasts as long as one of its parts, or the door that took it.  Owner thread only.
class PeerSession final : public std::enable_shared_from_this<PeerSession>, private StreamOwner {
 public:
  /// Hears of the connections that the peer sets up inside.
  class Host {
   public:
    /// `first`: hello, rejoin or probe.
    virtual void on_connection(std::unique_ptr<Stream> stream,
                               const ControlReader::Message& first) = 0;

   protected:
    ~Host() = default;
  };

  /// A route that is to be dialled.  `asks`: others may join where the peer agrees.
  PeerSession(Context& context, const Route& route, bool asks);
  /// A peer's that asked for a session.  `read`: what has come behind that.
  PeerSession(Context& context, std::unique_ptr<Stream> stream, ControlReader read, Host& host);
  ~PeerSession() override;
  PeerSession(const PeerSession&) = delete;
  PeerSession& operator=(const PeerSession&) = delete;

  uint64_t number() const { return number_; }
  const ha::SessionState& state() const { return state_; }

  // Dialled.
  Result<void> dial();
  bool leads_over(const Route& route) const { return same_route(route_, route); }
  bool may_join();
  void join(SessionStream& stream);

  // Accepted.
  /// Says `share`, and gives out the part of the connection that came first.
  std::unique_ptr<Stream> begin();
  /// Takes what had come behind the first message.
  void read_on();
  /// No connection can be set up inside any more.
  void leave_host();
  bool is_idle() const { return idle_until_.has_value() && !state_.is_over(); }

 private:
  friend class SessionStream;
  /// What waits to be written for one connection.
  struct Outbox {
    std::deque<std::vector<std::byte>> messages;
    size_t bytes = 0;
  };
  // For the parts.
  Result<void> write(SessionStream& stream, std::span<const std::byte> message);
  bool all_arrived(const SessionStream& stream);
  void leave(SessionStream& stream);
  // StreamOwner
  void on_stream_open(Stream& stream) override;
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override;
  void on_stream_closed(Stream& stream, const Error& error) override;

  Duration unheard();
  bool is_used() const { return !streams_.empty() || !silent_.empty(); }
  Result<void> send(uint32_t number, std::span<const std::byte> message, bool last = false);
  Result<void> post(uint32_t number, std::span<const std::byte> message);
  void drain();
  void open_next();
  void open_waiting();
  void send_waiting_on(bool asks = true);
  void read();
  void on_answer(const ControlReader::Message& message);
  void take(const SessionReader::Part& part);
  void on_fresh(const SessionReader::Part& part);
  void hear_first(std::span<const std::byte> bytes);
  void look_whether_unused();
  void close();
  void end(const Error& error);
  void look_whether_sound();
  void on_timer();
  void arm();

  Context& context_;
  const std::shared_ptr<PeerSessions> all_;
  const Route route_;
  const uint64_t number_;
  ha::SessionState state_;
  ha::Unheard unheard_;
  Moment heard_{};                       ///< what came last
  std::shared_ptr<const KeyRing> keys_;  ///< by which a dialled one is sealed; null: by none
  std::unique_ptr<Stream> stream_;
  SessionReader reader_;
  std::map<uint32_t, SessionStream*> streams_;  ///< by number
  std::vector<SessionStream*> silent_;          ///< open, and have said nothing
  std::vector<SessionStream*> waiting_;         ///< to be opened
  std::map<uint32_t, Outbox> outboxes_;         ///< by number; none is empty
  uint32_t last_turn_ = 0;                      ///< whose message was written last
  Host* host_ = nullptr;                        ///< of an accepted one
  const bool accepted_;
  std::optional<Instant> idle_until_;  ///< an accepted one that no connection has
  Timer timer_;
};

}  // namespace nccl_ha
