// The limit of a machine for bytes that pass hosts in between: what a relay's sockets carry when
// nobody looks at what is in it.  The same kind of sockets as a datagram path has, with the
// kernel's segmentation and coalescing, a window in place of a protocol, one thread each.  The ends
// wait as NCCL's do, which look and yield, and go through as much memory; a forwarder sleeps.
//
// usage: bare_forwarder forward BEFORE NEXT          copies what comes from either to the other one
//        bare_forwarder sink BEFORE                  acknowledges
//        bare_forwarder source NEXT MEGABYTES SEGMENT   sends; prints GB/s
//        bare_forwarder ping NEXT COUNT              prints the median half round trip, us
// BEFORE, NEXT: IPv4 addresses.  Each ends with the source, and prints its processor seconds.
// Exit status 2: nothing came for three seconds (tests/bench/relay_hops.py).
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"

namespace {

constexpr uint16_t port = 18790;
constexpr size_t window_bytes = size_t{1} << 20;  ///< the receive buffer holds several of them
constexpr size_t memory_bytes = size_t{8} << 20;  ///< of eight messages of 1 MiB
constexpr int buffer_bytes = 8 << 20;
constexpr size_t datagram_bytes = 65536;
constexpr size_t segments_most = 44;
constexpr timeval patience{3, 0};

/// In front of what the source sends, and all that the sink answers.
enum class Kind : uint8_t { data, ping, end };
struct Header {
  Kind kind = Kind::data;
  uint64_t bytes = 0;  ///< of an answer: all that has arrived
};

sockaddr_in address_of(const char* text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (inet_pton(AF_INET, text, &address.sin_addr) != 1) {
    std::fprintf(stderr, "bare_forwarder: '%s' is no IPv4 address\n", text);
    std::exit(1);
  }
  return address;
}

/// How somebody waits for what comes.
enum class Wait : uint8_t { asleep, yielding };

class Socket {
 public:
  explicit Socket(Wait wait) : wait_(wait), fd_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_port = htons(port);
    const int on = 1;
    if (fd_ < 0 || bind(fd_, reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 ||
        setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof buffer_bytes) != 0 ||
        setsockopt(fd_, SOL_SOCKET, SO_SNDBUFFORCE, &buffer_bytes, sizeof buffer_bytes) != 0 ||
        setsockopt(fd_, SOL_UDP, UDP_GRO, &on, sizeof on) != 0 ||
        setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0) {
      std::perror("bare_forwarder: socket");
      std::exit(1);
    }
    // Whoever sends to it waits for this line.
    std::printf("bound\n");
    std::fflush(stdout);
  }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  /// Bytes of one or several datagrams that came together, `segment` bytes each but the last one.
  size_t receive(std::span<char> into, sockaddr_in& from, uint16_t& segment) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    iovec part{into.data(), into.size()};
    msghdr message{};
    message.msg_name = &from;
    message.msg_namelen = sizeof from;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = wait_ == Wait::asleep ? recvmsg(fd_, &message, 0) : poll(message);
    if (got <= 0) {
      std::fprintf(stderr, "bare_forwarder: nothing came: %s\n", std::strerror(errno));
      std::exit(2);
    }
    segment = 0;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
        int size = 0;
        std::memcpy(&size, CMSG_DATA(c), sizeof size);
        segment = static_cast<uint16_t>(size);
      }
    }
    return static_cast<size_t>(got);
  }

  void send(const char* data, size_t bytes, const sockaddr_in& to, uint16_t segment) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(uint16_t))> control{};
    iovec part{const_cast<char*>(data), bytes};
    msghdr message{};
    message.msg_name = const_cast<sockaddr_in*>(&to);
    message.msg_namelen = sizeof to;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (segment != 0 && segment < bytes) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_UDP;
      c->cmsg_type = UDP_SEGMENT;
      c->cmsg_len = CMSG_LEN(sizeof segment);
      std::memcpy(CMSG_DATA(c), &segment, sizeof segment);
    }
    if (sendmsg(fd_, &message, 0) != static_cast<ssize_t>(bytes)) {
      std::perror("bare_forwarder: send");
      std::exit(1);
    }
  }

 private:
  ssize_t poll(msghdr& message) const {
    const nccl_ha::Instant begin = clock_.now();
    const msghdr fresh = message;
    for (uint32_t looks = 1;; ++looks) {
      message = fresh;
      const ssize_t got = recvmsg(fd_, &message, MSG_DONTWAIT);
      const bool none = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
      const bool late =
          looks % 1024 == 0 && clock_.now() - begin > std::chrono::seconds(patience.tv_sec);
      if (!none || late) {
        return got;
      }
      sched_yield();
    }
  }

  mutable nccl_ha::SteadyClock clock_;
  const Wait wait_;
  int fd_;
};

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return of(used.ru_utime) + of(used.ru_stime);
}

