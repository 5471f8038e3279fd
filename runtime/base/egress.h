// By which interface packets leave this host, as the kernel answers (rtnetlink(7)), and how a
// socket makes them leave by that of their own address.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

#include "runtime/base/ip_address.h"

namespace nccl_ha {

struct Egress {
  enum class Kind : uint8_t {
    unknown,  ///< there is no route, the source is the host's own and no NIC's (on `lo`), or the
              ///< kernel refuses the question
    local,    ///< the destination is on this host
    own,      ///< by the interface that has the source address
    chosen,   ///< by that one if each packet names it (PacketInfo), else by another one
    other,    ///< by another one: the own one has no route as good as that
  };
  Kind kind = Kind::unknown;
  int own = 0;        ///< index of the interface that has the source address
  int interface = 0;  ///< index of the one that they leave by; of `chosen` it is the own one
};

/// How packets from an address of this host leave for another.  Of no effect on either; a few
/// microseconds for each question.  Any thread.
Egress find_egress(const IpAddress& from, const IpAddress& to);

/// Before connect(): what a TCP socket bound to `from` sends leaves by the interface that has that
/// address, if the choice matters (Egress::Kind::chosen) and the kernel allows it (Linux 5.7).
void choose_own_nic(int fd, const sockaddr* from, const sockaddr* to);

/// Control data of sendmsg(2) for an interface and a source.
struct PacketInfo {
  static constexpr size_t bytes_max = CMSG_SPACE(sizeof(in6_pktinfo));
  /// `at` is aligned for a cmsghdr.  A source of zeros is the kernel's choice.  Returns the bytes
  /// that it takes, at most bytes_max.
  static size_t write(void* at, int interface, const IpAddress& from);
  /// By which interface a packet came (IP_PKTINFO, IPV6_RECVPKTINFO); 0: this part is another.
  static int interface_in(const cmsghdr& part);
};

}  // namespace nccl_ha
