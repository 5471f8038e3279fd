// Fault injection between the engine and its packets: drop, duplicate, reorder, lost
// acknowledgements.  Only ever put in place when HA_NCCL_DGRAM_FAULTS asks for it.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "runtime/base/fault_plan.h"
#include "runtime/base/random.h"
#include "runtime/fabric/packet_io.h"
#include "runtime/telemetry/recorder.h"

namespace nccl_ha::fabric {

class FaultIo final : public PacketIo {
 public:
  /// `recorder` may be null.
  FaultIo(std::unique_ptr<PacketIo> inner, const FaultPlan& plan, Recorder* recorder = nullptr);
  /// Logs what was injected, so that whoever asked for faults sees that there were some.
  ~FaultIo() override;
  FaultIo(const FaultIo&) = delete;
  FaultIo& operator=(const FaultIo&) = delete;

  struct Injected {
    uint64_t dropped = 0;
    uint64_t duplicated = 0;
    uint64_t reordered = 0;
    uint64_t acks_lost = 0;
    uint64_t passed = 0;
  };
  const Injected& injected() const { return injected_; }

  size_t send(Channel channel, std::span<OutDatagram> out) override;
  size_t receive(Channel channel, PacketSink& sink, size_t limit) override {
    return inner_->receive(channel, sink, limit);
  }
  Channels waiting() override { return inner_->waiting(); }
  void tick(Instant now) override;
  Egress egress(const SocketAddress& peer) override { return inner_->egress(peer); }
  SocketAddress local(Channel channel) const override { return inner_->local(channel); }
  size_t receive_buffer_bytes() const override { return inner_->receive_buffer_bytes(); }
  bool segmentation_offload() const override { return false; }  // faults hit single datagrams
  int wait_fd(Channel channel) const override { return inner_->wait_fd(channel); }
  size_t datagram_bytes_max() const override { return inner_->datagram_bytes_max(); }
  bool prepare_sleep() override { return inner_->prepare_sleep(); }
  uint64_t kernel_drops() const override { return inner_->kernel_drops(); }
  bool broken() override { return inner_->broken(); }

 private:
  struct Held {
    Channel channel;
    SocketAddress to;
    std::vector<std::byte> bytes;
    uint32_t release_after;  ///< datagrams still to pass
    uint32_t ticks_left;
  };
  void hold(Channel channel, const OutDatagram& datagram, uint32_t after);
  void release(size_t index);
  /// The kinds are numbered as in Injected.
  void note(uint64_t kind) {
    if (recorder_ != nullptr) {
      recorder_->record(TraceEvent::fault_injected, 0, kind, 0, now_);
    }
  }
  void count_down();

  std::unique_ptr<PacketIo> inner_;
  FaultPlan plan_;
  Random random_;
  Injected injected_;
  std::vector<Held> held_;
  Recorder* recorder_;
  Instant now_{};
};

}  // namespace nccl_ha::fabric
