// A simulated run's hosts, processes and connections, for the parts that it is made of.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/rig/runs/link.h"
#include "tests/rig/runs/scenario.h"
#include "tests/rig/runs/totals.h"
#include "tests/rig/runs/traffic.h"

namespace nccl_ha::rig {

class Stage {
 public:
  Stage(const Scenario& scenario, FailoverTotals& totals,
        std::function<void(const std::string&)> trace);
  ~Stage();

  const Scenario& scenario() const { return scenario_; }
  sim::World& world() { return world_; }
  Instant now() const { return world_.now(); }
  FailoverTotals& totals() { return totals_; }
  std::vector<sim::Process*>& processes() { return processes_; }
  std::vector<std::unique_ptr<SimLink>>& links() { return links_; }
  std::vector<std::unique_ptr<Traffic>>& traffic() { return traffic_; }
  /// Of the process with that number on a host: its interface on a line.
  sim::Ip address(size_t host, size_t number, size_t line) const;
  static sim::Ip management(size_t host);
  /// Rails, and behind them the spare interface.
  size_t lines() const { return scenario_.rails + (scenario_.spare ? 1 : 0); }

  void make_links();
  /// True when all links are ready, or have failed.
  bool step_connecting();
  /// make_traffic() was called.
  bool connected() const { return connected_; }
  void begin_device_faults();
  /// For the links that are ready.  `released`: which part of it may be under way by now; empty:
  /// all.
  void make_traffic(const std::function<double()>& released);
  /// What is on the way between two hosts, for all their processes.
  void set_line(size_t one, size_t other, size_t line, const sim::Link& there,
                const sim::Link& back);
  /// As it is while nothing is wrong.
  void mend_line(size_t one, size_t other, size_t line) {
    set_line(one, other, line, scenario_.usual_of(line), scenario_.usual_of(line));
  }
  void later(Duration in, std::function<void()> what) {
    world_.network().call_at(now() + in, std::move(what));
  }
  size_t host_of(size_t process) const { return process / scenario_.processes_per_host; }
  void tell(const std::string& what) const {
    if (trace_) {
      trace_(what);
    }
  }
  void count();

 private:
  void count_settings();
  void count_streams();

  const Scenario scenario_;
  FailoverTotals& totals_;
  const std::function<void(const std::string&)> trace_;
  sim::World world_;
  std::vector<sim::Process*> processes_;
  std::vector<std::unique_ptr<SimLink>> links_;
  std::vector<std::unique_ptr<Traffic>> traffic_;
  bool connected_ = false;
};

}  // namespace nccl_ha::rig
