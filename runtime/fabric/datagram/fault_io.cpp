#include "runtime/fabric/datagram/fault_io.h"

#include <string>

#include "runtime/base/log.h"
#include "runtime/fabric/datagram/wire.h"

namespace nccl_ha::fabric {
namespace {

// A datagram held back goes at the latest after so many passes of the engine, so that the last one
// of a burst is late and not lost.
constexpr uint32_t held_ticks = 50;
constexpr size_t held_max = 64;
constexpr uint64_t reorder_distance = 8;

}  // namespace

FaultIo::FaultIo(std::unique_ptr<PacketIo> inner, const FaultPlan& plan, Recorder* recorder)
    : inner_(std::move(inner)), plan_(plan), random_(plan.seed), recorder_(recorder) {}

FaultIo::~FaultIo() {
  NHA_LOG_INFO("faults injected: {} dropped, {} doubled, {} reordered, {} acknowledgements lost",
               injected_.dropped, injected_.duplicated, injected_.reordered, injected_.acks_lost);
}

void FaultIo::hold(Channel channel, const OutDatagram& datagram, uint32_t after) {
  Held held{channel, *datagram.to, {}, after, held_ticks};
  for (size_t i = 0; i < datagram.part_count; ++i) {
    const auto* bytes = static_cast<const std::byte*>(datagram.parts[i].iov_base);
    held.bytes.insert(held.bytes.end(), bytes, bytes + datagram.parts[i].iov_len);
  }
  held_.push_back(std::move(held));
}

void FaultIo::release(size_t index) {
  Held held = std::move(held_[index]);
  held_.erase(held_.begin() + static_cast<ptrdiff_t>(index));
  iovec part{held.bytes.data(), held.bytes.size()};
  OutDatagram out{&held.to, &part, 1, 0, false};
  static_cast<void>(inner_->send(held.channel, std::span(&out, 1)));
}

void FaultIo::count_down() {
  for (size_t i = 0; i < held_.size();) {
    if (held_[i].release_after == 0) {
      release(i);
    } else {
      --held_[i].release_after;
      ++i;
    }
  }
}

void FaultIo::tick(Instant now) {
  now_ = now;
  inner_->tick(now);
  for (size_t i = 0; i < held_.size();) {
    if (held_[i].ticks_left == 0) {
      release(i);
    } else {
      --held_[i].ticks_left;
      ++i;
    }
  }
}

size_t FaultIo::send(Channel channel, std::span<OutDatagram> out) {
  size_t done = 0;
  for (OutDatagram& datagram : out) {
    const auto* first = static_cast<const uint8_t*>(datagram.parts[0].iov_base);
    const bool is_ack = datagram.parts[0].iov_len >= header_bytes &&
                        first[2] == static_cast<uint8_t>(FrameType::ack);
    if (is_ack && random_.chance(plan_.ack_loss)) {
      ++injected_.acks_lost;
      note(3);
    } else if (random_.chance(plan_.drop)) {
      ++injected_.dropped;
      note(0);
    } else if (held_.size() < held_max && random_.chance(plan_.reorder)) {
      ++injected_.reordered;
      note(2);
      hold(channel, datagram, 1 + static_cast<uint32_t>(random_.below(reorder_distance)));
    } else {
      if (held_.size() < held_max && random_.chance(plan_.duplicate)) {
        ++injected_.duplicated;
        note(1);
        hold(channel, datagram, static_cast<uint32_t>(random_.below(reorder_distance)));
      }
      if (inner_->send(channel, std::span(&datagram, 1)) == 0) {
        return done;
      }
      ++injected_.passed;
    }
    ++done;
    count_down();
  }
  return done;
}

}  // namespace nccl_ha::fabric
