// What both sides do alike when a lane goes out of use and when it comes back.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/connection/control_link.h"
#include "actors/connection/failover_log.h"
#include "actors/connection/liveness.h"
#include "actors/connection/path_set.h"
#include "actors/connection/state.h"
#include "ha/retry_budget.h"
#include "runtime/base/run_limit.h"
#include "runtime/engine/timer_wheel.h"

namespace nccl_ha {

/// Takes lanes down and into use, limits how long a connection may be without a path, and counts
/// and tells of outages.  When that is to happen is what the recovery of each side says.  One
/// thread.
class Failover {
 public:
  Failover(ConnectionState& state, PathSet& paths, ControlLink& control, Liveness& liveness);
  ~Failover() { stop(); }
  Failover(const Failover&) = delete;
  Failover& operator=(const Failover&) = delete;
  void begin(const Config& config);
  void stop();

  /// Closes this side of a lane for good; on_work_back() follows when all work has come back.
  /// `tried`: for all that is known the peer never had it in use, and it is no outage if it is the
  /// lane's first.
  void take_down(size_t lane, const Error& why, bool tried = false);
  /// A lane that carried nothing yet is out of use: its outage begins.
  void count_down(size_t lane);
  /// The lane's path has said that it carries traffic.
  void take_into_use(size_t lane);
  void log_back(size_t lane);
  /// All work has come back from a lane that is out of use, and its path takes none.
  bool drained(size_t lane) const;

  /// Memory cannot be registered with a shadow's device: the lane fails, after the caller's turn,
  /// by the actor's own message.
  const Error& reject(size_t lane, const Error& why);
  /// The same where its device does not refuse it, but takes long with something: it may hang, and
  /// its path fails.  False: it refuses.
  bool fail_busy(size_t lane, const Error& why);
  const Error& rejection() const { return rejection_; }  ///< the last one
  void count_rejected();
  /// A shadow could not be made on this host: said once where somebody can do something about it.
  void tell_shortage(const Error& why);
  /// What the peer is told of a lane that failed.
  PathNotice notice_of(size_t lane, const Error& why) const;

  /// Warns of a lane, together with others of its NIC and peer; lanes_max: of no NIC.
  void log(FailoverLog::Kind kind, size_t lane, const std::function<std::string()>& text,
           const FailoverLog::Counts& counts = {}) const;

  /// Starts or ends the time that the connection may be without a path.
  void watch_budget(bool in_need);
  ha::RetryBudget& budget() { return budget_; }
  /// Why the last path failed; empty: none did.
  const std::string& need() const { return need_; }
  void set_need(const Error& why);
  /// The connection goes on without that path, and waits for what it held as long as for a path.
  void tell_stuck(const Error& why);
  /// False, and the connection has failed: what the peer says of a path is malformed, or about one
  /// that is not there.
  template <class Said>
  bool is_of_ours(const std::optional<Said>& said) {
    if (!said) {
      state_.fail(fail(Errc::remote, "malformed message about a path on the control stream"));
      return false;
    }
    return knows(said->path);
  }

 private:
  bool knows(size_t lane);
  void on_budget_spent();

  ConnectionState& state_;
  PathSet& paths_;
  ControlLink& control_;
  Liveness& liveness_;
  ha::RetryBudget budget_;
  Timer budget_timer_;
  RunLimit budget_limit_;  ///< until that of the budget ends
  std::string need_;
  Error rejection_;
  bool shortage_told_ = false;
  std::shared_ptr<FailoverLog> log_;
  std::array<Instant, lanes_max> down_since_{};
};

}  // namespace nccl_ha
