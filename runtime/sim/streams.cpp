#include "runtime/sim/streams.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace nccl_ha::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// As the kernel and uv_streams.cpp have them: a segment that is not acknowledged goes out again
// after 200 ms, then at doubled intervals; a connection without acknowledgement for 30 s is dead; a
// connect tries again after 1, 2, 4 ... seconds and gives up in the end.
constexpr Duration first_retry = milliseconds(200);
constexpr Duration longest_retry = seconds(2);
constexpr Duration dead_after = seconds(30);
constexpr Duration first_dial = seconds(1);
constexpr Duration last_dial = seconds(32);
constexpr size_t backlog_max = 1 << 20;

}  // namespace

/// Tells the owner on its worker's next turn.
void Network::deliver_bytes(const ConnectionPtr& to, std::vector<std::byte> bytes) {
  mix(static_cast<uint64_t>(now().time_since_epoch().count()));
  mix(uint64_t{to->local.port} << 32 | bytes.size());
  counts_.stream_bytes += bytes.size();
  if (to->factory == nullptr) {
    to->early.push_back(std::move(bytes));
    return;
  }
  to->factory->inbox_.push_back([to, bytes = std::move(bytes)] {
    if (to->face != nullptr && to->owner != nullptr && !to->ended) {
      to->owner->on_stream_data(*to->face, bytes);
    }
  });
}

void Network::deliver_end(const ConnectionPtr& to, const Error& error) {
  mix(static_cast<uint64_t>(now().time_since_epoch().count()));
  mix(uint64_t{to->local.port} << 8 | static_cast<uint64_t>(error.code));
  to->open = false;
  if (to->factory == nullptr) {
    to->early_end = error;
    return;
  }
  to->factory->inbox_.push_back([to, error] {
    if (!to->ended && to->face != nullptr) {
      to->ended = true;
      if (to->owner != nullptr) {
        to->owner->on_stream_closed(*to->face, error);
      }
    }
  });
}

void Network::send_segment(const ConnectionPtr& from, std::vector<std::byte> bytes,
                           std::optional<Error> end) {
  Instant due = now() + link(from->local.ip, from->remote.ip).delay;
  if (!from->sent.empty()) {
    due = std::max(due, from->sent.back().due);
  }
  from->under_way += bytes.size();
  from->sent.push_back({due, std::move(bytes), std::move(end)});
  at(due, [this, from] {
    if (!from->stalled) {
      flush_segments(from);
    }
  });
}

void Network::flush_segments(const ConnectionPtr& from) {
  const ConnectionPtr to = from->other.lock();
  while (!from->sent.empty() && from->sent.front().due <= now()) {
    // A lost acknowledgement stops a stream as well as lost data does.
    if (blocked(from->local.ip, from->remote.ip) || blocked(from->remote.ip, from->local.ip)) {
      ++counts_.cut;
      if (!std::exchange(from->stalled, true)) {
        from->stalled_since = now();
        from->retry = first_retry;
      }
      if (now() - from->stalled_since >= dead_after) {
        from->sent.clear();
        deliver_end(from,
                    fail(Errc::remote, "the connection broke: nothing is acknowledged", ETIMEDOUT));
        return;
      }
      at(now() + from->retry, [this, from] { flush_segments(from); });
      from->retry = std::min(2 * from->retry, longest_retry);
      return;
    }
    from->stalled = false;
    Connection::Segment segment = std::move(from->sent.front());
    from->sent.pop_front();
    from->under_way -= segment.bytes.size();
    if (!to) {
      continue;
    }
    if (segment.end) {
      deliver_end(to, *segment.end);
    } else {
      deliver_bytes(to, std::move(segment.bytes));
    }
  }
}

/// A SYN on its way; the answer comes back after the delay of the other direction.
void Network::dial(const ConnectionPtr& from, Duration retry) {
  at(now() + link(from->local.ip, from->remote.ip).delay, [this, from, retry] {
    if (from->face == nullptr) {
      return;  // given up meanwhile
    }
    if (blocked(from->local.ip, from->remote.ip) || blocked(from->remote.ip, from->local.ip)) {
      ++counts_.cut;
      if (retry > last_dial) {
        deliver_end(from, fail(Errc::remote, "cannot connect: nobody answers"));
        return;
      }
      at(now() + retry, [this, from, retry] { dial(from, 2 * retry); });
      return;
    }
    const auto listener =
        std::find_if(listening_.begin(), listening_.end(), [&](const auto& entry) {
          const Listening& one = entry.second;
          return one.owner != nullptr && one.at.port == from->remote.port &&
                 (one.at.ip == from->remote.ip ||
                  (one.everywhere && same_host(one.at.ip, from->remote.ip)));
        });
    const Instant answer = now() + link(from->remote.ip, from->local.ip).delay;
    if (listener == listening_.end()) {
      at(answer,
         [this, from] { deliver_end(from, fail(Errc::remote, "cannot connect: refused")); });
      return;
    }
    auto accepted = std::make_shared<Connection>();
    accepted->network = this;
    accepted->local = from->remote;
    accepted->remote = from->local;
    accepted->other = from;
    accepted->open = true;
    from->other = accepted;
    const int token = next_token_--;
    accepted_[token] = accepted;
    const int listening = listener->first;
    listener->second.factory->inbox_.push_back([this, token, listening] {
      const auto found = listening_.find(listening);
      if (found != listening_.end() && found->second.owner != nullptr) {
        found->second.owner->on_accept(token);
      }
    });
    at(answer, [from] {
      if (from->face == nullptr || from->factory == nullptr) {
        return;
      }
      from->open = true;
      from->factory->inbox_.push_back([from] {
        if (from->face != nullptr && from->owner != nullptr) {
          from->owner->on_stream_open(*from->face);
        }
      });
    });
  });
}

