// PacketIo over two UDP sockets: sendmmsg/recvmmsg, segmentation and receive offload.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/egress.h"
#include "runtime/fabric/packet_io.h"

namespace nccl_ha::fabric {

class UdpIo final : public PacketIo {
 public:
  struct Options {
    SocketAddress bind;  ///< local address; the port is ignored
    int socket_bytes = 8 << 20;
    bool offload = true;
  };
  /// Opens and binds both sockets.  Errors name the address and what to do.
  static Result<std::unique_ptr<UdpIo>> open(const Options& options);
  ~UdpIo() override;
  UdpIo(const UdpIo&) = delete;
  UdpIo& operator=(const UdpIo&) = delete;

  size_t send(Channel channel, std::span<OutDatagram> out) override;
  size_t receive(Channel channel, PacketSink& sink, size_t limit) override;
  Channels waiting() override;
  Egress egress(const SocketAddress& peer) override;
  void tick(Instant now) override {
    if (watches_arrivals_) [[unlikely]] {
      watch_arrivals(now);
    }
  }
  SocketAddress local(Channel channel) const override {
    return channels_[static_cast<size_t>(channel)].local;
  }
  size_t receive_buffer_bytes() const override { return receive_buffer_; }
  bool segmentation_offload() const override { return offload_; }
  int wait_fd(Channel channel) const override { return channels_[static_cast<size_t>(channel)].fd; }
  uint64_t kernel_drops() const override { return drops_; }

 private:
  struct ChannelState {
    int fd = -1;
    SocketAddress local;
  };
  UdpIo() = default;
  /// Of one message: the own NIC, and the size of segments.
  struct alignas(cmsghdr) Control {
    char bytes[PacketInfo::bytes_max + CMSG_SPACE(sizeof(uint16_t))];
  };
  Result<void> open_channel(ChannelState* channel, const Options& options);
  void prepare(msghdr& header, Control& control, const OutDatagram& datagram) const;
  bool send_segments(int fd, const OutDatagram& datagram);
  void begin_watching();
  void watch_arrivals(Instant now);
  ssize_t receive_alone(int fd);
  void on_stray(int interface, const SocketAddress& from);
  size_t receive_command(PacketSink& sink, size_t limit);
  size_t receive_data(PacketSink& sink, size_t limit);
  bool read_data(int fd, PacketSink& sink, size_t segment);

  std::array<ChannelState, channel_count> channels_;
  int both_ = -1;  ///< a set of both sockets
  size_t receive_buffer_ = 0;
  bool offload_ = false;
  bool coalescing_ = false;
  bool busy_ = false;  ///< the last pass found a packet on the command channel
  uint64_t drops_ = 0;
  std::vector<std::byte> buffer_;

  int own_nic_ = 0;  ///< index of the interface that has the local address, when last looked at
  Control own_nic_info_{};
  size_t own_nic_info_bytes_ = 0;
  // IPv4, after a path was made: whether what is sent to the local address arrives at its NIC.
  bool watches_arrivals_ = false;
  std::optional<Instant> watches_until_;
  Instant now_{};
  std::optional<Instant> announced_at_;
  unsigned announcements_ = 0;  ///< since the watch began
  uint32_t asked_for_ = 0;      ///< the last byte of the address that was asked for last
  bool stray_told_ = false;
};

}  // namespace nccl_ha::fabric
