#include "relay/ticket_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/own_fd.h"

namespace nccl_ha::relay {
namespace {

constexpr uint32_t ticket_magic = 0x5448414E;  // "NAHT"
constexpr uint8_t ticket_version = 1;
constexpr uint8_t is_question = 1;
constexpr uint8_t is_answer = 2;
constexpr size_t packet_bytes = 128;

/// Of the network that a process is in, and of no file system.
socklen_t name_office(uint16_t port, sockaddr_un& name) {
  const std::string text = fmt::format("nccl-ha relay {}", port);
  name.sun_family = AF_UNIX;
  std::copy(text.begin(), text.end(), name.sun_path + 1);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
}

Result<int> open_local() {
  const int fd =
      make_fd([] { return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  return fd >= 0 ? Result<int>(fd) : fail(Errc::system, "cannot open a UNIX socket", errno);
}

bool take_header(WireReader& in, uint8_t kind) {
  const auto magic = in.take<uint32_t>();
  const auto version = in.take<uint8_t>();
  return in.take<uint8_t>() == kind && magic == ticket_magic && version == ticket_version;
}

void put_header(WireWriter& out, uint8_t kind) {
  out.put(ticket_magic);
  out.put(ticket_version);
  out.put(kind);
}

std::optional<NamedKey> answer_in(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  const bool begins = take_header(in, is_answer);
  NamedKey ticket;
  ticket.ticket = take_ticket(in);
  const auto key = in.take_bytes(ticket.key.size());
  std::copy(key.begin(), key.end(), ticket.key.begin());
  return begins && in.good() && in.at_end() && ticket.ticket.given() ? std::optional(ticket)
                                                                     : std::nullopt;
}

}  // namespace

Result<int> open_ticket_office(uint16_t port) {
  auto fd = open_local();
  if (!fd) {
    return fd;
  }
  sockaddr_un name{};
  const socklen_t length = name_office(port, name);
  const int yes = 1;
  if (setsockopt(*fd, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0 ||
      bind(*fd, reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    const int error = errno;
    close_fd(*fd);
    return fail(Errc::system, fmt::format("cannot take the UNIX socket \"@{}\"", name.sun_path + 1),
                error);
  }
  return fd;
}

bool read_question(int fd, std::optional<TicketQuestion>& question) {
  std::array<std::byte, packet_bytes> bytes;
  sockaddr_un from{};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_name = &from;
  message.msg_namelen = sizeof from;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  question.reset();
  const ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) {
    return errno == EINTR;
  }
  const auto all = std::span<const std::byte>(bytes).first(static_cast<size_t>(got));
  WireReader in(all);
  const bool begins = take_header(in, is_question);
  TicketQuestion made;
  const auto salt = in.take_bytes(made.salt.size());
  std::copy(salt.begin(), salt.end(), made.salt.begin());
  const cmsghdr* told = CMSG_FIRSTHDR(&message);
  if (!begins || !in.good() || !in.at_end() || message.msg_namelen <= sizeof(sa_family_t) ||
      told == nullptr || told->cmsg_level != SOL_SOCKET || told->cmsg_type != SCM_CREDENTIALS) {
    return true;
  }
  ucred who{};
  std::memcpy(&who, CMSG_DATA(told), sizeof who);
  made.user = who.uid;
  const auto* address = reinterpret_cast<const std::byte*>(&from);
  made.from.assign(address, address + message.msg_namelen);
  question = std::move(made);
  return true;
}

void answer_question(int fd, const TicketQuestion& question, const NamedKey& ticket) {
  WireWriter out;
  put_header(out, is_answer);
  put_ticket(out, ticket.ticket);
  out.put_bytes(ticket.key);
  static_cast<void>(sendto(fd, out.bytes().data(), out.size(), MSG_NOSIGNAL,
                           reinterpret_cast<const sockaddr*>(question.from.data()),
                           static_cast<socklen_t>(question.from.size())));
}

TicketAsker::~TicketAsker() { close_fd(fd_); }

bool TicketAsker::open() {
  const auto fd = open_local();
  if (!fd) {
    return false;
  }
  fd_ = *fd;
  // Any name that is free, so that there is somewhere to answer to; what another socket sends there
  // the kernel refuses, as this one is connected.
  const sockaddr any{AF_UNIX, {}};
  sockaddr_un office{};
  const socklen_t length = name_office(port_, office);
  return bind(fd_, &any, sizeof(sa_family_t)) == 0 &&
         connect(fd_, reinterpret_cast<const sockaddr*>(&office), length) == 0;
}

bool TicketAsker::ask() {
  WireWriter out;
  put_header(out, is_question);
  out.put_bytes(salt_);
  const auto say = [&] {
    return fd_ >= 0 &&
           (send(fd_, out.bytes().data(), out.size(), MSG_NOSIGNAL) >= 0 || errno == EAGAIN);
  };
  // What was connected to a node that has ended is so for good.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (say()) {
      return true;
    }
    close_fd(std::exchange(fd_, -1));
    if (!open()) {
      break;
    }
  }
  close_fd(std::exchange(fd_, -1));
  return false;
}

std::optional<NamedKey> TicketAsker::take() {
  std::optional<NamedKey> newest;
  std::array<std::byte, packet_bytes> bytes;
  for (ssize_t got = 0; fd_ >= 0 && (got = recv(fd_, bytes.data(), bytes.size(), 0)) >= 0;) {
    if (auto ticket = answer_in(std::span(bytes).first(static_cast<size_t>(got)))) {
      newest = ticket;
    }
  }
  return newest;
}

std::optional<NamedKey> TicketAsker::wait(Duration patience) {
  if (!ask()) {
    return std::nullopt;
  }
  SteadyClock clock;
  const Instant end = clock.now() + patience;
  std::optional<NamedKey> ticket;
  for (Instant now = clock.now(); !ticket && now < end; now = clock.now()) {
    pollfd waiting{fd_, POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - now).count();
    if (poll(&waiting, 1, static_cast<int>(left)) > 0) {
      if ((waiting.revents & (POLLERR | POLLHUP)) != 0 && (waiting.revents & POLLIN) == 0) {
        break;  // the node has ended
      }
      ticket = take();
    }
  }
  return ticket;
}

}  // namespace nccl_ha::relay
