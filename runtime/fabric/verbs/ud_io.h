// PacketIo over unreliable-datagram queue pairs: what the usnic design was made for.
//
// One queue pair for each channel.  Payload is copied through registered slots on both sides: a
// datagram may be sent again long after its completion, and arrives behind 40 bytes of routing
// header in the order of the network, not of the destination.
#pragma once

#include <array>
#include <cerrno>
#include <memory>
#include <vector>

#include "runtime/base/pages.h"
#include "runtime/fabric/packet_io.h"
#include "runtime/fabric/verbs/device.h"
#include "runtime/fabric/verbs/options.h"

namespace nccl_ha::fabric::verbs {

class UdIo final : public PacketIo {
 public:
  struct Route {
    uint8_t port = 1;
    uint8_t traffic_class = 0;  ///< RoCE: DSCP and ECN bits
    uint8_t service_level = 0;  ///< InfiniBand
    GidPreference gid;
  };
  /// Has both queue pairs made by the device's conductor, and waits for that a moment at most.
  /// Errors name the device and what to do.
  static Result<std::unique_ptr<UdIo>> open(std::shared_ptr<Device> device, const Route& route,
                                            const Options& options);
  ~UdIo() override;

  size_t send(Channel channel, std::span<OutDatagram> out) override;
  size_t receive(Channel channel, PacketSink& sink, size_t limit) override;
  void tick(Instant now) override;
  bool prepare_sleep() override;
  /// Also when an address of the port changed: paths that have it keep it, as theirs need not be
  /// the one.  And while that is to be found out, which the device is asked after each event.
  bool broken() override;
  /// Asks for the way to that peer anew, as a neighbour may have another MAC.
  Egress egress(const SocketAddress& peer) override;
  SocketAddress local(Channel channel) const override;
  size_t receive_buffer_bytes() const override;
  bool segmentation_offload() const override { return false; }
  int wait_fd(Channel channel) const override;
  size_t datagram_bytes_max() const override { return mtu_; }

 private:
  /// A ring of slots in registered memory.  `posted` and `done` count without end.
  struct Slots {
    std::shared_ptr<Pages> memory;
    Region region;
    uint32_t bytes = 0;  ///< of a slot
    uint32_t count = 0;
    uint64_t posted = 0;
    uint64_t done = 0;
    std::byte* at(uint64_t position) { return memory->data() + position % count * bytes; }
  };
  struct ChannelState {
    ibv_qp* qp = nullptr;
    ibv_cq* send_cq = nullptr;
    ibv_cq* receive_cq = nullptr;
    ibv_comp_channel* events = nullptr;
    unsigned unacknowledged = 0;  ///< events taken and not acknowledged
    uint32_t inline_bytes = 0;
    Slots out;
    Slots in;
    bool has_early = false;  ///< a completion that was found before sleeping
    ibv_wc early{};
  };
  /// How to reach a peer.  Without a handle it is being asked for, or was refused; none is asked
  /// for again before `retry_at`.
  struct Way {
    SocketAddress to;
    ibv_ah* handle = nullptr;
    std::shared_ptr<HandleOrder> asked;
    Instant retry_at{};
  };
  /// What the device has made, which ends with the last who holds it: by control verbs.  An order
  /// to the device may be that, and keeps no device: none ends on its own thread.
  struct Objects {
    explicit Objects(Device& its_device) : device(its_device) {}
    ~Objects();
    Objects(const Objects&) = delete;
    Objects& operator=(const Objects&) = delete;
    Device& device;
    std::array<ChannelState, channel_count> channels;
    std::vector<Way> ways;
    struct Replaced {
      ibv_ah* handle = nullptr;
      Instant at{};
    };
    std::vector<Replaced> replaced;  ///< by which datagrams may be under way
  };

  UdIo(Device& device, const Route& route)
      : device_(device), library_(device.library()), route_(route) {}
  static Result<std::unique_ptr<UdIo>> make(Device& device, const Route& route,
                                            const Options& options);
  Result<void> open_channel(ChannelState& channel, uint32_t slots, uint32_t datagram_bytes,
                            const Options& options);
  Result<void> make_queue_pair(ChannelState& channel, const Options& options);
  Result<void> make_slots(Slots& slots, uint32_t count, uint32_t bytes);
  Error cannot(const char* what, int error) const;
  void reclaim(ChannelState& channel);
  void post_receives(ChannelState& channel);
  size_t take(ChannelState& channel, std::span<ibv_wc> out);
  void deliver(ChannelState& channel, const ibv_wc& completion, PacketSink& sink);
  void take_events(ChannelState& channel);
  /// The device makes no events any more.
  bool is_lost() const { return device_.health.level() >= DeviceHealth::Level::lost; }
  void check_addresses();
  ibv_ah* way_to(const SocketAddress& to);
  void take_answer(Way& way);
  void replace(Way& way, ibv_ah* made);
  Way& find_way(const SocketAddress& to);
  ibv_ah_attr route_to(const UdAddress& peer) const;

  std::shared_ptr<Device> keep_;  ///< once it is its owner's
  Device& device_;
  const Library& library_;
  Route route_;
  uint64_t address_changes_ = 0;  ///< the device's, up to which the next two are right
  uint64_t partition_changes_ = 0;
  PortInfo info_;
  std::optional<GidEntry> gid_;
  /// Answered with 0 where they are still right after so many changes.
  struct Check {
    uint64_t changes = 0;
    int result = ENOMEM;  ///< where the command ends for want of memory
    Answer answer;
  };
  std::shared_ptr<Check> check_;
  bool moved_ = false;  ///< they are not
  uint32_t mtu_ = 0;
  std::shared_ptr<Objects> objects_ = std::make_shared<Objects>(device_);
  std::array<ChannelState, channel_count>& channels_ = objects_->channels;
  std::vector<Way>& ways_ = objects_->ways;
  size_t last_way_ = 0;
  Instant now_{};
  bool armed_ = false;
  bool broken_ = false;  ///< a queue pair is in error, where it stays
};

}  // namespace nccl_ha::fabric::verbs
