// Where peers come back with a new control stream when the old one is lost, or ask whether a
// connection is still known.
//
// One listening socket for all connections of a worker.  The first message of a stream names the
// connection and this process; who names another one is told that it is absent.  An unauthenticated
// peer has a few seconds, and less where there are many of them (runtime/streams/admission.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "actors/control.h"
#include "runtime/base/secret.h"
#include "runtime/engine/context.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/streams/admission.h"
#include "runtime/streams/stream.h"

namespace nccl_ha {

/// This process.
ProcessId own_process();
/// Says it on a stream that ends with it.
void answer_and_close(std::unique_ptr<Stream> stream, std::span<const std::byte> frame);

class ControlPort final : private AcceptorOwner, private StreamOwner {
 public:
  class Member {
   public:
    /// `call` is rejoin or probe.  Takes over the stream and what has been read from it behind
    /// that.
    virtual void on_call(ControlType call, std::unique_ptr<Stream> stream,
                         ControlReader reader) = 0;

   protected:
    ~Member() = default;
  };

  /// That of the context's worker; null (logged) when it cannot listen.  The members keep it.
  static std::shared_ptr<ControlPort> of(Context& context);
  explicit ControlPort(Context& context);
  ~ControlPort() override;

  uint16_t port() const { return port_; }
  const ProcessId& process() const { return process_; }
  /// The token by which the peer names the member.
  Secret enter(Member* member);
  void remove(Secret token) { members_.erase(token); }

 private:
  struct Unauthenticated {
    Origin origin;
    std::unique_ptr<Stream> stream;
    ControlReader reader;
    Instant since;
  };
  void on_accept(int fd) override;
  void on_acceptor_error(const Error& error) override;
  void on_stream_open(Stream& stream) override { (void)stream; }
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override;
  void on_stream_closed(Stream& stream, const Error& error) override;
  std::vector<Unauthenticated>::iterator find(const Stream& stream);
  void turn_out_the_late();

  Context& context_;
  std::unique_ptr<Acceptor> acceptor_;
  uint16_t port_ = 0;
  const ProcessId process_;
  std::map<Secret, Member*> members_;
  std::vector<Unauthenticated> unauthenticated_;  ///< who came first first
  Timer timer_;
};

}  // namespace nccl_ha
