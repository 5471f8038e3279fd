#include "relay/link_sockets.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/egress.h"
#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"
#include "runtime/base/secret.h"

namespace nccl_ha::relay {
namespace {

constexpr int hop_limit_of_neighbours = 255;
constexpr size_t receive_bytes = 2048;
constexpr IpAddress group_v6() {
  IpAddress group;
  group.family = 6;
  group.bytes[0] = 0xFF;
  group.bytes[1] = 0x02;
  group.bytes[14] = 0x01;
  group.bytes[15] = 0x14;
  return group;
}
constexpr IpAddress group_v4() {
  IpAddress group;
  group.bytes[0] = 224;
  group.bytes[3] = 254;
  return group;
}

bool set_int(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof value) == 0;
}

fabric::SocketAddress socket_address_of(const IpAddress& address, uint16_t port, uint32_t scope) {
  fabric::SocketAddress made;
  IpAddress scoped = address;
  scoped.scope_id = scope;
  made.length = scoped.to_sockaddr(port, &made.storage);
  return made;
}

Result<int> open_socket(int family, uint16_t port) {
  const int fd =
      make_fd([&] { return socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (fd < 0) {
    return fail(Errc::system, "cannot open a socket for discovery", errno);
  }
  bool good = true;
  IpAddress any;
  any.family = family == AF_INET6 ? 6 : 4;
  if (family == AF_INET6) {
    good = set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1) &&
           set_int(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1) &&
           set_int(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1) &&
           set_int(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, hop_limit_of_neighbours) &&
           set_int(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, hop_limit_of_neighbours) &&
           set_int(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 0);
  } else {
    good = set_int(fd, IPPROTO_IP, IP_PKTINFO, 1) && set_int(fd, IPPROTO_IP, IP_RECVTTL, 1) &&
           set_int(fd, IPPROTO_IP, IP_TTL, hop_limit_of_neighbours) &&
           set_int(fd, IPPROTO_IP, IP_MULTICAST_TTL, hop_limit_of_neighbours) &&
           set_int(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 0) &&
           set_int(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);
  }
  const fabric::SocketAddress local = socket_address_of(any, port, 0);
  if (!good || bind(fd, local.get(), local.length) != 0) {
    const int error = errno;
    close_fd(fd);
    return fail(Errc::system, fmt::format("cannot use UDP port {} for discovery", port), error);
  }
  return fd;
}

/// Where a packet came in, and how many routers it may have passed.
struct Arrival {
  uint32_t interface = 0;
  int hop_limit = -1;
};

Arrival arrival_of(msghdr& message) {
  Arrival arrival;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (const int interface = PacketInfo::interface_in(*part); interface != 0) {
      arrival.interface = static_cast<uint32_t>(interface);
    } else if ((part->cmsg_level == IPPROTO_IPV6 && part->cmsg_type == IPV6_HOPLIMIT) ||
               (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_TTL)) {
      std::memcpy(&arrival.hop_limit, CMSG_DATA(part), sizeof arrival.hop_limit);
    }
  }
  return arrival;
}

/// Out of that interface, whatever the routes say.
void send_out(int fd, uint32_t interface, const fabric::SocketAddress& to,
              std::span<const std::byte> packet) {
  iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
  alignas(cmsghdr) char control[PacketInfo::bytes_max];
  IpAddress any;
  any.family = to.storage.ss_family == AF_INET6 ? 6 : 4;
  msghdr message{};
  message.msg_name = const_cast<sockaddr*>(to.get());
  message.msg_namelen = to.length;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = PacketInfo::write(control, static_cast<int>(interface), any);
  // What cannot be sent now is repeated: hellos by the clock, the rest by comparing digests.
  static_cast<void>(sendmsg(fd, &message, MSG_NOSIGNAL));
}

ipv6_mreq membership_v6(int interface) {
  ipv6_mreq v6{};
  std::memcpy(&v6.ipv6mr_multiaddr, group_v6().bytes.data(), 16);
  v6.ipv6mr_interface = static_cast<unsigned>(interface);
  return v6;
}

ip_mreqn membership_v4(int interface) {
  ip_mreqn v4{};
  std::memcpy(&v4.imr_multiaddr, group_v4().bytes.data(), 4);
  v4.imr_ifindex = interface;
  return v4;
}

bool is_loopback(const fabric::SocketAddress& from) {
  const auto address = IpAddress::from_sockaddr(from.get());
  return address && address->loopback();
}

}  // namespace

