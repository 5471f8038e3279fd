// One run of the mixture: its parts put together.
#include <algorithm>
#include <vector>

#include "tests/rig/runs/aftermath.h"
#include "tests/rig/runs/closing.h"
#include "tests/rig/runs/failover_run.h"
#include "tests/rig/runs/oracle.h"

namespace nccl_ha::rig {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Late writes of old paths have come by then.
constexpr Duration aftermath = milliseconds(20);
/// The time of a connect that is under way, and that of what then closes.
constexpr Duration closing_limit = seconds(60);

/// In some runs one host does not share.
void let_share(Scenario& scenario) {
  const std::vector<Scenario::Ends> links = scenario.links;
  for (size_t more = 0; more < 2 && scenario.kind != RunKind::volume; ++more) {
    scenario.links.insert(scenario.links.end(), links.begin(), links.end());
  }
  for (size_t host = 0; host < scenario.configs.size(); ++host) {
    scenario.configs[host].peer_sessions = scenario.seed % 5 != 0 || host != 0;
  }
}

class ScenarioRun {
 public:
  ScenarioRun(Stage& stage)
      : stage_(stage),
        paths_(stage),
        streams_(stage),
        pauses_(stage),
        death_(stage),
        aftermath_(stage, paths_, streams_, death_),
        closing_(stage),
        oracle_(stage, paths_, pauses_, death_) {}

  std::string run() {
    stage_.make_links();
    closing_.make_links();
    const bool early = stage_.scenario().early_faults;
    bool ended = run_until([&] {
      if (early) {
        step_faults();
      }
      closing_.step();
      return stage_.step_connecting();
    });
    if (ended) {
      if (stage_.scenario().device_faults) {
        stage_.begin_device_faults();
      }
      stage_.make_traffic([this] { return released(); });
      ended = run_until([&] {
        step_faults();
        closing_.step();
        return step_traffic() && oracle_.death_is_over();
      });
      static_cast<void>(stage_.world().run_until([] { return false; }, aftermath));
    }
    std::string wrong = oracle_.verdict(ended);
    if (wrong.empty()) {
      wrong = aftermath_.wait_for_paths();
    }
    stage_.count();
    if (wrong.empty()) {
      wrong = stage_.scenario().kind == RunKind::closes ? close_all() : aftermath_.end();
    }
    return wrong;
  }

 private:
  std::string close_all() {
    static_cast<void>(
        stage_.world().run_until([this] { return closing_.step_closing(); }, closing_limit));
    std::string left = closing_.left_over();
    if (left.empty()) {
      left = aftermath_.end();
    }
    return left.empty() ? closing_.end_processes() : left;
  }
  template <class Done>
  bool run_until(Done&& done) {
    return stage_.world().run_until([&] { return !oracle_.step() || done(); },
                                    stage_.scenario().limit);
  }
  void step_faults() {
    paths_.step();
    streams_.step();
    pauses_.step();
    death_.step();
  }
  /// Each fault meets some traffic, and some comes after the last.
  double released() const {
    const size_t times = paths_.times() + streams_.times() + pauses_.times() + death_.times();
    const size_t happened =
        paths_.happened() + streams_.happened() + pauses_.happened() + death_.happened();
    return static_cast<double>(happened + 1) / static_cast<double>(times + 1);
  }
  bool step_traffic() {
    bool all = true;
    for (auto& traffic : stage_.traffic()) {
      all = (!traffic || traffic->step()) && all;
    }
    const bool wrong = std::any_of(stage_.traffic().begin(), stage_.traffic().end(),
                                   [](const auto& one) { return one && one->is_wrong(); });
    return all || wrong;
  }

  Stage& stage_;
  PathFaults paths_;
  StreamFaults streams_;
  Pauses pauses_;
  Death death_;
  Aftermath aftermath_;
  Closing closing_;
  Oracle oracle_;
};

}  // namespace

std::string run_scenario(const FailoverRun& run, FailoverTotals* totals) {
  Scenario scenario = draw_scenario({run.seed, run.kind, run.fabric, run.suspicions, run.together});
  scenario.callers_help = run.callers_help;
  if (run.sessions) {
    let_share(scenario);
  }
  Stage stage(scenario, *totals, run.trace);
  if (run.begins) {
    run.begins(stage.world());
  }
  stage.tell(describe(stage.scenario()));
  return ScenarioRun(stage).run();
}

}  // namespace nccl_ha::rig
