// The way out of a relay to one neighbour, which all sessions that lead there share.
//
// Worker's thread; sessions keep it.
#pragma once

#include <vector>

#include "relay/fair_shares.h"
#include "runtime/engine/context.h"
#include "runtime/telemetry/counters.h"

namespace nccl_ha::relay {

class Forwarder;

class Egress {
 public:
  /// `counters`, the relay's, outlive it.
  Egress(Context& context, const FairShares::Limits& limits, RelayCounters& counters);
  ~Egress();
  Egress(const Egress&) = delete;
  Egress& operator=(const Egress&) = delete;

  /// The number by which it is known here until it leaves.
  uint32_t enter(Forwarder* forwarder);
  void leave(uint32_t member);
  /// It has something that its hop takes.
  void want(uint32_t member);
  void done(uint32_t member, uint64_t bytes);

  const FairShares& shares() const { return shares_; }
  RelayCounters& counters() { return counters_; }
  Recorder& recorder() { return context_.recorder(); }

 private:
  void serve();

  Context& context_;
  FairShares shares_;
  RelayCounters& counters_;
  std::vector<Forwarder*> forwarders_;  ///< by member
  Timer timer_;
};

}  // namespace nccl_ha::relay
