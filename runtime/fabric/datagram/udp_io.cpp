#include "runtime/fabric/datagram/udp_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/udp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"

namespace nccl_ha::fabric {
namespace {

constexpr size_t command_batch = 16;
constexpr size_t command_bytes = 2048;
constexpr size_t data_bytes = 65536;
constexpr size_t send_batch = 16;
constexpr int loopback_interface = 1;  // in every network namespace
/// The kernel asks for a neighbour at 0, 1 and 2 s; who hears it may not believe it before 1 s.
constexpr Duration announcement_takes = std::chrono::seconds(3);
/// Streams that leave by another NIC may teach the neighbours the wrong one anew.
constexpr unsigned announcements_until_told = 3;
/// After a path was made, or something went astray.
constexpr Duration arrivals_are_watched = std::chrono::seconds(10);

std::string numeric_host(const SocketAddress& address) {
  char host[64] = "?";
  getnameinfo(address.get(), address.length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

std::string interface_name(int index) {
  char name[IF_NAMESIZE] = "";
  return if_indextoname(static_cast<unsigned>(index), name) == nullptr ? fmt::format("{}", index)
                                                                       : std::string(name);
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

void UdpIo::prepare(msghdr& header, Control& control, const OutDatagram& datagram) const {
  header = {};
  header.msg_name = const_cast<sockaddr*>(datagram.to->get());
  header.msg_namelen = datagram.to->length;
  header.msg_iov = datagram.parts;
  header.msg_iovlen = datagram.part_count;
  size_t bytes = 0;
  if (datagram.to->by_own_nic) {
    bytes = own_nic_info_bytes_;
    std::memcpy(control.bytes, own_nic_info_.bytes, bytes);
  }
  if (datagram.segment_bytes != 0) {
    auto* part = reinterpret_cast<cmsghdr*>(control.bytes + bytes);
    part->cmsg_level = SOL_UDP;
    part->cmsg_type = UDP_SEGMENT;
    part->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    std::memcpy(CMSG_DATA(part), &datagram.segment_bytes, sizeof(uint16_t));
    bytes += CMSG_SPACE(sizeof(uint16_t));
  }
  if (bytes != 0) {
    header.msg_control = control.bytes;
    header.msg_controllen = bytes;
  }
}

size_t UdpIo::send(Channel channel, std::span<OutDatagram> out) {
  const int fd = channels_[static_cast<size_t>(channel)].fd;
  std::array<mmsghdr, send_batch> messages;
  std::array<Control, send_batch> controls;
  size_t done = 0;
  while (done < out.size()) {
    const size_t count = std::min(out.size() - done, send_batch);
    for (size_t i = 0; i < count; ++i) {
      prepare(messages[i].msg_hdr, controls[i], out[done + i]);
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
  split_datagram(datagram, [&](std::vector<std::byte> bytes) {
    iovec part{bytes.data(), bytes.size()};
    msghdr header;
    Control control;
    prepare(header, control, {datagram.to, &part, 1, 0, datagram.probe});
    full = full || (sendmsg(fd, &header, MSG_DONTWAIT) < 0 && queue_full(errno));
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
    const ssize_t got = watches_arrivals_
                            ? receive_alone(fd)
                            : recv(fd, buffer_.data(), command_bytes, MSG_DONTWAIT | MSG_TRUNC);
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

PacketIo::Egress UdpIo::egress(const SocketAddress& peer) {
  using Kind = nccl_ha::Egress::Kind;
  const auto from = IpAddress::from_sockaddr(channels_[0].local.get());
  const auto to = IpAddress::from_sockaddr(peer.get());
  if (!from || !to || from->link_local()) {
    return {};  // a link-local address names its interface itself
  }
  const nccl_ha::Egress found = find_egress(*from, *to);
  if (found.kind == Kind::own || found.kind == Kind::chosen) {
    // Also where the routes lead there today: those of another NIC may come first when its link is
    // back.
    own_nic_ = found.own;
    own_nic_info_bytes_ = PacketInfo::write(own_nic_info_.bytes, own_nic_, *from);
    begin_watching();
    return {true, {}};
  }
  return {false, found.kind == Kind::other ? interface_name(found.interface) : std::string()};
}

/// With ARP a host answers for its addresses on any NIC, unless told otherwise, so that the peer
/// may have learned a wrong one.
void UdpIo::begin_watching() {
  watches_until_.reset();
  if (channels_[0].local.storage.ss_family == AF_INET && !watches_arrivals_) {
    watches_arrivals_ = true;
    announced_at_.reset();
    announcements_ = 0;
    set_option(channels_[0].fd, IPPROTO_IP, IP_PKTINFO, 1);
  }
}

void UdpIo::watch_arrivals(Instant now) {
  now_ = now;
  if (!watches_until_) {
    watches_until_ = now + arrivals_are_watched;
  } else if (now >= *watches_until_) {
    watches_arrivals_ = false;
    set_option(channels_[0].fd, IPPROTO_IP, IP_PKTINFO, 0);
  }
}

/// One packet of the command channel, with a look at the NIC that it came by.
ssize_t UdpIo::receive_alone(int fd) {
  SocketAddress from;
  iovec part{buffer_.data(), command_bytes};
  Control control;
  msghdr header{};
  header.msg_name = from.get();
  header.msg_namelen = sizeof from.storage;
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes;
  header.msg_controllen = sizeof control.bytes;
  const ssize_t got = recvmsg(fd, &header, MSG_DONTWAIT | MSG_TRUNC);
  for (cmsghdr* c = got < 0 ? nullptr : CMSG_FIRSTHDR(&header); c != nullptr;
       c = CMSG_NXTHDR(&header, c)) {
    const int interface = PacketInfo::interface_in(*c);
    if (interface != 0 && interface != own_nic_ && interface != loopback_interface) {
      from.length = header.msg_namelen;
      on_stray(interface, from);
    }
  }
  return got;
}

/// Tells the neighbours, without privileges, which NIC the local address is at.  For a datagram
/// that must leave by that NIC, past all routers, the kernel asks there who has its destination:
/// who hears the question learns who asks.  Nobody has an address of TEST-NET-1 (RFC 5737), and a
/// new one each time is one that the kernel has to ask for.
void UdpIo::on_stray(int interface, const SocketAddress& from) {
  watches_until_ = now_ + arrivals_are_watched;
  if (announced_at_ && now_ < *announced_at_ + announcement_takes) {
    return;
  }
  announced_at_ = now_;
  if (++announcements_ > announcements_until_told && !std::exchange(stray_told_, true)) {
    NHA_LOG_WARN(
        "what is sent to {} ({}) arrives at {}, from {} for one: paths to that address and to {} "
        "fail together. Give each NIC a subnet of its own, or: sysctl -w "
        "net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
        numeric_host(channels_[0].local), interface_name(own_nic_), interface_name(interface),
        numeric_host(from), interface_name(interface));
  }
  NHA_LOG_DEBUG("what is sent to {} ({}) arrives at {}: telling its NIC to the neighbours",
                numeric_host(channels_[0].local), interface_name(own_nic_),
                interface_name(interface));
  sockaddr_in nobody{};
  nobody.sin_family = AF_INET;
  nobody.sin_port = htons(9);  // discard (RFC 863)
  asked_for_ = asked_for_ % 254 + 1;
  nobody.sin_addr.s_addr = htonl(0xC0000200 + asked_for_);
  msghdr nothing{};
  nothing.msg_name = &nobody;
  nothing.msg_namelen = sizeof nobody;
  nothing.msg_control = own_nic_info_.bytes;
  nothing.msg_controllen = own_nic_info_bytes_;
  static_cast<void>(sendmsg(channels_[0].fd, &nothing, MSG_DONTWAIT | MSG_DONTROUTE));
}

}  // namespace nccl_ha::fabric
