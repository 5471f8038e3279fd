#include "tools/common/resolve.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "runtime/base/ip_address.h"

namespace nccl_ha::tools {
namespace {

constexpr int connect_pause_ms = 50;
constexpr int resolve_pause_max_ms = 1000;

/// One attempt to connect to one address; -1 with errno set when it failed.
int connect_once(const addrinfo& address, int timeout_ms) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return -1;
  }
  int error = 0;
  if (connect(fd, address.ai_addr, address.ai_addrlen) != 0) {
    error = errno;
    if (error == EINPROGRESS) {
      pollfd wait{fd, POLLOUT, 0};
      socklen_t length = sizeof(error);
      error = ETIMEDOUT;
      if (poll(&wait, 1, timeout_ms) == 1) {
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
      }
    }
  }
  if (error != 0) {
    ::close(fd);
    errno = error;
    return -1;
  }
  return fd;
}

}  // namespace

Result<Addresses> resolve(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const std::string bare(without_brackets(host));
  const int wrong = getaddrinfo(bare.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (wrong != 0) {
    const int error = wrong == EAI_SYSTEM ? errno : 0;
    return fail(Errc::remote,
                error == 0 ? fmt::format("cannot resolve {}: {}", bare, gai_strerror(wrong))
                           : fmt::format("cannot resolve {}", bare),
                error);
  }
  return Addresses(list);
}

Result<int> dial_root(uint32_t rank, const std::string& host, uint16_t port, Instant deadline) {
  SteadyClock clock;
  const Instant begun = clock.now();
  const auto milliseconds_left = [&] {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock.now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
  };
  Error last;
  bool told = false;
  int pause_ms = connect_pause_ms;
  do {
    const auto list = resolve(host, port);
    for (const addrinfo* a = list ? list->get() : nullptr; a != nullptr; a = a->ai_next) {
      const int fd = connect_once(*a, std::min(5000, milliseconds_left()));
      if (fd >= 0) {
        return fd;
      }
      last =
          fail(Errc::timed_out,
               fmt::format("rank {} cannot reach rank 0 at {} port {}", rank, host, port), errno);
    }
    if (!list) {
      last =
          fail(Errc::timed_out,
               fmt::format("rank {} {}; it tried for {} s: is the name of rank 0's host right "
                           "(MASTER_ADDR, --rendezvous or --hosts), and does this host's DNS or "
                           "/etc/hosts know it?",
                           rank, list.error().message(),
                           std::chrono::round<std::chrono::seconds>(clock.now() - begun).count()));
      if (!std::exchange(told, true)) {
        fmt::print(stderr, "nccl-ha: rank {} {}; trying again for {} s\n", rank,
                   list.error().message(), milliseconds_left() / 1000);
      }
    }
    // Nothing here would tell when rank 0 listens.  A name server is asked less often.
    poll(nullptr, 0, std::min(pause_ms, milliseconds_left()));
    pause_ms = list ? connect_pause_ms : std::min(2 * pause_ms, resolve_pause_max_ms);
  } while (clock.now() < deadline);
  return last;
}

}  // namespace nccl_ha::tools
