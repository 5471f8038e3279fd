#include "tools/check/own_rate.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <vector>

#include "runtime/base/clock.h"

namespace nccl_ha::tools {
namespace {

constexpr size_t measured_bytes = 16 << 20;
constexpr size_t part_bytes = 64 << 10;  ///< less than a socket holds

/// Seconds; 0: it failed.
double move_through(int in, int out) {
  std::vector<std::byte> buffer(part_bytes);
  SteadyClock clock;
  const Instant begin = clock.now();
  for (size_t moved = 0; moved < measured_bytes;) {
    const ssize_t sent = send(in, buffer.data(), part_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent <= 0 || recv(out, buffer.data(), static_cast<size_t>(sent), MSG_WAITALL) != sent) {
      return 0;
    }
    moved += static_cast<size_t>(sent);
  }
  return std::chrono::duration<double>(clock.now() - begin).count();
}

}  // namespace

double own_rate() {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return 0;
  }
  const double seconds = move_through(ends[0], ends[1]);
  close(ends[0]);
  close(ends[1]);
  return seconds > 0 ? static_cast<double>(measured_bytes) / seconds / 1e9 : 0;
}

}  // namespace nccl_ha::tools
