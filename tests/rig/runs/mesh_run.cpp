#include "tests/rig/runs/mesh_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace nccl_ha::rig {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Late writes of old paths have come by then, and neighbours' silence has been noticed.
constexpr Duration mesh_aftermath = seconds(6);
/// Connections have come about by then, once nothing is wrong any more and the silent are known.
constexpr Duration mesh_connect_max = seconds(10);
/// All traffic takes less over the slowest cables, once nothing is wrong any more.
constexpr Duration mesh_idle_max = seconds(45);

const std::map<relay::NodeId, std::shared_ptr<relay::Egress>> no_egresses;

/// More than all that can be under way: less than nothing was counted.
constexpr uint64_t flight_absurd = uint64_t{1} << 40;

class MeshWatch {
 public:
  MeshWatch(MeshStage& stage, MeshFaults& faults) : stage_(stage), faults_(faults) {}

  std::string run() {
    bool ended = run_until([&] {
      if (stage_.scenario().early) {
        faults_.step();
      }
      look_at_connecting();
      return stage_.step_connecting();
    });
    if (ended) {
      stage_.make_traffic([this] { return faults_.happened(); });
      ended = run_until([&] {
        faults_.step();
        look_at_progress();
        return step_traffic() && faults_.over();
      });
    }
    std::string wrong = verdict(ended);
    if (wrong.empty()) {
      wrong = look_at_neighbours();
    }
    if (wrong.empty()) {
      wrong = look_at_the_end();
    }
    return wrong;
  }
  void count(MeshTotals& totals) {
    totals.hosts += stage_.scenario().hosts;
    totals.hosts_most = std::max<uint64_t>(totals.hosts_most, stage_.scenario().hosts);
    totals.connections += stage_.scenario().links.size();
    totals.faults += faults_.counts();
    const MeshStage::Seen seen = stage_.seen();
    totals.seen.sessions += seen.sessions;
    totals.seen.refused += seen.refused;
    totals.seen.bytes += seen.bytes;
    totals.seen.held_back += seen.held_back;
    totals.seen.stalls += seen.stalls;
    totals.loaded += stage_.scenario().loaded ? 1 : 0;
    totals.with_key += stage_.scenario().cluster_key ? 1 : 0;
    totals.fewer_slots += fewer_slots_;
    totals.shared_turns += shared_turns_;
    totals.seen.ways_refused += seen.ways_refused;
    totals.seen.over_relays += seen.over_relays;
    totals.seen.both_ways += seen.both_ways;
    for (const auto& link : stage_.links()) {
      if (link) {
        totals.failovers.count(link->sender());
        if (link->accepted()) {
          totals.failovers.count(link->receiver());
        }
      }
    }
    for (const auto& traffic : stage_.traffic()) {
      totals.failovers.groups += traffic ? traffic->groups_done() : 0;
    }
  }

 private:
  template <class Done>
  bool run_until(Done&& done) {
    return stage_.world().run_until(
        [&] {
          look_at_sessions();
          return !wrong_.empty() || done();
        },
        stage_.scenario().limit);
  }

  bool step_traffic() {
    bool all = true;
    for (auto& traffic : stage_.traffic()) {
      all = (!traffic || traffic->step()) && all;
      if (traffic && traffic->is_wrong()) {
        return true;
      }
    }
    return all;
  }

  void look_at_progress() {
    if (faults_.over()) {
      expect_soon(mesh_idle_max, "connections do not get on, though everything has come back");
    }
  }

  /// Where faults begin later, what is late is all that may be missing.
  void look_at_connecting() {
    if (stage_.scenario().early ? faults_.over() : faults_.all_there()) {
      expect_soon(milliseconds(stage_.scenario().config.mesh_dead_ms) + mesh_connect_max,
                  "connections do not come about, though everything is there");
    }
  }

  /// From the first call with that in mind.
  void expect_soon(Duration within, const char* what) {
    if (what != expected_) {
      expected_ = what;
      expected_since_ = stage_.now();
    }
    if (stage_.now() - expected_since_ > within && wrong_.empty()) {
      wrong_ = what;
    }
  }

  void look_at_sessions() {
    if (stage_.now() < look_due_) {
      return;
    }
    look_due_ = stage_.now() + milliseconds(20);
    const auto hops_max = static_cast<size_t>(stage_.scenario().config.mesh_max_hops);
    std::map<uint64_t, size_t> hosts_of;
    for (size_t host = 0; host < stage_.scenario().hosts; ++host) {
      const relay::RelayNode* node = stage_.node(host);
      std::set<uint64_t> numbers;
      look_at_limits(host);
      for (size_t i = 0; node != nullptr && i < node->sessions().size(); ++i) {
        fewer_slots_ += node->sessions()[i]->share().slots <
                                static_cast<uint16_t>(stage_.scenario().config.mesh_slots)
                            ? 1
                            : 0;
        const uint64_t number = node->sessions()[i]->number();
        if (!numbers.insert(number).second) {
          wrong_ = fmt::format("a session goes through host {} twice", host);
        } else if (++hosts_of[number] > hops_max) {
          wrong_ = fmt::format("a session goes through more than {} hosts", hops_max);
        }
      }
    }
  }

