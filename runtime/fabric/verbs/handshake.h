// How a path becomes ready: the device makes its queue pair, the peer's address is resolved, the
// device connects the two, and a small and a full-size probe go each way.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/run_limit.h"
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
  void begin(Duration limit) { limit_.begin(services_.moment(), limit); }
  Duration limit() const { return limit_.limit(); }
  /// Nothing more is waited for.
  void end() { services_.timers->cancel(timer_); }

  // --- the peer's address
  void resolve(std::shared_ptr<const Resolution> resolution) {
    resolution_ = std::move(resolution);
  }
  bool resolving() const { return resolution_ != nullptr; }
  /// While resolving(): 0, an errno value, or Resolution::open, and then it is asked for later.
  int check_resolution();

  /// What the device or the peer is to do may take until the deadline; `look`: the timer comes
  /// earlier, if that is less.
  void await(Duration look = Duration::max()) {
    const Moment now = services_.moment();
    services_.timers->arm(timer_, now.now + std::min(limit_.left(now), look));
  }
  /// The timer has come.  False: so has the deadline, and this process did not stand still.
  bool await_on(Duration look = Duration::max()) {
    const Moment now = services_.moment();
    const Duration left = limit_.left(now, timer_.deadline());
    if (left > Duration(0)) {
      services_.timers->arm(timer_, now.now + std::min(left, look));
    }
    return left > Duration(0);
  }

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
  RunLimit limit_;
  Timer timer_;
  bool probes_posted_ = false;
  unsigned acknowledged_ = 0;
  unsigned received_ = 0;
};

}  // namespace nccl_ha::fabric::verbs