Header header_of(std::span<const char> data, size_t bytes) {
  Header header;
  if (bytes >= sizeof header) {
    std::memcpy(&header, data.data(), sizeof header);
  }
  return header;
}

void forward(const sockaddr_in& before, const sockaddr_in& next) {
  Socket socket(Wait::asleep);
  std::vector<char> data(datagram_bytes);
  for (bool over = false; !over;) {
    sockaddr_in from{};
    uint16_t segment = 0;
    const size_t bytes = socket.receive(data, from, segment);
    const bool onwards = from.sin_addr.s_addr == before.sin_addr.s_addr;
    socket.send(data.data(), bytes, onwards ? next : before, segment);
    // The end comes last, and its answer ends those before.
    over = !onwards && header_of(data, bytes).kind == Kind::end;
  }
}

void sink(const sockaddr_in& before) {
  Socket socket(Wait::yielding);
  std::vector<char> memory(memory_bytes);
  size_t place = 0;
  Header answer;
  for (; answer.kind != Kind::end;) {
    sockaddr_in from{};
    uint16_t segment = 0;
    const std::span<char> data(memory.data() + place, datagram_bytes);
    place = (place + datagram_bytes) % memory_bytes;
    const size_t bytes = socket.receive(data, from, segment);
    answer.kind = header_of(data, bytes).kind;
    answer.bytes += bytes;
    socket.send(reinterpret_cast<const char*>(&answer), sizeof answer, before, 0);
  }
}

Header await_answer(Socket& socket, std::vector<char>& data) {
  sockaddr_in from{};
  uint16_t segment = 0;
  const size_t bytes = socket.receive(data, from, segment);
  // Of answers that came together the last one says most.
  Header header;
  if (bytes >= sizeof header) {
    std::memcpy(&header, data.data() + (bytes / sizeof header - 1) * sizeof header, sizeof header);
  }
  return header;
}

void say_end(Socket& socket, const sockaddr_in& next, std::vector<char>& data) {
  Header end;
  end.kind = Kind::end;
  socket.send(reinterpret_cast<const char*>(&end), sizeof end, next, 0);
  while (await_answer(socket, data).kind != Kind::end) {
  }
}

double source(const sockaddr_in& next, uint64_t bytes, uint16_t segment) {
  Socket socket(Wait::yielding);
  std::vector<char> answers(datagram_bytes);
  // The header is that of every segment's kind: plain data.
  const std::vector<char> memory(memory_bytes);
  const size_t run = std::min(segments_most, size_t{65000} / segment) * segment;
  size_t place = 0;
  nccl_ha::SteadyClock clock;
  const nccl_ha::Instant begin = clock.now();
  uint64_t sent = 0;
  uint64_t arrived = 0;
  while (arrived < bytes) {
    while (sent < bytes && sent - arrived + run <= window_bytes) {
      socket.send(memory.data() + place, run, next, segment);
      place = place + 2 * run <= memory_bytes ? place + run : 0;
      sent += run;
    }
    arrived = std::max(arrived, await_answer(socket, answers).bytes);
  }
  const double seconds = std::chrono::duration<double>(clock.now() - begin).count();
  say_end(socket, next, answers);
  return static_cast<double>(sent) / seconds / 1e9;
}

double ping(const sockaddr_in& next, size_t count) {
  Socket socket(Wait::yielding);
  std::vector<char> answers(datagram_bytes);
  Header ping;
  ping.kind = Kind::ping;
  std::vector<double> times;
  nccl_ha::SteadyClock clock;
  for (size_t i = 0; i < count; ++i) {
    const nccl_ha::Instant begin = clock.now();
    socket.send(reinterpret_cast<const char*>(&ping), sizeof ping, next, 0);
    await_answer(socket, answers);
    times.push_back(std::chrono::duration<double, std::micro>(clock.now() - begin).count() / 2);
  }
  say_end(socket, next, answers);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view role = argc > 2 ? argv[1] : "";
  if (role == "forward" && argc == 4) {
    forward(address_of(argv[2]), address_of(argv[3]));
  } else if (role == "sink" && argc == 3) {
    sink(address_of(argv[2]));
  } else if (role == "source" && argc == 5 && std::atoi(argv[3]) > 0 && std::atoi(argv[4]) > 63 &&
             std::atoi(argv[4]) < 65000) {
    std::printf("gbps %.4f\n",
                source(address_of(argv[2]), 1000000ULL * std::strtoull(argv[3], nullptr, 10),
                       static_cast<uint16_t>(std::atoi(argv[4]))));
  } else if (role == "ping" && argc == 4 && std::atoi(argv[3]) > 0) {
    std::printf("p50_us %.2f\n",
                ping(address_of(argv[2]), static_cast<size_t>(std::atoi(argv[3]))));
  } else {
    std::fprintf(stderr, "usage: see the head of bare_forwarder.cpp\n");
    return 1;
  }
  std::printf("cpu_s %.4f\n", processor_seconds());
  return 0;
}
