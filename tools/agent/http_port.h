// Serves a few pages over HTTP/1.1: GET only, an answer per connection.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/streams/stream.h"
#include "tools/agent/socket_point.h"

namespace nccl_ha::tools {

struct HttpAnswer {
  std::string type;  ///< as Content-Type has it
  std::string body;
};

class HttpPort final : public Actor, private AcceptorOwner, private StreamOwner {
 public:
  /// Answers a path without its query; nullopt: there is no such page.
  using Pages = std::function<std::optional<HttpAnswer>(const std::string& path)>;
  static constexpr size_t request_max = 8192;
  static constexpr size_t clients_max = 32;

  /// `listener`: a listening TCP socket at `at`; ownership passes.
  HttpPort(int listener, const SocketPoint& at, Pages pages);
  ~HttpPort() override;
  const char* name() const override { return "agent-pages"; }
  void start(Context& context) override;
  void on(const Message& message) override { (void)message; }
  void stop() override;

 private:
  struct Client {
    std::unique_ptr<Stream> stream;
    std::string request;
    Instant since{};
  };
  using Place = std::list<Client>::iterator;

  void on_accept(int fd) override;
  void on_acceptor_error(const Error& error) override;
  void on_stream_open(Stream& stream) override { (void)stream; }
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override;
  void on_stream_closed(Stream& stream, const Error& error) override;
  Place find(const Stream& stream);
  /// The whole answer to a whole request.
  std::string answer(const std::string& request) const;
  void finish(Place client, const std::string& answer);
  void end_slow_ones();

  int listener_;
  const bool loopback_;
  const Pages pages_;
  Context* context_ = nullptr;
  std::unique_ptr<Acceptor> acceptor_;
  std::list<Client> clients_;
  Timer timer_;
};

/// The value of a header of a request, without blanks around it; nullopt: there is none.
std::optional<std::string> http_header(const std::string& request, const std::string& name);
/// Whether a Host header names an address or "localhost" rather than a name that somebody's DNS
/// gives: a page of theirs in a browser could otherwise read ours.
bool names_an_address(const std::string& host);

}  // namespace nccl_ha::tools
