#include "tests/rig/sim/streams.h"

#include <cerrno>
#include <utility>

namespace nccl_ha::sim {

/// Stops listening when it goes.
class SimAcceptor final : public Acceptor {
 public:
  SimAcceptor(Tcp& tcp, int token) : tcp_(tcp), token_(token) {}
  ~SimAcceptor() override { tcp_.stop_listening(token_); }

 private:
  Tcp& tcp_;
  const int token_;
};

Result<std::unique_ptr<Stream>> SimStreams::connect_tcp(const sockaddr* to, const sockaddr* from,
                                                        StreamOwner* owner) {
  const Endpoint remote = Endpoint::of(to);
  if (remote.ip == 0) {
    return fail(Errc::invalid_argument, "the simulated network knows IPv4 only");
  }
  if (tie_ && tie_->dead) {
    return fail(Errc::closed, "the process is dead");
  }
  Endpoint own{from == nullptr ? local_ : Endpoint::of(from).ip, 0};
  if (const auto moved = network_.moved_.find(own.ip); moved != network_.moved_.end()) {
    if (from != nullptr) {
      return fail(Errc::remote, "cannot connect from that address of this host", EADDRNOTAVAIL);
    }
    own.ip = moved->second;
  }
  own.port = network_.next_port_++;
  auto end = network_.tcp().dial(*this, own, remote, user_timeout_);
  end->owner = owner;
  return std::unique_ptr<Stream>(std::make_unique<SimStream>(network_.tcp(), std::move(end)));
}

Result<std::unique_ptr<Stream>> SimStreams::connect_unix(const std::string& path,
                                                         StreamOwner* owner) {
  const auto found = network_.unix_.find({network_.host_of(local_), path});
  if (found == network_.unix_.end()) {
    return fail(Errc::remote, "cannot connect", ENOENT);
  }
  const sockaddr_storage to = found->second.to_sockaddr();
  return connect_tcp(reinterpret_cast<const sockaddr*>(&to), nullptr, owner);
}

Result<std::unique_ptr<Stream>> SimStreams::adopt_fd(int fd, StreamOwner* owner) {
  auto end = network_.tcp().adopt(fd, *this, owner, user_timeout_);
  if (!end) {
    return end.error();
  }
  auto stream = std::make_unique<SimStream>(network_.tcp(), *end);
  network_.tcp().tell_early(*end);
  return std::unique_ptr<Stream>(std::move(stream));
}

Result<std::unique_ptr<Acceptor>> SimStreams::adopt_listener(int fd, AcceptorOwner* owner) {
  if (auto served = network_.tcp().serve(fd, *this, owner); !served) {
    return served.error();
  }
  return std::unique_ptr<Acceptor>(std::make_unique<SimAcceptor>(network_.tcp(), fd));
}

Result<Listening> SimStreams::open_listener(std::string_view ports) {
  (void)ports;
  const uint16_t port = network_.next_port_++;
  return Listening{network_.listen(local_, port), port};
}

Result<std::unique_ptr<DatagramEndpoint>> SimStreams::bind_datagram(const sockaddr* address,
                                                                    DatagramOwner* owner) {
  (void)address;
  (void)owner;
  return fail(Errc::invalid_usage, "the simulated network has no control-plane datagrams");
}

class SimFdWatch final : public FdWatch {
 public:
  SimFdWatch(Network& network, int fd) : network_(network), fd_(fd) {}
  ~SimFdWatch() override { network_.watching_.erase(fd_); }

 private:
  Network& network_;
  const int fd_;
};

Result<std::unique_ptr<FdWatch>> SimStreams::watch_fd(int fd, FdWatchOwner* owner) {
  network_.watching_[fd] = {this, owner};
  tell_readable(fd);  // there may be something already
  return std::unique_ptr<FdWatch>(std::make_unique<SimFdWatch>(network_, fd));
}

void SimStreams::tell_readable(int fd) {
  inbox_.emplace_back([&network = network_, fd] {
    if (const auto found = network.watching_.find(fd); found != network.watching_.end()) {
      found->second.owner->on_readable(fd);
    }
  });
}

class SimLinkWatch final : public LinkWatch {
 public:
  SimLinkWatch(Network& network, uint64_t number) : network_(network), number_(number) {}
  ~SimLinkWatch() override { network_.link_watches_.erase(number_); }

 private:
  Network& network_;
  const uint64_t number_;
};

Result<std::unique_ptr<LinkWatch>> SimStreams::watch_links(LinkWatchOwner* owner) {
  const uint64_t number = network_.next_link_watch_++;
  network_.link_watches_[number] = {this, owner};
  return std::unique_ptr<LinkWatch>(std::make_unique<SimLinkWatch>(network_, number));
}

unsigned SimStreams::turn() {
  unsigned count = 0;
  // What the callbacks cause comes in the next turn, as with real sockets.
  for (size_t left = inbox_.size(); left > 0; --left) {
    const auto tell = std::move(inbox_.front());
    inbox_.pop_front();
    tell();
    ++count;
  }
  return count;
}

}  // namespace nccl_ha::sim
