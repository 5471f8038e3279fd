#include "tests/support/memory_network.h"

#include <algorithm>

namespace nccl_ha::test {

using fabric::Channel;
using fabric::SocketAddress;

class MemoryIo final : public fabric::PacketIo {
 public:
  MemoryIo(MemoryNetwork& network, uint16_t command, uint16_t data)
      : network_(network), ports_{command, data} {}

  size_t send(Channel channel, std::span<fabric::OutDatagram> out) override {
    for (const fabric::OutDatagram& datagram : out) {
      fabric::split_datagram(datagram, [&](std::vector<std::byte> bytes) {
        network_.transmit(channel, datagram.to->port(), std::move(bytes));
      });
    }
    return out.size();
  }

  size_t receive(Channel channel, fabric::PacketSink& sink, size_t limit) override {
    return sim::deliver(network_.queues_[ports_[static_cast<size_t>(channel)]], channel, sink,
                        limit, network_.now_);
  }

  SocketAddress local(Channel channel) const override {
    SocketAddress address;
    auto* in4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    in4->sin_family = AF_INET;
    in4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    in4->sin_port = htons(ports_[static_cast<size_t>(channel)]);
    address.length = sizeof(sockaddr_in);
    return address;
  }
  size_t receive_buffer_bytes() const override { return 4U << 20; }
  bool segmentation_offload() const override { return true; }
  int wait_fd(Channel) const override { return -1; }

 private:
  MemoryNetwork& network_;
  uint16_t ports_[2];
};

std::unique_ptr<fabric::PacketIo> MemoryNetwork::open() {
  const uint16_t command = next_port_++;
  const uint16_t data = next_port_++;
  return std::make_unique<MemoryIo>(*this, command, data);
}

void MemoryNetwork::transmit(Channel channel, uint16_t to_port, std::vector<std::byte> bytes) {
  ++counts.sent;
  const bool passes = !faults.pass || faults.pass(channel, bytes);
  if (!passes || bytes.size() > faults.datagram_max || random_.chance(faults.drop)) {
    ++counts.dropped;
    return;
  }
  auto& queue = queues_[to_port];
  int copies = 1;
  if (random_.chance(faults.duplicate)) {
    ++counts.duplicated;
    copies = 2;
  }
  for (int i = 0; i < copies; ++i) {
    sim::Packet packet{now_ + faults.delay, bytes};
    if (!queue.empty() && random_.chance(faults.reorder)) {
      ++counts.reordered;
      packet.due = queue.front().due;
      queue.insert(queue.begin() + static_cast<ptrdiff_t>(random_.below(queue.size())),
                   std::move(packet));
    } else {
      queue.push_back(std::move(packet));
    }
  }
}

std::optional<Instant> MemoryNetwork::next_arrival() const {
  std::optional<Instant> first;
  for (const auto& [port, queue] : queues_) {
    if (!queue.empty() && (!first || queue.front().due < *first)) {
      first = queue.front().due;
    }
  }
  return first;
}

}  // namespace nccl_ha::test