Result<std::unique_ptr<LinkSockets>> LinkSockets::open(const Options& options, bool* port_taken) {
  std::unique_ptr<LinkSockets> made(new LinkSockets);
  made->port_ = options.port;
  made->peers_ = options.peers;
  const auto v4 = open_socket(AF_INET, options.port);
  if (!v4) {
    if (port_taken != nullptr) {
      *port_taken = v4.error().sys == EADDRINUSE;
    }
    return v4.error();
  }
  made->v4_ = *v4;
  if (const auto v6 = open_socket(AF_INET6, options.port)) {
    made->v6_ = *v6;
  } else if (v6.error().sys == EADDRINUSE) {
    if (port_taken != nullptr) {
      *port_taken = true;
    }
    return v6.error();
  }
  return made;
}

LinkSockets::~LinkSockets() {
  close_fd(v6_);
  close_fd(v4_);
}

void LinkSockets::use(const std::vector<fabric::NetInterface>& interfaces) {
  // A socket has room for few memberships (igmp_max_memberships), also of interfaces that are gone.
  for (const auto& [number, gone] : std::exchange(interfaces_, {})) {
    const int index = gone.ifindex;
    const auto same = [index](const auto& one) { return one.ifindex == index; };
    if (std::ranges::none_of(interfaces, same)) {
      const ipv6_mreq v6 = membership_v6(index);
      static_cast<void>(setsockopt(v6_, IPPROTO_IPV6, IPV6_LEAVE_GROUP, &v6, sizeof v6));
      const ip_mreqn v4 = membership_v4(index);
      static_cast<void>(setsockopt(v4_, IPPROTO_IP, IP_DROP_MEMBERSHIP, &v4, sizeof v4));
    }
  }
  for (const fabric::NetInterface& one : interfaces) {
    interfaces_[static_cast<uint32_t>(one.ifindex)] = one;
    // Who is in a group already stays in it; who cannot enter it is heard through the other one.
    const ipv6_mreq v6 = membership_v6(one.ifindex);
    const bool by_v6 =
        setsockopt(v6_, IPPROTO_IPV6, IPV6_JOIN_GROUP, &v6, sizeof v6) == 0 || errno == EADDRINUSE;
    const ip_mreqn v4 = membership_v4(one.ifindex);
    const bool by_v4 =
        setsockopt(v4_, IPPROTO_IP, IP_ADD_MEMBERSHIP, &v4, sizeof v4) == 0 || errno == EADDRINUSE;
    if (!by_v4 && !by_v6) {
      NHA_LOG_WARN_LIMITED(
          "neighbours over {} are not heard by multicast: {} (net.ipv4.igmp_max_memberships?)",
          one.name, std::strerror(errno));
    }
  }
}

void LinkSockets::greet(const fabric::NetInterface& interface, std::span<const std::byte> packet) {
  const auto number = static_cast<uint32_t>(interface.ifindex);
  const bool has_v4 = std::any_of(interface.addresses.begin(), interface.addresses.end(),
                                  [](const IpAddress& address) { return address.family == 4; });
  if (v6_ >= 0) {
    send_out(v6_, number, socket_address_of(group_v6(), port_, number), packet);
  }
  if (has_v4) {
    send_out(v4_, number, socket_address_of(group_v4(), port_, 0), packet);
  }
  for (const IpAddress& peer : peers_) {
    const bool here = std::any_of(
        interface.addresses.begin(), interface.addresses.end(),
        [&](const IpAddress& own) { return own.same_subnet(peer) && own.bytes != peer.bytes; });
    const int fd = peer.family == 6 ? v6_ : v4_;
    if (here && fd >= 0) {
      send_out(fd, number, socket_address_of(peer, port_, peer.link_local() ? number : 0), packet);
    }
  }
}

void LinkSockets::send(uint32_t interface, const fabric::SocketAddress* to,
                       std::span<const std::byte> packet) {
  if (to == nullptr) {
    if (const auto known = interfaces_.find(interface); known != interfaces_.end()) {
      greet(known->second, packet);
    }
    return;
  }
  const int fd = to->storage.ss_family == AF_INET6 ? v6_ : v4_;
  if (fd >= 0) {
    send_out(fd, interface, *to, packet);
  }
}

