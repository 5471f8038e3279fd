#include "tools/common/bootstrap.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/base/secret.h"
#include "tools/common/resolve.h"

namespace nccl_ha::tools {
namespace {

constexpr uint32_t frame_magic = 0x4e484150;  // "NHAP"
constexpr uint32_t body_max = 16U << 20;
/// So many may be connected and not have said which rank they are.
constexpr size_t unidentified_max = 256;

enum FrameType : uint16_t { hello = 1, data = 2, failure = 3 };

struct FrameHeader {
  uint32_t magic = frame_magic;
  uint16_t type = 0;
  uint16_t reserved = 0;
  uint32_t length = 0;
};
static_assert(sizeof(FrameHeader) == 12);

struct Hello {
  uint64_t cookie = 0;
  uint32_t rank = 0;
  uint32_t size = 0;
};
static_assert(sizeof(Hello) == 16);

Instant now() {
  SteadyClock clock;
  return clock.now();
}

std::string frame(uint16_t type, const std::string& body) {
  FrameHeader header;
  header.type = type;
  header.length = static_cast<uint32_t>(body.size());
  std::string out(reinterpret_cast<const char*>(&header), sizeof(header));
  return out += body;
}

void set_no_delay(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

Result<int> listen_on_port(uint16_t port) {
  int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool six = fd >= 0;
  if (!six) {
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  }
  if (fd < 0) {
    return fail(Errc::system, "cannot make a TCP socket", errno);
  }
  const int one = 1;
  const int zero = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  sockaddr_storage any{};
  socklen_t length = sizeof(sockaddr_in);
  if (six) {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
    auto& address = reinterpret_cast<sockaddr_in6&>(any);
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    length = sizeof(address);
  } else {
    auto& address = reinterpret_cast<sockaddr_in&>(any);
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
  }
  if (bind(fd, reinterpret_cast<sockaddr*>(&any), length) != 0 || listen(fd, 1024) != 0) {
    const int error = errno;
    ::close(fd);
    return fail(Errc::system,
                fmt::format("rank 0 cannot listen on TCP port {}; choose another with --rendezvous "
                            "HOST:PORT",
                            port),
                error);
  }
  return fd;
}

}  // namespace

Result<LoopbackListener> listen_on_loopback() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(fd, 1024) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    const int error = errno;
    if (fd >= 0) {
      ::close(fd);
    }
    return fail(Errc::system, "cannot listen on a loopback TCP port", error);
  }
  return LoopbackListener{fd, ntohs(address.sin_port)};
}

World::~World() {
  for (const Peer& peer : peers_) {
    if (peer.fd >= 0) {
      ::close(peer.fd);
    }
  }
  if (options_.listen_fd >= 0) {
    ::close(options_.listen_fd);
  }
}

Result<std::unique_ptr<World>> World::join(const Options& options) {
  std::unique_ptr<World> world(new World(options));
  auto joined = options.rank == 0 ? world->join_as_root() : world->join_as_member();
  if (!joined) {
    return joined.error();
  }
  // The barrier makes "joined" mean the same moment for everybody.
  if (auto all = world->barrier(); !all) {
    return all.error();
  }
  return world;
}

int World::milliseconds_left(Instant until) const {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - now()).count();
  return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 1000000));
}

std::string World::missing_ranks() const {
  std::string text;
  unsigned shown = 0;
  for (uint32_t rank = 1; rank < options_.size && shown < 16; ++rank) {
    if (peers_[rank - 1].fd < 0) {
      text += fmt::format("{}{}", shown++ == 0 ? "" : ", ", rank);
    }
  }
  return text;
}

