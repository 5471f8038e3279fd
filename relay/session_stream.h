// The stream between two neighbours on a route: whole messages, and pings that show that the other
// one still runs.  Worker's thread.
#pragma once

#include <memory>
#include <vector>

#include "relay/hop_source.h"
#include "relay/session_message.h"
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
  /// Silent for so long: the neighbour's process or host is gone.
  static constexpr Duration silence_max = std::chrono::milliseconds(2000);

  SessionStream(Context& context, Owner* owner);
  ~SessionStream() override;
  SessionStream(const SessionStream&) = delete;
  SessionStream& operator=(const SessionStream&) = delete;

  /// The owner hears that it is open, or lost.
  Result<void> dial(const NextHop& next);
  /// Takes a connected socket.
  Result<void> adopt(int fd);
  void set_owner(Owner* owner) { owner_ = owner; }
  /// What cannot be written is lost together with the stream, of which the owner hears.
  void send(const SessionMessage& message);
  /// Sends what was written and closes; the owner hears nothing any more.
  void close();

  /// This host's own on the way to the neighbour.
  Result<sockaddr_storage> local_address();

 private:
  void on_stream_open(Stream& stream) override;
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override;
  void on_stream_closed(Stream& stream, const Error& error) override;
  void on_timer();
  void begin();
  void lose(const Error& error);

  Context& context_;
  Owner* owner_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::byte> received_;
  Timer timer_;
  Instant heard_{};
  bool lost_ = false;
  bool closed_ = false;  ///< this side has ended the stream
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace nccl_ha::relay
