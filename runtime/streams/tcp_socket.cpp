#include "runtime/streams/tcp_socket.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace nccl_ha {
namespace {

constexpr int keepalive_seconds = 10;

void set(int fd, int level, int option, int value) {
  static_cast<void>(setsockopt(fd, level, option, &value, sizeof value));
}

}  // namespace

void tune_tcp(int fd, Duration unanswered) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, keepalive_seconds);
  // By itself the kernel takes 75 s, for which a stream that a firewall forgot would seem to live.
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, keepalive_seconds);
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(unanswered.count() / 1'000'000));
}

bool all_confirmed(int fd) {
  int unconfirmed = 0;  // bytes that the kernel keeps to send them again (tcp(7))
  return ioctl(fd, SIOCOUTQ, &unconfirmed) != 0 || unconfirmed == 0;
}

}  // namespace nccl_ha
