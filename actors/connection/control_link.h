// The control messages of a connection: over a stream, over the paths, and over a stream made anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/connection/control_boxes.h"
#include "actors/connection/path_set.h"
#include "actors/connection/state.h"
#include "actors/control.h"
#include "actors/door.h"
#include "actors/peer_session.h"
#include "actors/rejoin.h"
#include "actors/route.h"
#include "ha/control_sequencer.h"
#include "ha/unheard.h"
#include "runtime/streams/stream.h"

namespace nccl_ha {

/// Takes each of the peer's messages once and in order, whatever ways it comes, and keeps this
/// side's until the peer has confirmed them.  One thread.
class ControlLink final : private StreamOwner,
                          private Door::Member,
                          private Rejoin::Owner,
                          private ControlBoxes::Owner {
 public:
  class Owner {
   public:
    virtual void on_stream_open(Stream& stream) = 0;
    /// While the connection is live.
    virtual void on_control(const ControlReader::Message& message) = 0;
    /// The peer has spoken without saying anything: it is ready.
    virtual void on_confirm() = 0;
    /// While the connection lingers: the peer ends as well.
    virtual void on_last_words() = 0;
    /// While it lingers: the peer closed the stream in good order.
    virtual void on_peer_left() = 0;
    /// The peer has closed, and what it sent before is still being dealt with.
    virtual bool peer_may_leave() const = 0;
    /// Messages, or the end of the stream, were dealt with.
    virtual void on_heard() = 0;
    /// A message for the peer waits to be confirmed.
    virtual void on_unconfirmed() = 0;
    /// The stream is gone, which says nothing of the peer.
    virtual void on_stream_lost(const Error& why) = 0;
    /// A new one has taken its place.
    virtual void on_stream_back() = 0;
    /// May the peer's rejoin become the connection's stream?
    virtual bool takes_streams() const = 0;
    /// The peer is told what this side failed with; Errc::ok: it did not.
    virtual const Error& failure() const = 0;
    /// The connection failed at the peer, which says why.
    virtual void on_refused(const Refusal& why) = 0;
    virtual void on_peer_gone(const Error& why) = 0;
    /// The peer is looked for: the paths should be asked for a heartbeat too.
    virtual void on_attempt() = 0;
    /// Soon, from the actor's own message: read_inbox().
    virtual void on_inbox() = 0;

   protected:
    ~Owner() = default;
  };

  ControlLink(Owner& owner, ConnectionState& state, PathSet& paths)
      : owner_(owner), state_(state), paths_(paths) {}
  ~ControlLink() override;
  ControlLink(const ControlLink&) = delete;
  ControlLink& operator=(const ControlLink&) = delete;

  // The stream.
  Result<void> dial(const Route& route);
  /// Reads from the beginning of a stream, with what was read from it already.
  void adopt(std::unique_ptr<Stream> stream, ControlReader reader);
  Stream* stream() { return stream_.get(); }
  const Stream* stream() const { return stream_.get(); }
  /// Of the stream, or what was remembered; empty: neither.  For messages.
  std::string peer_address() const;
  void remember_peer_address() { peer_address_ = peer_address(); }
  /// Before anything was agreed: as if it had never been.
  void drop_stream();
  /// It lingers by itself until what was written is out.
  void end_stream();
  /// The same in place of the one before.
  void take_stream(std::unique_ptr<Stream> stream, ControlReader reader);
  void read_stream();
  void read_inbox();

  /// Over the stream only, without a number: the handshake, and a failure before its end.
  void send_plain(std::span<const std::byte> frame);
  /// Over every way there is.
  void send(std::vector<std::byte> frame);
  /// Tells the peer what has been taken of its messages.
  void send_confirm();
  /// Asks the peer, over the stream, for a sign that it runs.
  void send_ask();
  bool any_unconfirmed() const { return sequencer_.first_open() != sequencer_.next(); }
  /// What of this side's is not confirmed, its next message, and what is expected of the peer; all
  /// only grow.
  uint32_t first_unconfirmed() const { return sequencer_.first_open(); }
  uint32_t next_number() const { return sequencer_.next(); }
  uint32_t expected() const { return sequencer_.expected(); }
  uint64_t stream_messages() const { return stream_messages_; }
  /// For so long, of this process's time, the peer's host has not confirmed what was sent over the
  /// stream: since it began, or was last asked about.  No stream: nothing was.
  Duration unheard_for();
  /// The peer knows this connection by a token (rejoin_point()).
  bool has_token() const { return door_ != nullptr; }

  ControlBoxes& boxes() { return boxes_; }
  Rejoin& rejoin() { return rejoin_; }
  const Rejoin& rejoin() const { return rejoin_; }
  /// Where this side takes streams or probes; opens the door.
  RejoinPoint rejoin_point();
  /// Writes the latest message to the stream that a rejoin under way has opened.
  void write_latest_to_rejoin();

 private:
  // StreamOwner
  void on_stream_open(Stream& stream) override {
    session_ = stream.session();
    owner_.on_stream_open(stream);
  }
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override;
  void on_stream_closed(Stream& stream, const Error& error) override;
  // Door::Member
  void on_call(ControlType call, std::unique_ptr<Stream> stream, ControlReader reader) override;
  // Rejoin::Owner
  void on_attempt() override { owner_.on_attempt(); }
  Result<std::unique_ptr<Stream>> connect(const Route& route, StreamOwner* owner) override;
  uint64_t life() const override { return paths_.life(); }
  void write_unconfirmed(Stream& stream) override;
  void on_rejoined(std::unique_ptr<Stream> stream, ControlReader reader) override;
  void on_peer_failed(const Refusal& why) override { owner_.on_refused(why); }
  void on_peer_dead(const Error& why) override;
  void on_broken(const char* what) override { state_.on_broken(what); }
  // ControlBoxes::Owner
  void on_box_message() override { owner_.on_inbox(); }
  void on_box_room() override { send_confirm(); }

  void lose_stream(const Error& why);
  void deliver(const ControlReader::Message& message);
  void hear_last(const ControlReader::Message& message);
  void confirm_what_was_heard();

  Owner& owner_;
  ConnectionState& state_;
  PathSet& paths_;
  ha::ControlSequencer sequencer_;
  ControlBoxes boxes_{*this, state_, paths_, sequencer_};
  Rejoin rejoin_{*this};
  std::shared_ptr<PeerSessions> sessions_;  ///< once a stream was, or might be, shared
  uint64_t session_ = 0;                    ///< of the last stream
  std::unique_ptr<Stream> stream_;
  ControlReader reader_;
  ha::Unheard unheard_;  ///< the stream
  std::string peer_address_;
  uint64_t stream_messages_ = 0;  ///< taken from streams
  bool confirm_due_ = false;
  std::shared_ptr<Door> door_;  ///< where the peer may come back; may be null
  Secret rejoin_token_;
};

}  // namespace nccl_ha
