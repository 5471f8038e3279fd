#include "tests/rig/sim/network.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/rig/sim/streams.h"

namespace nccl_ha::sim {
namespace {

constexpr size_t events_at_once_max = 1'000'000;

}  // namespace

Endpoint Endpoint::of(const sockaddr* address) {
  Endpoint endpoint;
  if (address != nullptr && address->sa_family == AF_INET) {
    const auto* in4 = reinterpret_cast<const sockaddr_in*>(address);
    endpoint.ip = ntohl(in4->sin_addr.s_addr);
    endpoint.port = ntohs(in4->sin_port);
  }
  return endpoint;
}

sockaddr_storage Endpoint::to_sockaddr() const {
  sockaddr_storage storage{};
  auto* in4 = reinterpret_cast<sockaddr_in*>(&storage);
  in4->sin_family = AF_INET;
  in4->sin_addr.s_addr = htonl(ip);
  in4->sin_port = htons(port);
  return storage;
}

/// What the kernel copies is the processor's.
class CopyingSink final : public fabric::PacketSink {
 public:
  CopyingSink(fabric::PacketSink& inner, GpuMemory& gpu_memory)
      : inner_(inner), gpu_memory_(gpu_memory) {}
  fabric::Placement place(std::span<const std::byte> head, size_t total, size_t segment) override {
    const fabric::Placement placement = inner_.place(head, total, segment);
    for (size_t i = 0; i < placement.part_count; ++i) {
      gpu_memory_.touch(placement.parts[i].iov_base, placement.parts[i].iov_len);
    }
    return placement;
  }
  void placed(size_t total) override { inner_.placed(total); }
  void packet(std::span<const std::byte> datagram) override { inner_.packet(datagram); }

 private:
  fabric::PacketSink& inner_;
  GpuMemory& gpu_memory_;
};

/// Two datagram sockets of a host.
class SimPackets final : public fabric::PacketIo {
 public:
  SimPackets(Network& network, Endpoint command, Endpoint data, ProcessTiePtr tie)
      : network_(network), at_{command, data}, tie_(std::move(tie)) {}
  ~SimPackets() override {
    for (const Endpoint& endpoint : at_) {
      if (tie_) {
        tie_->unread -= network_.arrivals_[endpoint].packets.size();
      }
      network_.arrivals_.erase(endpoint);
    }
  }

  size_t send(fabric::Channel channel, std::span<fabric::OutDatagram> out) override {
    for (const fabric::OutDatagram& datagram : out) {
      if (tie_ && tie_->dead) {
        break;
      }
      for (size_t i = 0; i < datagram.part_count; ++i) {
        network_.gpu_memory().touch(datagram.parts[i].iov_base, datagram.parts[i].iov_len);
      }
      split_datagram(datagram, [&](const std::vector<std::byte>& bytes) {
        network_.transmit(at_[static_cast<size_t>(channel)], Endpoint::of(datagram.to->get()),
                          bytes);
      });
    }
    return out.size();
  }
  size_t receive(fabric::Channel channel, fabric::PacketSink& sink, size_t limit) override {
    PacketQueue& packets = network_.arrivals_[at_[static_cast<size_t>(channel)]].packets;
    const size_t before = packets.size();
    CopyingSink copying(sink, network_.gpu_memory());
    const size_t calls = deliver(packets, channel, copying, limit, network_.now());
    if (tie_) {
      tie_->unread -= before - packets.size();
    }
    return calls;
  }
  fabric::SocketAddress local(fabric::Channel channel) const override {
    fabric::SocketAddress address;
    address.storage = at_[static_cast<size_t>(channel)].to_sockaddr();
    address.length = sizeof(sockaddr_in);
    return address;
  }
  size_t receive_buffer_bytes() const override { return 4U << 20; }
  bool segmentation_offload() const override { return true; }
  int wait_fd(fabric::Channel) const override { return -1; }