void LinkSockets::answer(const fabric::SocketAddress& to, std::span<const std::byte> packet) {
  const int fd = to.storage.ss_family == AF_INET6 ? v6_ : v4_;
  static_cast<void>(sendto(fd, packet.data(), packet.size(), MSG_NOSIGNAL, to.get(), to.length));
}

bool LinkSockets::receive_one(int fd, Sink& sink) {
  std::array<std::byte, receive_bytes> bytes;
  alignas(cmsghdr) char control[128];
  fabric::SocketAddress from;
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_name = from.get();
  message.msg_namelen = sizeof from.storage;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(fd, &message, 0);
  if (got < 0) {
    return false;
  }
  from.length = message.msg_namelen;
  const Arrival arrival = arrival_of(message);
  if (arrival.hop_limit != hop_limit_of_neighbours) {
    ++from_afar_;
  } else if ((message.msg_flags & MSG_TRUNC) == 0) {
    sink.on_packet(arrival.interface, from, is_loopback(from),
                   std::span(bytes).first(static_cast<size_t>(got)));
  }
  return true;
}

size_t LinkSockets::receive(Sink& sink, size_t limit) {
  size_t count = 0;
  for (const int fd : {v6_, v4_}) {
    while (fd >= 0 && count < limit && receive_one(fd, sink)) {
      ++count;
    }
  }
  return count;
}

Result<std::vector<IpAddress>> parse_mesh_peers(std::string_view setting) {
  auto peers = parse_addresses(setting);
  return peers ? peers : fail(Errc::invalid_argument, "HA_NCCL_MESH_PEERS: " + peers.error().what);
}

namespace {

/// Collects what the other process tells.
class Answers {
 public:
  void take(std::span<const std::byte> bytes) {
    auto packet = decode_packet(bytes);
    auto* states = packet ? std::get_if<StatesPacket>(&packet->body) : nullptr;
    if (states == nullptr) {
      return;
    }
    self = packet->sender;
    found.insert(found.end(), std::make_move_iterator(states->states.begin()),
                 std::make_move_iterator(states->states.end()));
  }
  NodeId self{};
  std::vector<LinkState> found;
};

}  // namespace

Result<std::vector<LinkState>> ask_this_host(uint16_t port, Duration patience, NodeId* self) {
  // What comes after the last packet of an answer is silence; on one host it is short.
  constexpr int silence_ms = 100;
  const int fd =
      make_fd([] { return socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (fd < 0) {
    return fail(Errc::system, "cannot open a socket to ask the relay node", errno);
  }
  // A thousand hosts are a hundred packets at once.
  set_int(fd, SOL_SOCKET, SO_RCVBUF, 1 << 20);
  set_int(fd, IPPROTO_IP, IP_TTL, hop_limit_of_neighbours);
  IpAddress loopback;
  loopback.bytes = {127, 0, 0, 1};
  const fabric::SocketAddress to = socket_address_of(loopback, port, 0);
  const auto query =
      encode(DiscoveryPacket{NodeId{kernel_secrets().draw().told() | 1}, 1, QueryPacket{}});
  Answers answers;
  int wait_ms =
      static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(patience).count());
  bool asked = connect(fd, to.get(), to.length) == 0 &&
               ::send(fd, query.data(), query.size(), MSG_NOSIGNAL) >= 0;
  pollfd waiting{fd, POLLIN, 0};
  while (asked && poll(&waiting, 1, wait_ms) > 0) {
    std::array<std::byte, receive_bytes> bytes;
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
    if (got < 0) {
      asked = errno == EAGAIN || errno == EINTR;
      continue;
    }
    answers.take(std::span(bytes).first(static_cast<size_t>(got)));
    wait_ms = silence_ms;
  }
  close_fd(fd);
  if (answers.found.empty()) {
    return fail(Errc::timed_out,
                fmt::format("another process of this host uses UDP port {} (HA_NCCL_MESH_PORT) and "
                            "does not tell what it knows: is it a relay node of nccl-ha?",
                            port));
  }
  *self = answers.self;
  return std::move(answers.found);
}

}  // namespace nccl_ha::relay
