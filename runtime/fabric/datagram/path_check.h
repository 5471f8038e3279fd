// The connectivity check of a path (usnic's), which doubles as MTU discovery after RFC 8899.
//
// A small and a full-size datagram are sent until both come back: which of them do tells a firewall
// or a missing route from a hop with a smaller MTU.  Sizes are tried from the largest down; once
// one gets through the larger ones are tried again, since many paths that begin at once may overrun
// the buffers of their hosts for a while.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/run_limit.h"
#include "runtime/fabric/datagram/wire.h"

namespace nccl_ha::fabric {

class PathCheck {
 public:
  /// `mtu_max`: of the interfaces at both ends.
  void begin(uint32_t mtu_max, const SocketAddress& to, const Moment& now, Duration limit);

  /// What to send now, unless it is through().
  struct Round {
    uint32_t attempt = 0;     ///< number of this round
    bool small = false;       ///< a ping that is a header only
    uint32_t full_bytes = 0;  ///< another one, a datagram of this size; 0: none
    uint32_t candidate = 0;   ///< the number of its size
    Duration wait{};          ///< until the next round
  };
  Round next_round();
  bool through() const { return small_answered_ && full_answered_; }
  /// True: it is through.  Once anything gets through, the search for the size has its time.
  bool on_pong(const FrameHeader& header, const Moment& now);
  bool expired(const Moment& now) const { return limit_.left(now) == Duration(0); }

  /// The size that got through, or is being tried: bytes of an IP packet, and of its payload.
  uint32_t mtu() const { return candidates_[candidate_].mtu; }
  uint32_t datagram_bytes() const { return candidates_[candidate_].datagram; }
  uint32_t mtu_max() const { return candidates_.front().mtu; }
  /// Why it fails, for users.
  const char* diagnosis() const;

  /// The peer knows this end before this end knows the peer: its pings are kept, the last of each
  /// size, and answered once that changes.
  void keep(const FrameHeader& ping) { early_pings_[ping.payload_length == 0 ? 0 : 1] = ping; }
  template <class Answer>
  void answer_kept(Answer&& answer) {
    for (auto& early : early_pings_) {
      if (early) {
        answer(*early);
        early.reset();
      }
    }
  }

 private:
  struct Candidate {
    uint32_t mtu;
    uint32_t datagram;
  };
  std::vector<Candidate> candidates_;  // the largest first
  uint32_t candidate_ = 0;
  uint32_t candidate_tries_ = 0;
  std::optional<uint32_t> settled_;  ///< got through after larger ones did not
  uint32_t attempt_ = 0;
  bool answered_ = false;  ///< by any pong
  bool small_answered_ = false;
  bool full_answered_ = false;
  RunLimit limit_;
  std::array<std::optional<FrameHeader>, 2> early_pings_;
};

}  // namespace nccl_ha::fabric