 private:
  Network& network_;
  Endpoint at_[fabric::channel_count];
  const ProcessTiePtr tie_;
};

Network::~Network() = default;

void Network::set_link(Ip from, Ip to, const Link& link) { links_[{from, to}] = link; }

const Link& Network::link(Ip from, Ip to) const {
  const auto found = links_.find({from, to});
  return found == links_.end() ? all : found->second;
}

bool Network::blocked(Ip from, Ip to) const {
  return gone_.contains(from) || gone_.contains(to) || link(from, to).cut;
}

void Network::mix(uint64_t value) {
  // FNV-1a over eight bytes (Fowler, Noll, Vo).
  for (int i = 0; i < 8; ++i) {
    trace_ = (trace_ ^ (value >> (8 * i) & 0xFF)) * 0x100000001B3;
  }
}

void Network::at(Instant due, std::function<void()> what) { events_.add(due, std::move(what)); }

size_t Network::advance() {
  size_t count = 0;
  while (!events_.empty() && events_.due() <= clock_.now()) {
    events_.take()();
    if (++count > events_at_once_max) {
      stuck_ = true;
      break;
    }
  }
  return count;
}

std::optional<Instant> Network::next_event() const {
  return events_.empty() ? std::nullopt : std::optional(events_.due());
}

std::optional<Instant> Network::leave(Ip from, Ip to, const Link& way, size_t bytes) {
  if (way.rate == 0) {
    return now();
  }
  const auto time_of = [&](size_t size) {
    return Duration(
        static_cast<int64_t>(1e9 * static_cast<double>(size) / static_cast<double>(way.rate)));
  };
  Instant& busy = busy_until_[{from, to}];
  if (busy > now() + time_of(way.queue_bytes)) {
    return std::nullopt;
  }
  busy = std::max(busy, now()) + time_of(bytes);
  return busy;
}

void Network::transmit(Endpoint from, Endpoint to, const std::vector<std::byte>& bytes) {
  ++counts_.packets;
  const Link& way = link(from.ip, to.ip);
  if (blocked(from.ip, to.ip)) {
    ++counts_.cut;
    return;
  }
  if (bytes.size() > way.datagram_max || random_.chance(way.drop)) {
    ++counts_.dropped;
    return;
  }
  carried_[{from.ip, to.ip}] += bytes.size();
  const auto left = leave(from.ip, to.ip, way, bytes.size());
  if (!left) {
    ++counts_.dropped;
    return;
  }
  int copies = 1;
  if (random_.chance(way.duplicate)) {
    ++counts_.duplicated;
    copies = 2;
  }
  for (int i = 0; i < copies; ++i) {
    Instant due = *left + way.delay;
    if (random_.chance(way.reorder)) {
      ++counts_.reordered;
      due += Duration(random_.below(static_cast<uint64_t>(4 * way.delay.count() + 1)));
    }
    at(due, [this, from, to, bytes] {
      const auto socket = arrivals_.find(to);
      if (socket == arrivals_.end() || blocked(from.ip, to.ip)) {
        ++counts_.cut;
        return;
      }
      mix(static_cast<uint64_t>(now().time_since_epoch().count()));
      mix(uint64_t{to.port} << 32 | bytes.size());
      socket->second.packets.push_back({now(), bytes});
      if (const ProcessTiePtr& tie = socket->second.tie) {
        ++tie->unread;
      }
    });
  }
}

std::unique_ptr<fabric::PacketIo> Network::open_packets(Ip local, ProcessTiePtr tie) {
  const Endpoint command{local, next_port_++};
  const Endpoint data{local, next_port_++};
  arrivals_[command].tie = tie;
  arrivals_[data].tie = tie;
  return std::make_unique<SimPackets>(*this, command, data, std::move(tie));
}

std::unique_ptr<StreamFactory> Network::make_streams(Ip local, ProcessTiePtr tie,
                                                     Duration user_timeout) {
  return std::make_unique<SimStreams>(*this, local, std::move(tie), user_timeout);
}

int Network::make_event() { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }

void Network::tell_owners(Ip local, const std::function<void(LinkWatchOwner&)>& tell) {
  for (const auto& [number, watching] : link_watches_) {
    if (watching.factory->local_ == local) {
      watching.factory->inbox_.emplace_back([this, number = number, tell] {
        if (const auto found = link_watches_.find(number); found != link_watches_.end()) {
          tell(*found->second.owner);
        }
      });
    }
  }
  stop_at(now());
}

void Network::tell_link(Ip local, const std::string& interface, bool up) {
  tell_owners(local, [interface, up](LinkWatchOwner& owner) { owner.on_link(interface, up); });
}

void Network::tell_gone(Ip local, const std::string& interface) {
  tell_link(local, interface, false);
  tell_owners(local, [interface](LinkWatchOwner& owner) { owner.on_link_gone(interface); });
}

void Network::readable(int fd) {
  if (const auto found = watching_.find(fd); found != watching_.end()) {
    found->second.factory->tell_readable(fd);
    stop_at(now());
  }
}

}  // namespace nccl_ha::sim
