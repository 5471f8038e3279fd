// How a path becomes ready: the device makes its queue pair, the peer's address is resolved, the
// device connects the two, and a small and a full-size probe go each way.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/fabric/verbs/port_services.h"
#include "runtime/fabric/verbs/resolver.h"

namespace nccl_ha::fabric::verbs {

class Handshake {
 public:
  explicit Handshake(const PortServices& services) : services_(services) {}
  ~Handshake() { end(); }
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  /// `on_timer`: while resolving() the answer is to be looked for, else the deadline has passed.
  void bind(void (*on_timer)(void* owner), void* owner) { timer_.bind(on_timer, owner); }
  void begin(Duration limit) {
    limit_ = limit;
    deadline_ = services_.clock->now() + limit;
  }
  Duration limit() const { return limit_; }
  /// Nothing more is waited for.
  void end() { services_.timers->cancel(timer_); }

  // --- the peer's address
  void resolve(std::shared_ptr<const Resolution> resolution) {
    resolution_ = std::move(resolution);
  }
  bool resolving() const { return resolution_ != nullptr; }
  /// While resolving(): 0, an errno value, or Resolution::open, and then it is asked for later.
  int check_resolution();

  /// What the device or the peer is to do may take until the deadline.
  void await() { services_.timers->arm(timer_, deadline_); }

  // --- probes
  /// False: this side's own were posted before.
  bool begin_probes() { return !std::exchange(probes_posted_, true); }
  void on_probe_acknowledged() { acknowledged_ = std::min(acknowledged_ + 1, probes); }
  void on_probe_received() {
    NHA_DASSERT(received_ < probes, "two receives are for probes");
    ++received_;
  }
  /// The peer sends data, so it has everything of ours: acknowledgements are on their way.
  void on_data_received() { acknowledged_ = probes; }
  bool peer_has_probed() const { return received_ == probes; }
  bool complete() const { return received_ == probes && acknowledged_ == probes; }

 private:
  static constexpr unsigned probes = 2;  ///< each way

  const PortServices& services_;
  std::shared_ptr<const Resolution> resolution_;
  Duration limit_{};
  Instant deadline_{};
  Timer timer_;
  bool probes_posted_ = false;
  unsigned acknowledged_ = 0;
  unsigned received_ = 0;
};

}  // namespace nccl_ha::fabric::verbs
