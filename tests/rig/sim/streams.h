// Byte streams and watched descriptors of a simulated process.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "tests/rig/sim/network.h"

namespace nccl_ha::sim {

class SimStream final : public Stream {
 public:
  SimStream(Tcp& tcp, TcpEndPtr end) : tcp_(tcp), end_(std::move(end)) { end_->face = this; }
  ~SimStream() override {
    shutdown_then_close();
    end_->face = nullptr;
  }
  void set_owner(StreamOwner* owner) override { end_->owner = owner; }
  Result<void> write(std::span<const std::byte> bytes) override { return tcp_.write(end_, bytes); }
  bool all_arrived() const override {
    return end_->state != TcpEnd::State::dialling && end_->sent.empty();
  }
  size_t backlog() const override { return end_->under_way; }
  void shutdown_then_close() override { tcp_.close(end_); }
  Result<sockaddr_storage> local_address() override { return end_->local.to_sockaddr(); }
  Result<sockaddr_storage> peer_address() override { return end_->remote.to_sockaddr(); }

 private:
  Tcp& tcp_;
  const TcpEndPtr end_;
};

/// Of one worker.
class SimStreams final : public StreamFactory {
 public:
  SimStreams(Network& network, Ip local, ProcessTiePtr tie, Duration user_timeout)
      : network_(network), local_(local), tie_(std::move(tie)), user_timeout_(user_timeout) {}
  ~SimStreams() override { network_.tcp().forget(*this); }

  Result<std::unique_ptr<Stream>> connect_tcp(const sockaddr* to, const sockaddr* from,
                                              StreamOwner* owner) override;
  Result<std::unique_ptr<Stream>> connect_unix(const std::string& path,
                                               StreamOwner* owner) override;
  Result<std::unique_ptr<Stream>> adopt_fd(int fd, StreamOwner* owner) override;
  Result<std::unique_ptr<Acceptor>> adopt_listener(int fd, AcceptorOwner* owner) override;
  Result<Listening> open_listener(std::string_view ports) override;
  Result<std::unique_ptr<DatagramEndpoint>> bind_datagram(const sockaddr* address,
                                                          DatagramOwner* owner) override;
  Result<std::unique_ptr<FdWatch>> watch_fd(int fd, FdWatchOwner* owner) override;
  Result<std::unique_ptr<LinkWatch>> watch_links(LinkWatchOwner* owner) override;
  unsigned turn() override;
  size_t open_handles() const override { return 0; }
  /// Its watcher hears of it in the next turn.
  void tell_readable(int fd);

 private:
  friend class Tcp;
  friend class Network;

  Network& network_;
  const Ip local_;
  const ProcessTiePtr tie_;
  const Duration user_timeout_;
  std::deque<std::function<void()>> inbox_;  ///< what turn() will tell
};

}  // namespace nccl_ha::sim
