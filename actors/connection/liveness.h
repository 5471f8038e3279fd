// Whether the paths of a connection still live: heartbeats, silence, what others found out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "actors/connection/control_link.h"
#include "actors/connection/path_set.h"
#include "actors/connection/state.h"
#include "actors/nic_monitor.h"
#include "ha/heartbeat_pace.h"
#include "runtime/engine/timer_wheel.h"

namespace nccl_ha {

/// Gives heartbeats where nothing else does, and judges each path by what gets through
/// (ha/path_health.h).  One thread.
class Liveness final : private NicMonitor::Member {
 public:
  class Owner {
   public:
    /// A usable lane is given up, because it was silent, or its NIC or a cable further on has no
    /// link.
    virtual void on_lane_failed(size_t lane, const Error& why) = 0;
    virtual void on_domain_up(const fabric::FailureDomain& domain) = 0;
    virtual void on_interfaces_renewed() {}
    /// All lanes were looked at.
    virtual void on_looked() = 0;

   protected:
    ~Owner() = default;
  };

  Liveness(Owner& owner, ConnectionState& state, PathSet& paths, ControlLink& control);
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  /// From the connection's start on; where failover is on, links are watched for what is said.
  void watch_links();
  /// From now on, where failover is on.
  void start();
  /// What a message says was the matter, behind the NICs of this host that have no link; alone
  /// these, if they are all that the connection has and no cause is `known`.  `local`: an
  /// address that its stream was to come from; null: none besides the lanes'.
  std::string after_links(const std::string& what, bool known = false,
                          const sockaddr* local = nullptr) const;
  /// A lane came into use: its silence before counts no more.
  void begin(Lane& lane);
  /// Gives a heartbeat on every path that is in use.
  void probe_usable();
  /// Something was posted: from now on it is looked at more often whether it is answered.
  void watch_work() {
    if (watched_idle_) [[unlikely]] {
      watched_idle_ = false;
      arm();
    }
  }
  /// A host between the lane's two ends says that a cable of its own has no link.
  void on_link_down(size_t lane, const Error& why);
  /// When the connection is over.
  void stop();

 private:
  // NicMonitor::Member
  void on_domain_down(const fabric::FailureDomain& domain) override;
  void on_domain_up(const fabric::FailureDomain& domain) override;
  void on_suspicion(const fabric::FailureDomains& domains, const std::string& peer) override;
  void on_interfaces_renewed() override { owner_.on_interfaces_renewed(); }

  void arm();
  ha::HeartbeatPace pace() const;
  void on_timer();
  void check(size_t at, bool heartbeat_due);
  void give_up(size_t at, const Moment& now);
  uint64_t evidence_beside(const Lane& lane) const;
  bool is_suspicious(const Lane& lane, const fabric::FailureDomains& domains,
                     const std::string& peer) const;
  void probe_all();
  bool may_be_asked(const Lane& lane) const;
  void ask(Lane& lane);
  void send_heartbeat(Lane& lane);

  Owner& owner_;
  ConnectionState& state_;
  PathSet& paths_;
  ControlLink& control_;
  Timer timer_;
  uint64_t moment_ = 0;  ///< of the last look (HeartbeatPace)
  bool watched_idle_ = false;
  std::shared_ptr<NicMonitor> links_;  ///< null: not watched
  std::shared_ptr<NicMonitor> nics_;   ///< null: not started
};

}  // namespace nccl_ha
