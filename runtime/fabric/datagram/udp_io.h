// PacketIo over two UDP sockets: sendmmsg/recvmmsg, segmentation and receive offload.
#pragma once

#include <array>
#include <memory>
#include <vector>

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
  Result<void> open_channel(ChannelState* channel, const Options& options);
  bool send_segments(int fd, const OutDatagram& datagram);
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
};

}  // namespace nccl_ha::fabric