SimStream::SimStream(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {
  connection_->face = this;
}

SimStream::~SimStream() {
  shutdown_then_close();
  connection_->face = nullptr;
}

Result<void> SimStream::write(std::span<const std::byte> bytes) {
  Connection& own = *connection_;
  if (!own.open) {
    return fail(Errc::closed, "the stream is not open");
  }
  if (own.under_way > backlog_max) {
    return fail(Errc::again, "the peer does not read its control stream");
  }
  own.network->send_segment(connection_, {bytes.begin(), bytes.end()}, std::nullopt);
  return {};
}

void SimStream::shutdown_then_close() {
  Connection& own = *connection_;
  own.owner = nullptr;
  own.ended = true;
  if (std::exchange(own.open, false)) {
    own.network->send_segment(connection_, {}, fail(Errc::closed, "the connection was closed"));
  }
}

/// Stops listening when it goes.
class SimAcceptor final : public Acceptor {
 public:
  SimAcceptor(Network& network, int token) : network_(network), token_(token) {}
  ~SimAcceptor() override { network_.listening_.erase(token_); }

 private:
  Network& network_;
  const int token_;
};

SimStreams::~SimStreams() {
  for (auto& [token, listening] : network_.listening_) {
    if (listening.factory == this) {
      listening.owner = nullptr;
      listening.factory = nullptr;
    }
  }
}

Result<std::unique_ptr<Stream>> SimStreams::connect_tcp(const sockaddr* to, const sockaddr* from,
                                                        StreamOwner* owner) {
  auto connection = std::make_shared<Connection>();
  connection->network = &network_;
  connection->factory = this;
  connection->owner = owner;
  connection->remote = Endpoint::of(to);
  connection->local.ip = from == nullptr ? local_ : Endpoint::of(from).ip;
  connection->local.port = network_.next_port_++;
  if (connection->remote.ip == 0) {
    return fail(Errc::invalid_argument, "the simulated network knows IPv4 only");
  }
  auto stream = std::make_unique<SimStream>(connection);
  network_.dial(connection, first_dial);
  return std::unique_ptr<Stream>(std::move(stream));
}

Result<std::unique_ptr<Stream>> SimStreams::connect_unix(const std::string& path,
                                                         StreamOwner* owner) {
  (void)owner;
  return fail(Errc::invalid_usage, "the simulated network has no UNIX sockets: " + path);
}

Result<std::unique_ptr<Stream>> SimStreams::adopt_fd(int fd, StreamOwner* owner) {
  const auto found = network_.accepted_.find(fd);
  if (found == network_.accepted_.end()) {
    return fail(Errc::invalid_argument, "not a connection of the simulated network");
  }
  auto connection = std::move(found->second);
  network_.accepted_.erase(found);
  connection->factory = this;
  connection->owner = owner;
  auto stream = std::make_unique<SimStream>(connection);
  for (auto& bytes : std::exchange(connection->early, {})) {
    network_.deliver_bytes(connection, std::move(bytes));
  }
  if (connection->early_end) {
    network_.deliver_end(connection, *connection->early_end);
  }
  return std::unique_ptr<Stream>(std::move(stream));
}

Result<std::unique_ptr<Acceptor>> SimStreams::adopt_listener(int fd, AcceptorOwner* owner) {
  const auto found = network_.listening_.find(fd);
  if (found == network_.listening_.end() || found->second.owner != nullptr) {
    return fail(Errc::invalid_argument, "not a free listening socket of the simulated network");
  }
  found->second.factory = this;
  found->second.owner = owner;
  return std::unique_ptr<Acceptor>(std::make_unique<SimAcceptor>(network_, fd));
}

Result<std::unique_ptr<Acceptor>> SimStreams::listen_tcp(std::string_view ports, uint16_t* port,
                                                         AcceptorOwner* owner) {
  (void)ports;
  *port = network_.next_port_++;
  const int token = network_.listen(local_, *port);
  network_.listening_[token].everywhere = true;
  return adopt_listener(token, owner);
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
