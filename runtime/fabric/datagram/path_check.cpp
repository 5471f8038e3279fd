#include "runtime/fabric/datagram/path_check.h"

#include <netinet/in.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace nccl_ha::fabric {
namespace {

constexpr Duration check_first = std::chrono::milliseconds(5);
constexpr Duration check_longest = std::chrono::milliseconds(100);
/// All sizes with all their tries, where each but the smallest gets lost.
constexpr Duration search_longest = std::chrono::milliseconds(1500);
constexpr uint32_t candidate_tries_max = 4;
constexpr uint32_t second_tries_max = 3;
constexpr uint32_t udp_payload_max = 65507;
// Common sizes between the interface's own and the smallest that IPv6 guarantees (RFC 8200).
constexpr std::array<uint32_t, 5> mtu_ladder{9000, 4200, 1500, 1400, 1280};

/// What a datagram holds of an MTU, which counts the IP header of a UDP datagram.
uint32_t datagram_payload(uint32_t mtu, const SocketAddress& to) {
  if (to.is_ud()) {
    return mtu;
  }
  const uint32_t ip = to.storage.ss_family == AF_INET6 ? 40 : 20;
  return std::min(mtu - ip - 8, udp_payload_max);
}

}  // namespace

void PathCheck::begin(uint32_t mtu_max, const SocketAddress& to, const Moment& now,
                      Duration limit) {
  NHA_ASSERT(candidates_.empty(), "a path is checked once");
  limit_.begin(now, limit);
  candidates_.push_back({mtu_max, datagram_payload(mtu_max, to)});
  for (const uint32_t mtu : mtu_ladder) {
    if (mtu < mtu_max) {
      candidates_.push_back({mtu, datagram_payload(mtu, to)});
    }
  }
}

PathCheck::Round PathCheck::next_round() {
  if (!full_answered_ && candidate_tries_ == (settled_ ? second_tries_max : candidate_tries_max) &&
      candidate_ + 1 < candidates_.size()) {
    ++candidate_;
    candidate_tries_ = 0;
    full_answered_ = settled_ == candidate_;
  }
  Round round;
  round.attempt = attempt_;
  round.small = !small_answered_;
  if (!full_answered_) {
    // Where nothing gets through, as during an outage, size is not to blame.
    candidate_tries_ += small_answered_ ? 1 : 0;
    round.full_bytes = datagram_bytes();
    round.candidate = candidate_;
  }
  const uint32_t tries = small_answered_ ? candidate_tries_ : attempt_;
  round.wait = std::min(check_longest, check_first * (1U << std::min(tries, 6U)));
  ++attempt_;
  return round;
}

bool PathCheck::on_pong(const FrameHeader& header, const Moment& now) {
  if (!std::exchange(answered_, true)) {
    limit_.allow(now, search_longest);
  }
  if (header.fragment_length == header_bytes) {
    small_answered_ = true;
  } else if (!full_answered_ && header.immediate < candidates_.size() &&
             header.fragment_length == candidates_[header.immediate].datagram) {
    if (header.immediate == 0 || (settled_ && header.immediate < *settled_)) {
      full_answered_ = true;
      candidate_ = header.immediate;
    } else if (!settled_) {
      settled_ = header.immediate;
      candidate_ = 0;
      candidate_tries_ = 0;
    }
  }
  return through();
}

const char* PathCheck::diagnosis() const {
  return small_answered_
             ? "small datagrams get through, full-size ones do not, whatever their size: check the "
               "MTU of interfaces and switches, and that fragments are not filtered"
         : full_answered_
             ? "large datagrams get through, small ones do not: check packet filters on the peer's "
               "command port"
             : "no datagram gets through, although the TCP control connection works: check that "
               "UDP is not filtered between the hosts and that the route back leads over the same "
               "network";
}

}  // namespace nccl_ha::fabric