Result<void> World::join_as_root() {
  peers_.resize(options_.size - 1);
  for (uint32_t i = 0; i < peers_.size(); ++i) {
    peers_[i].rank = i + 1;
  }
  if (options_.listen_fd < 0) {
    auto fd = listen_on_port(options_.port);
    if (!fd) {
      return fd.error();
    }
    options_.listen_fd = *fd;
  }
  std::vector<Peer> unidentified;  // connected, not yet introduced
  const auto close_strangers = [&] {
    for (const Peer& unknown : unidentified) {
      ::close(unknown.fd);
    }
  };
  size_t present = 0;
  while (present < peers_.size()) {
    std::vector<pollfd> wait{{options_.listen_fd, POLLIN, 0}};
    for (const Peer& unknown : unidentified) {
      wait.push_back({unknown.fd, POLLIN, 0});
    }
    const int ready = poll(wait.data(), wait.size(), milliseconds_left(options_.join_deadline));
    if (ready == 0 || now() > options_.join_deadline) {
      close_strangers();
      return fail(Errc::timed_out, fmt::format("only {} of {} ranks came; missing: {}", present + 1,
                                               options_.size, missing_ranks()));
    }
    for (size_t i = unidentified.size(); i-- > 0;) {
      if (wait[i + 1].revents == 0) {
        continue;
      }
      bool settled = false;
      auto greeted = greet(unidentified[i], settled);
      if (!greeted) {
        close_strangers();
        return greeted.error();
      }
      if (settled) {
        present += unidentified[i].fd < 0 ? 1 : 0;
        if (unidentified[i].fd >= 0) {
          ::close(unidentified[i].fd);
        }
        unidentified.erase(unidentified.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    if (wait[0].revents != 0) {
      accept_into(unidentified);
    }
  }
  close_strangers();
  ::close(options_.listen_fd);
  options_.listen_fd = -1;
  return {};
}

/// Where there are too many, one gives way as at the plugin's own doors.
void World::accept_into(std::vector<Peer>& unidentified) const {
  sockaddr_storage from{};
  socklen_t length = sizeof from;
  const int fd = accept4(options_.listen_fd, reinterpret_cast<sockaddr*>(&from), &length,
                         SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    return;
  }
  const Origin origin = Origin::of(from);
  if (unidentified.size() >= unidentified_max) {
    const auto one =
        unidentified.begin() + static_cast<ptrdiff_t>(who_gives_way(unidentified, origin));
    ::close(one->fd);
    unidentified.erase(one);
  }
  set_no_delay(fd);
  unidentified.push_back({0, fd, {}, origin});
}

// Reads an unknown peer's introduction.  `settled`: this one is done with, either because it became
// a peer (its fd is then -1 here) or because it is to be rejected.
Result<void> World::greet(Peer& unknown, bool& settled) {
  constexpr size_t wanted = sizeof(FrameHeader) + sizeof(Hello);
  char bytes[wanted];
  const ssize_t got = recv(unknown.fd, bytes, wanted - unknown.input.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return {};
  }
  if (got <= 0) {
    settled = true;
    return {};
  }
  unknown.input.append(bytes, static_cast<size_t>(got));
  if (unknown.input.size() < wanted) {
    return {};
  }
  settled = true;
  FrameHeader header;
  Hello body;
  std::memcpy(&header, unknown.input.data(), sizeof(header));
  std::memcpy(&body, unknown.input.data() + sizeof(header), sizeof(body));
  if (header.magic != frame_magic || header.type != hello || header.length != sizeof(body)) {
    return {};  // not one of ours
  }
  if (body.cookie != options_.cookie || body.size != options_.size || body.rank == 0 ||
      body.rank >= options_.size) {
    return fail(Errc::invalid_argument,
                fmt::format("a process introduced itself as rank {} of {} with other options than "
                            "rank 0 of {}: start all ranks with the same command line "
                            "and the same version of nccl-ha",
                            body.rank, body.size, options_.size));
  }
  Peer& place = peers_[body.rank - 1];
  if (place.fd >= 0) {
    return fail(Errc::invalid_argument, fmt::format("two processes claim rank {}", body.rank));
  }
  place.fd = unknown.fd;
  unknown.fd = -1;
  return {};
}

Result<void> World::join_as_member() {
  const auto fd = dial_root(options_.rank, options_.host, options_.port, options_.join_deadline);
  if (!fd) {
    return fd.error();
  }
  set_no_delay(*fd);
  peers_.push_back({0, *fd, {}, {}});
  const Hello introduction{options_.cookie, options_.rank, options_.size};
  return send_to(peers_[0], hello,
                 std::string(reinterpret_cast<const char*>(&introduction), sizeof(introduction)));
}

Error World::peer_failed(const std::string& text) {
  if (!failed_) {
    failed_ = true;
    failure_ = text;
    // Rank 0 is the only one all others hear.
    if (options_.rank == 0) {
      announce_failure(text);
    }
  }
  return fail(Errc::closed, failure_);
}

void World::announce_failure(const std::string& why) {
  const std::string bytes = frame(failure, why.substr(0, 4096));
  for (const Peer& peer : peers_) {
    if (peer.fd >= 0) {
      // A few hundred bytes on a quiet connection: they fit, or the peer is beyond help.
      [[maybe_unused]] const ssize_t sent =
          send(peer.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
}

Result<void> World::send_to(Peer& peer, uint16_t type, const std::string& body) {
  if (failed_) {
    return fail(Errc::closed, failure_);
  }
  if (body.size() > body_max) {
    return fail(Errc::invalid_argument,
                fmt::format("rank {} has {} bytes to tell rank {}, and one message holds {}: take "
                            "fewer hosts at a time",
                            options_.rank, body.size(), peer.rank, body_max));
  }
  const std::string bytes = frame(type, body);
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t sent =
        send(peer.fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      done += static_cast<size_t>(sent);
      continue;
    }
    if (errno == EINTR) {
      continue;
    }
    if (errno != EAGAIN) {
      // What the peer said last may still lie unread and tells more than the failed send.
      if (auto read = pump(0, -1, nullptr); !read) {
        return read;
      }
      return peer_failed(fmt::format("rank {} closed its connection", peer.rank));
    }
    pollfd wait{peer.fd, POLLOUT, 0};
    if (poll(&wait, 1, milliseconds_left(options_.deadline)) == 0) {
      return fail(Errc::timed_out, fmt::format("rank {} does not read", peer.rank));
    }
  }
  return {};
}

Result<void> World::read_some(Peer& peer) {
  char bytes[65536];
  const ssize_t got = recv(peer.fd, bytes, sizeof(bytes), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return {};
  }
  if (got <= 0) {
    return peer_failed(fmt::format("rank {} ended unexpectedly", peer.rank));
  }
  peer.input.append(bytes, static_cast<size_t>(got));
  return look_for_failure(peer);
}

Result<void> World::look_for_failure(const Peer& peer) {
  FrameHeader header;
  for (size_t at = 0; peer.input.size() - at >= sizeof(header);) {
    std::memcpy(&header, peer.input.data() + at, sizeof(header));
    if (header.magic != frame_magic || header.length > body_max) {
      return peer_failed(fmt::format("rank {} sent garbage", peer.rank));
    }
    at += sizeof(header);
    if (peer.input.size() - at < header.length) {
      break;
    }
    if (header.type == failure) {
      return peer_failed(peer.input.substr(at, header.length));
    }
    at += header.length;
  }
  return {};
}

// One wait on all connections and perhaps one more descriptor.
Result<void> World::pump(int timeout_ms, int extra_fd, bool* extra_ready) {
  if (failed_) {
    return fail(Errc::closed, failure_);
  }
  // A failure may have come together with the frame that was taken before.
  for (const Peer& peer : peers_) {
    if (auto fine = look_for_failure(peer); !fine) {
      return fine;
    }
  }
  std::vector<pollfd> wait;
  wait.reserve(peers_.size() + 1);
  for (const Peer& peer : peers_) {
    wait.push_back({peer.fd, POLLIN, 0});
  }
  wait.push_back({extra_fd, POLLIN, 0});
  if (poll(wait.data(), wait.size(), timeout_ms) < 0 && errno != EINTR) {
    return fail(Errc::system, "poll failed", errno);
  }
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (wait[i].revents != 0) {
      if (auto read = read_some(peers_[i]); !read) {
        return read;
      }
    }
  }
  if (extra_ready != nullptr) {
    *extra_ready = wait.back().revents != 0;
  }
  return {};
}

Result<bool> World::take_frame(Peer& peer, uint16_t& type, std::string& body) {
  FrameHeader header;
  if (peer.input.size() < sizeof(header)) {
    return false;
  }
  std::memcpy(&header, peer.input.data(), sizeof(header));
  if (header.magic != frame_magic || header.length > body_max) {
    return peer_failed(fmt::format("rank {} sent garbage", peer.rank));
  }
  if (peer.input.size() < sizeof(header) + header.length) {
    return false;
  }
  type = header.type;
  body = peer.input.substr(sizeof(header), header.length);
  peer.input.erase(0, sizeof(header) + header.length);
  if (type == failure) {
    return peer_failed(body);
  }
  return true;
}

Result<std::string> World::receive_from(Peer& peer) {
  while (true) {
    uint16_t type = 0;
    std::string body;
    auto taken = take_frame(peer, type, body);
    if (!taken) {
      return taken.error();
    }
    if (*taken) {
      return body;
    }
    if (now() > options_.deadline) {
      return fail(Errc::timed_out,
                  fmt::format("no answer from rank {} before the time was up", peer.rank));
    }
    if (auto read = pump(milliseconds_left(options_.deadline), -1, nullptr); !read) {
      // What came before the failure still counts; the next call tells of the failure.
      taken = take_frame(peer, type, body);
      if (taken && *taken) {
        return body;
      }
      return read.error();
    }
  }
}

Result<std::string> World::broadcast(const std::string& from_zero) {
  if (options_.rank != 0) {
    return receive_from(peers_[0]);
  }
  for (Peer& peer : peers_) {
    if (auto sent = send_to(peer, data, from_zero); !sent) {
      return sent.error();
    }
  }
  return from_zero;
}

Result<std::vector<std::string>> World::gather(const std::string& mine) {
  std::vector<std::string> texts;
  if (options_.rank != 0) {
    auto sent = send_to(peers_[0], data, mine);
    return sent ? Result(std::move(texts)) : Result<std::vector<std::string>>(sent.error());
  }
  texts.push_back(mine);
  for (Peer& peer : peers_) {
    auto text = receive_from(peer);
    if (!text) {
      return text.error();
    }
    texts.push_back(std::move(*text));
  }
  return texts;
}

Result<std::vector<std::string>> World::all_gather(const std::string& mine) {
  auto gathered = gather(mine);
  if (!gathered) {
    return gathered.error();
  }
  std::vector<std::string> texts = std::move(*gathered);
  // The texts travel back as one body: a table of lengths, then the texts.
  std::string all;
  if (options_.rank == 0) {
    for (const std::string& text : texts) {
      const auto length = static_cast<uint32_t>(text.size());
      all.append(reinterpret_cast<const char*>(&length), sizeof(length));
    }
    for (const std::string& text : texts) {
      all += text;
    }
    if (auto sent = broadcast(all); !sent) {
      return sent.error();
    }
    return texts;
  }
  auto body = receive_from(peers_[0]);
  if (!body) {
    return body.error();
  }
  size_t at = sizeof(uint32_t) * options_.size;
  for (uint32_t i = 0; i < options_.size; ++i) {
    uint32_t length = 0;
    if (body->size() < at) {
      return fail(Errc::internal, "rank 0 sent a damaged table");
    }
    std::memcpy(&length, body->data() + i * sizeof(length), sizeof(length));
    if (body->size() - at < length) {
      return fail(Errc::internal, "rank 0 sent a damaged table");
    }
    texts.push_back(body->substr(at, length));
    at += length;
  }
  return texts;
}

Result<uint64_t> World::draw() {
  const auto drawn =
      broadcast(options_.rank == 0 ? std::to_string(kernel_secrets().draw().told() | 1) : "");
  return drawn ? Result<uint64_t>(std::strtoull(drawn->c_str(), nullptr, 10)) : drawn.error();
}

Result<void> World::barrier() {
  auto all = all_gather({});
  return all ? Result<void>() : Result<void>(all.error());
}

Result<void> World::wait_readable(int fd) {
  bool ready = false;
  while (!ready) {
    if (now() > options_.deadline) {
      return fail(Errc::timed_out, "no order came before the time was up");
    }
    if (auto read = pump(milliseconds_left(options_.deadline), fd, &ready); !read) {
      return read;
    }
  }
  return {};
}

Result<void> World::check() {
  if (auto read = pump(0, -1, nullptr); !read) {
    return read;
  }
  if (now() > options_.deadline) {
    return fail(Errc::timed_out, "the time was up");
  }
  return {};
}

}  // namespace nccl_ha::tools
