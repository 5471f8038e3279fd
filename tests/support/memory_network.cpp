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
      std::vector<std::byte> bytes;
      for (size_t i = 0; i < datagram.part_count; ++i) {
        const auto* from = static_cast<const std::byte*>(datagram.parts[i].iov_base);
        bytes.insert(bytes.end(), from, from + datagram.parts[i].iov_len);
      }
      const size_t step = datagram.segment_bytes == 0 ? bytes.size() : datagram.segment_bytes;
      for (size_t offset = 0; offset < bytes.size(); offset += step) {
        const size_t end = std::min(bytes.size(), offset + step);
        network_.transmit(channel, datagram.to->port(),
                          std::vector(bytes.begin() + static_cast<ptrdiff_t>(offset),
                                      bytes.begin() + static_cast<ptrdiff_t>(end)));
      }
    }
    return out.size();
  }

  size_t receive(Channel channel, fabric::PacketSink& sink, size_t limit) override {
    auto& queue = network_.queues_[ports_[static_cast<size_t>(channel)]];
    size_t count = 0;
    while (count < limit && !queue.empty() && queue.front().due <= network_.now_) {
      const std::vector<std::byte> bytes = std::move(queue.front().bytes);
      queue.pop_front();
      ++count;
      if (channel == Channel::data && coalesce_) {
        deliver_run(sink, queue, bytes);
      } else {
        sink.packet(bytes);
      }
    }
    return count;
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
  /// Coalesces equal-sized datagrams as the kernel's receive offload does, whatever they hold.
  void deliver_run(fabric::PacketSink& sink, std::deque<MemoryNetwork::Packet>& queue,
                   std::vector<std::byte> bytes) {
    const size_t segment = bytes.size();
    while (!queue.empty() && queue.front().due <= network_.now_ &&
           queue.front().bytes.size() <= segment && bytes.size() + segment <= 65000) {
      const bool last = queue.front().bytes.size() < segment;
      bytes.insert(bytes.end(), queue.front().bytes.begin(), queue.front().bytes.end());
      queue.pop_front();
      if (last) {
        break;
      }
    }
    const size_t head = std::min<size_t>(bytes.size(), 64);
    const fabric::Placement placement =
        sink.place(std::span(bytes).first(head), bytes.size(), segment);
    if (placement.part_count == 0) {
      for (size_t offset = 0; offset < bytes.size(); offset += segment) {
        sink.packet(std::span(bytes).subspan(offset, std::min(segment, bytes.size() - offset)));
      }
      return;
    }
    size_t offset = 0;
    for (size_t i = 0; i < placement.part_count && offset < bytes.size(); ++i) {
      const iovec& part = placement.parts[i];
      const size_t take = std::min(part.iov_len, bytes.size() - offset);
      std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset), take,
                  static_cast<std::byte*>(part.iov_base));
      offset += take;
    }
    sink.placed(bytes.size());
  }

  MemoryNetwork& network_;
  uint16_t ports_[2];
  bool coalesce_ = true;
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
    Packet packet{now_ + faults.delay, bytes};
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
