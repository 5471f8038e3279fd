#include "tests/rig/nic/wire.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace nccl_ha::emulated {
namespace {

constexpr size_t packet_max = 65536 + sizeof(Header);
constexpr size_t outgoing_max = 4096;  // packets; a network has no more room either

const sockaddr* address_of(const SocketName& name) {
  return reinterpret_cast<const sockaddr*>(name.bytes.data());
}

}  // namespace

Wire::Wire(Control& control) : control_(control), buffer_(packet_max) {
  socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const unsigned numbers = static_cast<unsigned>(control.state().members.size());
  for (unsigned i = 0; i < numbers && number_ == 0; ++i) {
    const unsigned wanted = (static_cast<unsigned>(getpid()) + i) % (hosts_max - 1) + 1;
    const SocketName name = socket_name(control.fabric(), wanted);
    if (bind(socket_, address_of(name), name.length) == 0) {
      number_ = wanted;
    }
  }
  if (number_ == 0 || wake_ < 0) {
    std::fprintf(stderr, "emulated NIC: no socket can be bound\n");
    std::abort();
  }
  control.state().members[number_] = getpid();
}

void Wire::wake() {
  const uint64_t one = 1;
  static_cast<void>(!write(wake_, &one, sizeof one));
}

/// False when the other side has no room.
bool Wire::try_send(unsigned number, Peer& peer, std::span<const iovec> parts) {
  for (int tries = 0; tries < 2; ++tries) {
    if (peer.socket < 0) {
      peer.socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      const SocketName name = socket_name(control_.fabric(), number);
      static_cast<void>(connect(peer.socket, address_of(name), name.length));
    }
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    if (sendmsg(peer.socket, &message, MSG_NOSIGNAL) >= 0) {
      return true;
    }
    if (errno == EAGAIN || errno == ENOBUFS) {
      return false;
    }
    close(std::exchange(peer.socket, -1));  // whoever had the number is gone: once more
  }
  return true;  // nobody is there: it is lost
}

void Wire::send(const Header& header, std::span<const iovec> payload) {
  std::array<iovec, pieces_max + 2> parts{};
  parts[0] = {const_cast<Header*>(&header), sizeof header};
  size_t count = 1;
  size_t total = sizeof header;
  for (const iovec& one : payload) {
    parts[count++] = one;
    total += one.iov_len;
  }
  const unsigned number = header.to_pair >> pair_bits;
  Peer& peer = peers_[number];
  if (peer.outgoing.empty() && try_send(number, peer, std::span(parts).first(count))) {
    return;
  }
  if (peer.outgoing.size() >= outgoing_max) {
    return;
  }
  std::vector<char>& kept = peer.outgoing.emplace_back(total);
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(kept.data() + at, parts[i].iov_base, parts[i].iov_len);
    at += parts[i].iov_len;
  }
  wake();  // the thread waits until there is room
}

bool Wire::receive(Header* header, std::span<const char>* payload) {
  for (;;) {
    const ssize_t bytes = recv(socket_, buffer_.data(), buffer_.size(), 0);
    if (bytes < 0) {
      return false;
    }
    if (static_cast<size_t>(bytes) < sizeof *header) {
      continue;  // only to wake
    }
    std::memcpy(header, buffer_.data(), sizeof *header);
    *payload =
        std::span<const char>(buffer_.data(), static_cast<size_t>(bytes)).subspan(sizeof *header);
    return true;
  }
}

bool Wire::flush(std::vector<pollfd>* waited) {
  uint64_t count = 0;
  static_cast<void>(!read(wake_, &count, sizeof count));
  *waited = {{socket_, POLLIN, 0}, {wake_, POLLIN, 0}};
  bool became_ready = false;
  for (auto& [number, peer] : peers_) {
    if (peer.outgoing.empty()) {
      continue;
    }
    while (!peer.outgoing.empty()) {
      const iovec whole{peer.outgoing.front().data(), peer.outgoing.front().size()};
      if (!try_send(number, peer, std::span(&whole, 1))) {
        break;
      }
      peer.outgoing.pop_front();
    }
    if (peer.outgoing.empty()) {
      became_ready = true;
    } else {
      waited->push_back({peer.socket, POLLOUT, 0});
    }
  }
  return became_ready;
}

}  // namespace nccl_ha::emulated