  void look_at_limits(size_t host) {
    const relay::RelayNode* node = stage_.node(host);
    for (const auto& [neighbour, egress] : node != nullptr ? node->egresses() : no_egresses) {
      const relay::FairShares& shares = egress->shares();
      shared_turns_ += shares.waiting() > 1 ? 1 : 0;
      if (shares.in_flight() > flight_absurd) {
        wrong_ = fmt::format("host {} counts {} bytes under way to a neighbour", host,
                             shares.in_flight());
      }
    }
  }

  std::string look_at_link(size_t number) const {
    const auto& link = stage_.links()[number];
    if (!link) {
      return "no way was found";
    }
    if (!stage_.traffic()[number]) {
      return "connect: " + link->error();
    }
    return stage_.traffic()[number]->outcome();
  }

  std::string verdict(bool ended) const {
    if (!stage_.world().livelock().empty()) {
      return stage_.world().livelock();
    }
    if (!wrong_.empty()) {
      stage_.tell_views();
      return wrong_;
    }
    for (size_t i = 0; i < stage_.links().size(); ++i) {
      if (const std::string wrong = look_at_link(i); !wrong.empty()) {
        return fmt::format("connection {}: {}", i, wrong);
      }
    }
    return ended ? "" : "the run has no end";
  }

  /// Of hosts that take part: two hellos, of which some may be lost.
  std::string look_at_neighbours() {
    const Duration within = 2 * milliseconds(stage_.scenario().config.mesh_dead_ms) + seconds(1);
    if (stage_.world().run_until([&] { return stage_.neighbours_know(); }, within)) {
      return "";
    }
    stage_.tell_views();
    return "hosts do not know their neighbours, though their cables work";
  }

  /// Late bytes come, if there are any; then the connections end, and with them all sessions.
  std::string look_at_the_end() {
    static_cast<void>(stage_.world().run_until([] { return false; }, milliseconds(50)));
    for (size_t i = 0; i < stage_.links().size(); ++i) {
      if (const std::string wrong = look_at_link(i); !wrong.empty()) {
        return fmt::format("connection {}, afterwards: {}", i, wrong);
      }
    }
    return "";
  }

 public:
  /// When nothing is to be counted any more.
  std::string look_at_what_is_left() {
    stage_.end_links();
    static_cast<void>(
        stage_.world().run_until([&] { return sessions_left().empty(); }, mesh_aftermath));
    return sessions_left();
  }

 private:
  std::string sessions_left() const {
    for (size_t host = 0; host < stage_.scenario().hosts; ++host) {
      const relay::RelayNode* node = stage_.node(host);
      if (node != nullptr && (!node->sessions().empty() || node->pool().used() != 0)) {
        return fmt::format(
            "host {} has {} sessions and {} bytes for them in use, and no "
            "connection is left",
            host, node->sessions().size(), node->pool().used());
      }
      for (const auto& [neighbour, egress] : node != nullptr ? node->egresses() : no_egresses) {
        if (egress->shares().in_flight() != 0 || egress->shares().waiting() != 0) {
          return fmt::format(
              "host {} counts {} bytes under way to a neighbour, and no session is left", host,
              egress->shares().in_flight());
        }
      }
    }
    return "";
  }

  MeshStage& stage_;
  MeshFaults& faults_;
  Instant look_due_{};
  uint64_t fewer_slots_ = 0;
  uint64_t shared_turns_ = 0;
  const char* expected_ = nullptr;  ///< what is wrong if it lasts
  Instant expected_since_{};
  std::string wrong_;
};

}  // namespace

std::string run_mesh(const MeshRun& run, MeshTotals* totals) {
  MeshStage stage(draw_mesh(run.seed), run.trace);
  if (run.begins) {
    run.begins(stage.world());
  }
  stage.tell(describe(stage.scenario()));
  MeshFaults faults(stage);
  MeshWatch watch(stage, faults);
  std::string outcome = watch.run();
  watch.count(*totals);
  totals->failovers.count(stage.world(), 0);
  if (outcome.empty()) {
    outcome = watch.look_at_what_is_left();
  }
  totals->trace = stage.world().network().trace();
  return outcome;
}

}  // namespace nccl_ha::rig
