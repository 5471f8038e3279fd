// Makes a connection's control stream anew after it was lost, and finds out meanwhile whether the
// peer is still there (ha/redial.h, ha/peer_verdict.h).
//
// The connector dials the acceptor's door and says `rejoin`; where the peer answers
// `present`, the new stream is the connection's.  The acceptor cannot make streams of a connection:
// it dials the connector's door, says `probe` and learns only whether the connector lives.  Ways
// are dialled beside each other, and who takes the stream first is spoken to, for as long as nobody
// calls stop().
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "actors/control.h"
#include "actors/route.h"
#include "ha/redial.h"
#include "runtime/engine/context.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/streams/stream.h"

namespace nccl_ha {

/// Of the worker that owns the connection.
class Rejoin final : private StreamOwner {
 public:
  /// Where the peer may be reached; its port is the door's.
  struct Way {
    sockaddr_storage to{};
    sockaddr_storage from{};  ///< ss_family 0: any
    bool proven = false;      ///< known to lead to the peer's own host
  };
  class Owner {
   public:
    /// An attempt begins: the paths should be asked for a heartbeat too.
    virtual void on_attempt() = 0;
    /// A stream to dial with, as PeerStreams::connect_tcp() makes it.
    virtual Result<std::unique_ptr<Stream>> connect(const Route& route, StreamOwner* owner) = 0;
    /// How much has got through all paths; only differences mean something.
    virtual uint64_t life() const = 0;
    /// A rejoin is under way: writes what the peer has not confirmed.
    virtual void write_unconfirmed(Stream& stream) = 0;
    /// The peer has taken the stream for the connection's; what it said next may be in the reader.
    virtual void on_rejoined(std::unique_ptr<Stream> stream, ControlReader reader) = 0;
    /// The connection failed at the peer, which still knows why.
    virtual void on_peer_failed(const Refusal& why) = 0;
    virtual void on_peer_dead(const Error& why) = 0;
    /// What this program keeps true is not (ha/invariant.h).
    virtual void on_broken(const char* what) = 0;

   protected:
    ~Owner() = default;
  };

  explicit Rejoin(Owner& owner);
  /// That of a stream which led to the peer.
  static Way way_between(const sockaddr_storage& peer, const sockaddr_storage& local);
  ~Rejoin() override;
  Rejoin(const Rejoin&) = delete;
  Rejoin& operator=(const Rejoin&) = delete;

  /// `call`: rejoin or probe.  A peer whose port is 0 cannot be dialled: start() does nothing.
  void prepare(Context& context, ControlType call, std::vector<Way> ways, const RejoinPoint& peer);
  bool possible() const { return peer_.port != 0; }
  const RejoinPoint& peer() const { return peer_; }
  /// Those that lead to an address to which none of `ways` does.
  static void add_missing(std::vector<Way>& ways, const std::vector<Way>& others);
  /// The ways that there are by now: those are added to whose address none leads yet that is one of
  /// them or begins anywhere.  True: there are some; they are dialled from dial_now() on.
  bool add(const std::vector<Way>& now);
  size_t ways() const { return ways_.size(); }
  /// Led to the peer: tried first from now on.
  void add_proven(const Way& way);
  /// Dials after that time, then until stop(); `lost`: what happened to the stream, for messages.
  void start(Duration in, const Error& lost);
  void stop();
  /// A network may be back: all ways are dialled anew, at once.  Nothing where nobody is dialled.
  void dial_now();
  bool running() const { return running_; }
  /// That are under way.
  size_t dials() const { return attempts_.size(); }
  /// Does a stream between these addresses lead to the peer itself?  Behind address translation the
  /// peer has another address than it is reached at.
  static bool leads_to(const RejoinPoint& peer, const sockaddr_storage& to);
  /// Writes to the stream of the rejoin under way, if the peer is spoken to.
  void write(std::span<const std::byte> frame);

 private:
  using Answer = ha::Redial::Answer;
  /// A dial, from its beginning to an answer.
  struct Attempt {
    size_t way = 0;
    Instant until{};
    std::unique_ptr<Stream> stream;
    ControlReader reader;
    bool open = false;
    bool spoken = false;  ///< what this side has to say was said there
  };
  using Attempts = std::vector<Attempt>;
  void begin();
  void on_timer();
  void arm();
  void dial(size_t at);
  void make_room();
  void speak();
  void drop(Attempts::iterator one);
  void drop_all();
  Attempts::iterator find(const Stream& stream);
  /// Ends the attempt.
  void on_answer(Attempts::iterator one, Answer answer, const Error& what);
  void on_message(Attempts::iterator one, const ControlReader::Message& message);
  void on_stream_open(Stream& stream) override;
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override;
  void on_stream_closed(Stream& stream, const Error& error) override;

  Owner& owner_;
  Context* context_ = nullptr;
  ControlType call_ = ControlType::rejoin;
  std::vector<Way> ways_;
  RejoinPoint peer_;
  ha::Redial redial_;
  Error lost_;
  Timer timer_;
  bool running_ = false;
  Attempts attempts_;
};

}  // namespace nccl_ha
