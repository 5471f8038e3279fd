#include "tests/rig/sim/packet_queue.h"

#include <span>

namespace nccl_ha::sim {
namespace {

constexpr size_t run_bytes_max = 65000;
constexpr size_t head_bytes = 64;

/// Coalesces equal-sized datagrams as the kernel's receive offload does, whatever they hold.
void deliver_run(fabric::PacketSink& sink, PacketQueue& queue, Instant now,
                 std::vector<std::byte> bytes) {
  const size_t segment = bytes.size();
  while (!queue.empty() && queue.front().due <= now && queue.front().bytes.size() <= segment &&
         bytes.size() + segment <= run_bytes_max) {
    const bool last = queue.front().bytes.size() < segment;
    bytes.insert(bytes.end(), queue.front().bytes.begin(), queue.front().bytes.end());
    queue.pop_front();
    if (last) {
      break;
    }
  }
  const size_t head = std::min(bytes.size(), head_bytes);
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

}  // namespace

size_t deliver(PacketQueue& queue, fabric::Channel channel, fabric::PacketSink& sink, size_t limit,
               Instant now) {
  size_t count = 0;
  while (count < limit && !queue.empty() && queue.front().due <= now) {
    std::vector<std::byte> bytes = std::move(queue.front().bytes);
    queue.pop_front();
    ++count;
    if (channel == fabric::Channel::data) {
      deliver_run(sink, queue, now, std::move(bytes));
    } else {
      sink.packet(bytes);
    }
  }
  return count;
}

}  // namespace nccl_ha::sim
