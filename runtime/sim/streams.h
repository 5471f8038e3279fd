// Byte streams of a simulated network: what TCP promises, on virtual time.
#pragma once

#include <deque>
#include <memory>

#include "runtime/sim/network.h"

namespace nccl_ha::sim {

/// One end of a connection.  The two ends know each other until one is gone.
struct Connection {
  Network* network = nullptr;
  SimStreams* factory = nullptr;  ///< null: accepted, not adopted yet; or its worker is gone
  class SimStream* face = nullptr;
  StreamOwner* owner = nullptr;
  Endpoint local;
  Endpoint remote;
  std::weak_ptr<Connection> other;
  bool open = false;
  bool ended = false;    ///< the owner was told, or nobody is to be told
  size_t under_way = 0;  ///< bytes written and not delivered
  struct Segment {
    Instant due;
    std::vector<std::byte> bytes;
    std::optional<Error> end;  ///< instead of bytes: FIN
  };
  std::deque<Segment> sent;  ///< in order; what is sent later arrives later
  bool stalled = false;      ///< the oldest met a cut and is sent again
  Instant stalled_since{};
  Duration retry{};
  std::deque<std::vector<std::byte>> early;  ///< arrived before adoption
  std::optional<Error> early_end;
};

class SimStream final : public Stream {
 public:
  explicit SimStream(std::shared_ptr<Connection> connection);
  ~SimStream() override;
  void set_owner(StreamOwner* owner) override { connection_->owner = owner; }
  Result<void> write(std::span<const std::byte> bytes) override;
  void shutdown_then_close() override;
  Result<sockaddr_storage> local_address() override { return connection_->local.to_sockaddr(); }
  Result<sockaddr_storage> peer_address() override { return connection_->remote.to_sockaddr(); }

 private:
  std::shared_ptr<Connection> connection_;
};

class SimStreams final : public StreamFactory {
 public:
  SimStreams(Network& network, Ip local) : network_(network), local_(local) {}
  ~SimStreams() override;

  Result<std::unique_ptr<Stream>> connect_tcp(const sockaddr* to, const sockaddr* from,
                                              StreamOwner* owner) override;
  Result<std::unique_ptr<Stream>> connect_unix(const std::string& path,
                                               StreamOwner* owner) override;
  Result<std::unique_ptr<Stream>> adopt_fd(int fd, StreamOwner* owner) override;
  Result<std::unique_ptr<Acceptor>> adopt_listener(int fd, AcceptorOwner* owner) override;
  Result<std::unique_ptr<Acceptor>> listen_tcp(std::string_view ports, uint16_t* port,
                                               AcceptorOwner* owner) override;
  Result<std::unique_ptr<DatagramEndpoint>> bind_datagram(const sockaddr* address,
                                                          DatagramOwner* owner) override;
  Result<std::unique_ptr<FdWatch>> watch_fd(int fd, FdWatchOwner* owner) override;
  unsigned turn() override;
  size_t open_handles() const override { return 0; }
  /// Its watcher hears of it in the next turn.
  void tell_readable(int fd);

 private:
  friend class Network;
  friend class SimFdWatch;
  friend class SimStream;
  friend class SimAcceptor;

  Network& network_;
  const Ip local_;
  std::deque<std::function<void()>> inbox_;  ///< what turn() will tell
};

}  // namespace nccl_ha::sim
