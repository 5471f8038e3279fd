#include "tests/support/sim_cables.h"

#include <unistd.h>

namespace nccl_ha::test {
namespace {

fabric::SocketAddress address_on_cable(size_t host, bool loopback, bool moved) {
  IpAddress address;
  address.bytes = {static_cast<uint8_t>(loopback ? 127 : 10), static_cast<uint8_t>(moved ? 1 : 0),
                   static_cast<uint8_t>(host >> 8), static_cast<uint8_t>(host)};
  fabric::SocketAddress made;
  made.length = address.to_sockaddr(1, &made.storage);
  return made;
}

}  // namespace

class SimCables::Links final : public relay::MeshLinks {
 public:
  Links(SimCables& cables, size_t host) : cables_(cables), host_(host) {
    cables_.hosts_[host].fd = sim::Network::make_event();
  }
  ~Links() override {
    close(cables_.hosts_[host_].fd);
    cables_.hosts_[host_].fd = -1;
  }
  void use(const std::vector<fabric::NetInterface>& interfaces) override { (void)interfaces; }
  void send(uint32_t interface, const fabric::SocketAddress* to,
            std::span<const std::byte> packet) override {
    (void)to;
    const auto& [number, end] = cables_.hosts_[host_].plugs.at(interface - 1);
    const Cable& cable = cables_.cables_[number];
    if (cable.cut) {
      return;
    }
    const End other = cable.ends[1 - end];
    cables_.network_.call_at(
        cables_.network_.now() + cables_.delay,
        [&cables = cables_, other, from = host_,
         bytes = std::vector(packet.begin(), packet.end())]() mutable {
          cables.deliver(other.host, {other.interface, from, std::move(bytes)});
        });
  }
  size_t receive(Sink& sink, size_t limit) override {
    Host& host = cables_.hosts_[host_];
    size_t count = 0;
    for (; count < limit && !host.arrived.empty(); ++count) {
      const Arrived one = std::move(host.arrived.front());
      host.arrived.pop_front();
      sink.on_packet(one.interface,
                     address_on_cable(one.from, one.interface == 0, cables_.hosts_[one.from].moved),
                     one.interface == 0, one.bytes);
    }
    if (!host.arrived.empty()) {
      cables_.network_.readable(host.fd);
    }
    return count;
  }
  void answer(const fabric::SocketAddress& to, std::span<const std::byte> packet) override {
    (void)to;
    cables_.answers_.emplace_back(packet.begin(), packet.end());
  }
  std::array<int, 2> wait_fds() const override { return {cables_.hosts_[host_].fd, -1}; }

 private:
  SimCables& cables_;
  size_t host_;
};

size_t SimCables::add_cable(size_t one, size_t other) {
  Cable cable;
  for (size_t end = 0; end < 2; ++end) {
    const size_t host = end == 0 ? one : other;
    hosts_[host].plugs.emplace_back(cables_.size(), end);
    cable.ends[end] = {host, static_cast<uint32_t>(hosts_[host].plugs.size())};
  }
  cables_.push_back(cable);
  return cables_.size() - 1;
}

std::unique_ptr<relay::MeshLinks> SimCables::links(size_t host) {
  return std::make_unique<Links>(*this, host);
}

std::vector<fabric::NetInterface> SimCables::interfaces(size_t host, bool seen) const {
  std::vector<fabric::NetInterface> out;
  for (size_t i = 0; i < hosts_[host].plugs.size(); ++i) {
    fabric::NetInterface one;
    one.name = "if" + std::to_string(i);
    one.ifindex = static_cast<int>(i + 1);
    one.speed_mbps = 200000;
    one.up = true;
    if (!seen || !cables_[hosts_[host].plugs[i].first].cut) {
      out.push_back(one);
    }
  }
  return out;
}

void SimCables::ask(size_t host, std::vector<std::byte> packet) {
  deliver(host, {0, host, std::move(packet)});
}

void SimCables::deliver(size_t host, Arrived arrived) {
  if (hosts_[host].fd >= 0) {
    hosts_[host].arrived.push_back(std::move(arrived));
    network_.readable(hosts_[host].fd);
  }
}

}  // namespace nccl_ha::test
