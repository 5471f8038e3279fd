#include "relay/ticket_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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
constexpr uint8_t lends = 3;
constexpr uint8_t is_lent = 4;
constexpr size_t lent_max = JobKeys::own_max + JobKeys::lent_max;
constexpr size_t packet_bytes = 4096;
/// Users below are the system's own, one of whom a relay node may be (login.defs, SYS_UID_MAX).
constexpr uint32_t first_person = 1000;

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

void put_ring(WireWriter& out, const KeyRing& keys) {
  out.put(static_cast<uint8_t>(std::min(keys.size(), lent_max)));
  size_t left = lent_max;
  keys.each([&](uint32_t number, const KeyRing::Key& key) {
    if (left > 0) {
      --left;
      out.put(number);
      out.put_bytes(key);
    }
  });
}

std::optional<KeyRing> ring_in(WireReader& in) {
  KeyRing ring;
  const size_t count = in.take<uint8_t>();
  for (size_t i = 0; i < count && in.good(); ++i) {
    const auto number = in.take<uint32_t>();
    KeyRing::Key key{};
    const auto bytes = in.take_bytes(key.size());
    std::copy(bytes.begin(), bytes.end(), key.begin());
    if (number == 0) {
      return std::nullopt;
    }
    ring.add(number, key);
  }
  return in.good() && in.at_end() && count <= lent_max ? std::optional(ring) : std::nullopt;
}

std::optional<KeyRing> lent_in(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  return take_header(in, is_lent) ? ring_in(in) : std::nullopt;
}

/// False: it is no question.
bool decode_question(std::span<const std::byte> bytes, TicketQuestion& question) {
  WireReader lending(bytes);
  if (take_header(lending, lends)) {
    question.lends = ring_in(lending);
    return question.lends.has_value();
  }
  WireReader in(bytes);
  const bool begins = take_header(in, is_question);
  const auto salt = in.take_bytes(question.salt.size());
  std::copy(salt.begin(), salt.end(), question.salt.begin());
  return begins && in.good() && in.at_end();
}

void send_answer(int fd, const TicketQuestion& question, const WireWriter& out) {
  static_cast<void>(sendto(fd, out.bytes().data(), out.size(), MSG_NOSIGNAL,
                           reinterpret_cast<const sockaddr*>(question.from.data()),
                           static_cast<socklen_t>(question.from.size())));
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

/// Of who has sent a message; nullopt: the kernel does not say.
std::optional<uint32_t> user_of(msghdr& message) {
  const cmsghdr* told = CMSG_FIRSTHDR(&message);
  if (told == nullptr || told->cmsg_level != SOL_SOCKET || told->cmsg_type != SCM_CREDENTIALS) {
    return std::nullopt;
  }
  ucred who{};
  std::memcpy(&who, CMSG_DATA(told), sizeof who);
  return who.uid;
}

bool pass_credentials(int fd) {
  const int yes = 1;
  return setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) == 0;
}

/// One message, and whose it is.
struct LocalMessage {
  std::array<std::byte, packet_bytes> bytes;
  sockaddr_un from{};
  socklen_t from_length = 0;
  std::optional<uint32_t> user;
  std::span<const std::byte> content;

  bool receive(int fd) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_name = &from;
    message.msg_namelen = sizeof from;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    if (got < 0) {
      return false;
    }
    from_length = message.msg_namelen;
    user = user_of(message);
    content = std::span<const std::byte>(bytes).first(static_cast<size_t>(got));
    return true;
  }
};

}  // namespace

Result<int> open_ticket_office(uint16_t port) {
  auto fd = open_local();
  if (!fd) {
    return fd;
  }
  sockaddr_un name{};
  const socklen_t length = name_office(port, name);
  if (!pass_credentials(*fd) || bind(*fd, reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    const int error = errno;
    close_fd(*fd);
    return fail(Errc::system, fmt::format("cannot take the UNIX socket \"@{}\"", name.sun_path + 1),
                error);
  }
  return fd;
}

bool read_question(int fd, std::optional<TicketQuestion>& question) {
  question.reset();
  LocalMessage message;
  if (!message.receive(fd)) {
    return errno == EINTR;
  }
  TicketQuestion made;
  if (!decode_question(message.content, made) || message.from_length <= sizeof(sa_family_t) ||
      !message.user) {
    return true;
  }
  made.user = *message.user;
  const auto* address = reinterpret_cast<const std::byte*>(&message.from);
  made.from.assign(address, address + message.from_length);
  question = std::move(made);
  return true;
}

void answer_question(int fd, const TicketQuestion& question, const NamedKey& ticket) {
  WireWriter out;
  put_header(out, is_answer);
  put_ticket(out, ticket.ticket);
  out.put_bytes(ticket.key);
  send_answer(fd, question, out);
}

void answer_question(int fd, const TicketQuestion& question, const KeyRing& of_user) {
  WireWriter out;
  put_header(out, is_lent);
  put_ring(out, of_user);
  send_answer(fd, question, out);
}

TicketAsker::~TicketAsker() { close_fd(fd_); }

bool is_office_open(uint16_t port) {
  const auto fd = open_local();
  if (!fd) {
    return false;
  }
  sockaddr_un office{};
  const socklen_t length = name_office(port, office);
  const bool open = connect(*fd, reinterpret_cast<const sockaddr*>(&office), length) == 0;
  close_fd(*fd);
  return open;
}

bool TicketAsker::open() {
  const auto fd = open_local();
  if (!fd) {
    return false;
  }
  fd_ = *fd;
  trusted_ = false;
  // Any name that is free, so that there is somewhere to answer to; what another socket sends there
  // the kernel refuses, as this one is connected.
  const sockaddr any{AF_UNIX, {}};
  sockaddr_un office{};
  const socklen_t length = name_office(port_, office);
  return pass_credentials(fd_) && bind(fd_, &any, sizeof(sa_family_t)) == 0 &&
         connect(fd_, reinterpret_cast<const sockaddr*>(&office), length) == 0;
}

bool TicketAsker::ask() {
  WireWriter out;
  put_header(out, is_question);
  out.put_bytes(salt_);
  return send(out);
}

/// Anybody may have taken the office's name: it is asked who it is before it is told anything.
bool TicketAsker::lend(const KeyRing& keys) {
  WireWriter out;
  put_header(out, lends);
  put_ring(out, trusted_ ? keys : KeyRing());
  return send(out);
}

bool TicketAsker::send(const WireWriter& out) {
  const auto say = [&] {
    return fd_ >= 0 &&
           (::send(fd_, out.bytes().data(), out.size(), MSG_NOSIGNAL) >= 0 || errno == EAGAIN);
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

TicketAsker::Answers TicketAsker::take() {
  Answers answers;
  LocalMessage message;
  while (fd_ >= 0 && message.receive(fd_)) {
    const bool of_ours =
        message.user && (*message.user == geteuid() || *message.user < first_person);
    if (auto ticket = answer_in(message.content)) {
      answers.ticket = ticket;
    } else if (auto lent = of_ours ? lent_in(message.content) : std::nullopt) {
      trusted_ = true;
      answers.lent = std::move(lent);
    }
  }
  return answers;
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
      ticket = take().ticket;
    }
  }
  return ticket;
}

}  // namespace nccl_ha::relay
