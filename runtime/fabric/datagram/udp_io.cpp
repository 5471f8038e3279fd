#include "runtime/fabric/datagram/udp_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/udp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"

namespace nccl_ha::fabric {
namespace {

constexpr size_t command_batch = 16;
constexpr size_t command_bytes = 2048;
constexpr size_t data_bytes = 65536;
constexpr size_t send_batch = 16;

std::string numeric_host(const SocketAddress& address) {
  char host[64] = "?";
  getnameinfo(address.get(), address.length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

void set_option(int fd, int level, int name, int value) {
  static_cast<void>(setsockopt(fd, level, name, &value, sizeof value));
}

/// The kernel refuses more than net.core.[rw]mem_max unless we are privileged.
void set_buffer(int fd, int forced, int plain, int bytes) {
  if (setsockopt(fd, SOL_SOCKET, forced, &bytes, sizeof bytes) != 0) {
    set_option(fd, SOL_SOCKET, plain, bytes);
  }
}

/// Would waiting help?  Everything else is a packet that the network cannot take.
bool queue_full(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS; }

}  // namespace

Result<std::unique_ptr<UdpIo>> UdpIo::open(const Options& options) {
  std::unique_ptr<UdpIo> io(new UdpIo);
  io->offload_ = options.offload;
  io->both_ = make_fd([] { return epoll_create1(EPOLL_CLOEXEC); });
  if (io->both_ < 0) {
    return fail(Errc::system, "cannot watch UDP sockets", errno);
  }
  for (uint32_t i = 0; i < channel_count; ++i) {
    if (auto opened = io->open_channel(&io->channels_[i], options); !opened) {
      return opened.error();
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = i;
    if (epoll_ctl(io->both_, EPOLL_CTL_ADD, io->channels_[i].fd, &event) != 0) {
      return fail(Errc::system, "cannot watch a UDP socket; see fs.epoll.max_user_watches", errno);
    }
  }
  const int data = io->channels_[1].fd;
  int value = 0;
  socklen_t length = sizeof value;
  if (getsockopt(data, SOL_SOCKET, SO_RCVBUF, &value, &length) == 0) {
    io->receive_buffer_ = static_cast<size_t>(value);
  }
  if (options.offload) {
    const int on = 1;
    io->coalescing_ = setsockopt(data, SOL_UDP, UDP_GRO, &on, sizeof on) == 0;
    int gso = 0;
    length = sizeof gso;
    io->offload_ = getsockopt(data, SOL_UDP, UDP_SEGMENT, &gso, &length) == 0;
  }
  io->buffer_.resize(std::max(data_bytes, command_batch * command_bytes));
  return io;
}

Result<void> UdpIo::open_channel(ChannelState* channel, const Options& options) {
  const int family = options.bind.storage.ss_family;
  channel->fd =
      make_fd([&] { return socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (channel->fd < 0) {
    return fail(Errc::system, "cannot open a UDP socket", errno);
  }
  set_buffer(channel->fd, SO_RCVBUFFORCE, SO_RCVBUF, options.socket_bytes);
  set_buffer(channel->fd, SO_SNDBUFFORCE, SO_SNDBUF, options.socket_bytes);
  // Never fragment, and do not let the kernel's path-MTU cache refuse our probes.
  if (family == AF_INET6) {
    set_option(channel->fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    set_option(channel->fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
  } else {
    set_option(channel->fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
  }
  SocketAddress local = options.bind;
  local.set_port(0);
  if (bind(channel->fd, local.get(), local.length) != 0) {
    return fail(Errc::system,
                fmt::format("cannot bind a UDP socket to {}; is the address still on this host?",
                            numeric_host(local)),
                errno);
  }
  channel->local = local;
  if (getsockname(channel->fd, channel->local.get(), &channel->local.length) != 0) {
    return fail(Errc::system, "cannot read back the address of a UDP socket", errno);
  }
  return {};
}

UdpIo::~UdpIo() {
  for (const ChannelState& channel : channels_) {
    close_fd(channel.fd);
  }
  close_fd(both_);
}

PacketIo::Channels UdpIo::waiting() {
  std::array<epoll_event, channel_count> events;
  const int count = epoll_wait(both_, events.data(), static_cast<int>(events.size()), 0);
  Channels waiting{};
  for (int i = 0; i < count; ++i) {
    waiting[events[static_cast<size_t>(i)].data.u32] = true;
  }
  return waiting;
}

size_t UdpIo::send(Channel channel, std::span<OutDatagram> out) {
  const int fd = channels_[static_cast<size_t>(channel)].fd;
  std::array<mmsghdr, send_batch> messages;
  union Control {
    char bytes[CMSG_SPACE(sizeof(uint16_t))];
    cmsghdr align;
  };
  std::array<Control, send_batch> controls;
  size_t done = 0;
  while (done < out.size()) {
    const size_t count = std::min(out.size() - done, send_batch);
    for (size_t i = 0; i < count; ++i) {
      OutDatagram& datagram = out[done + i];
      msghdr& header = messages[i].msg_hdr;
      header = {};
      header.msg_name = const_cast<sockaddr*>(datagram.to->get());
      header.msg_namelen = datagram.to->length;
      header.msg_iov = datagram.parts;
      header.msg_iovlen = datagram.part_count;
      if (datagram.segment_bytes != 0) {
        header.msg_control = controls[i].bytes;
        header.msg_controllen = sizeof controls[i].bytes;
        cmsghdr* control = CMSG_FIRSTHDR(&header);
        control->cmsg_level = SOL_UDP;
        control->cmsg_type = UDP_SEGMENT;
        control->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        std::memcpy(CMSG_DATA(control), &datagram.segment_bytes, sizeof(uint16_t));
      }
    }
    // One message needs no batch call; sendmsg is the shorter way into the kernel.
    const int sent =
        count == 1 ? (sendmsg(fd, &messages[0].msg_hdr, MSG_DONTWAIT) < 0 ? -1 : 1)
                   : sendmmsg(fd, messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT);
    if (sent > 0) {
      done += static_cast<size_t>(sent);
      continue;
    }
    if (errno == EINTR) {
      continue;
    }
    if (queue_full(errno)) {
      return done;
    }
    if (errno == EIO && out[done].segment_bytes != 0) {
      // The kernel cuts only for NICs that compute checksums, and says so no earlier than this.
      if (std::exchange(offload_, false)) {
        NHA_LOG_INFO("the NIC of {} computes no checksums for segments: datagrams go one by one",
                     numeric_host(channels_[0].local));
      }
      if (!send_segments(fd, out[done])) {
        return done;
      }
      ++done;
      continue;
    }
    if (!out[done].probe) {
      NHA_LOG_WARN_LIMITED("sending a datagram to {} failed: {}", numeric_host(*out[done].to),
                           std::strerror(errno));
    }
    ++done;  // refused packets (no route, too large, ICMP error) are lost packets
  }
  return done;
}

/// Cuts where the kernel does not.  False: the socket is full; what has left is sent again.
bool UdpIo::send_segments(int fd, const OutDatagram& datagram) {
  bool full = false;
  split_datagram(datagram, [&](const std::vector<std::byte>& bytes) {
    full = full || (sendto(fd, bytes.data(), bytes.size(), MSG_DONTWAIT, datagram.to->get(),
                           datagram.to->length) < 0 &&
                    queue_full(errno));
  });
  return !full;
}

size_t UdpIo::receive(Channel channel, PacketSink& sink, size_t limit) {
  return channel == Channel::command ? receive_command(sink, limit) : receive_data(sink, limit);
}

size_t UdpIo::receive_command(PacketSink& sink, size_t limit) {
  const int fd = channels_[0].fd;
  if (!busy_) {
    // In a quiet moment a packet comes alone, and a plain recv is its fastest way in.
    const ssize_t got = recv(fd, buffer_.data(), command_bytes, MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0) {
      return 0;
    }
    busy_ = true;
    if (static_cast<size_t>(got) <= command_bytes) {
      sink.packet(std::span(buffer_.data(), static_cast<size_t>(got)));
    }
    return 1;
  }
  std::array<mmsghdr, command_batch> messages;
  std::array<iovec, command_batch> parts;
  const size_t count = std::min(limit, command_batch);
  for (size_t i = 0; i < count; ++i) {
    parts[i] = {buffer_.data() + i * command_bytes, command_bytes};
    messages[i].msg_hdr = {};
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const int got =
      recvmmsg(fd, messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT, nullptr);
  for (int i = 0; i < got; ++i) {
    const mmsghdr& message = messages[static_cast<size_t>(i)];
    if ((message.msg_hdr.msg_flags & MSG_TRUNC) == 0) {
      sink.packet(
          std::span(buffer_.data() + static_cast<size_t>(i) * command_bytes, message.msg_len));
    }
  }
  busy_ = got > 0;
  return static_cast<size_t>(std::max(got, 0));
}

size_t UdpIo::receive_data(PacketSink& sink, size_t limit) {
  const int fd = channels_[1].fd;
  size_t count = 0;
  while (count < limit) {
    // A look at the first header tells where the payload belongs, then one read puts it there.
    std::array<std::byte, 64> head;
    iovec part{head.data(), head.size()};
    union {
      char bytes[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(int))];
      cmsghdr align;
    } control;
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (coalescing_) {
      header.msg_control = control.bytes;
      header.msg_controllen = sizeof control.bytes;
    }
    const ssize_t total = recvmsg(fd, &header, MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC);
    if (total < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        break;
      }
      ++count;  // an ICMP error of an earlier packet, reported once
      continue;
    }
    size_t segment = static_cast<size_t>(total);
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); coalescing_ && c != nullptr;
         c = CMSG_NXTHDR(&header, c)) {
      if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
        int value = 0;
        std::memcpy(&value, CMSG_DATA(c), sizeof value);
        segment = value > 0 ? static_cast<size_t>(value) : segment;
      }
    }
    ++count;
    const Placement placement =
        total == 0
            ? Placement{}
            : sink.place(std::span(head.data(), std::min(head.size(), static_cast<size_t>(total))),
                         static_cast<size_t>(total), segment);
    if (placement.part_count == 0) {
      static_cast<void>(read_data(fd, sink, segment));
      continue;
    }
    msghdr into{};
    into.msg_iov = placement.parts;
    into.msg_iovlen = placement.part_count;
    const ssize_t got = recvmsg(fd, &into, MSG_DONTWAIT);
    if (got == total) {
      sink.placed(static_cast<size_t>(got));
    }
    // Anything else: the destination vanished under the kernel's hands; the packet counts as lost.
  }
  return count;
}

bool UdpIo::read_data(int fd, PacketSink& sink, size_t segment) {
  const ssize_t got = recv(fd, buffer_.data(), data_bytes, MSG_DONTWAIT);
  if (got < 0) {
    return false;
  }
  const auto total = static_cast<size_t>(got);
  segment = segment == 0 ? total : segment;
  for (size_t offset = 0; offset < total; offset += segment) {
    sink.packet(std::span(buffer_.data() + offset, std::min(segment, total - offset)));
  }
  return true;
}

}  // namespace nccl_ha::fabric
