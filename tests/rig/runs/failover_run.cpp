#include "tests/rig/runs/failover_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tests/rig/runs/random_hints.h"

namespace nccl_ha::rig {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Does something to a pair now and then, as its seed says.
class Chaos {
 public:
  Chaos(SimPair& pair, const FailoverRun& run, size_t paths, const sim::Link& usual,
        FailoverTotals& totals)
      : pair_(pair),
        run_(run),
        random_(run.seed),
        paths_(paths),
        usual_(usual),
        totals_(totals),
        lines_(run.rails + (run.spare ? 1 : 0)),
        healed_at_(lines_),
        port_up_at_(lines_) {}

  /// A cable fails for a while as the connection is made; before begin().
  void meet_handshake() {
    early_cut_ = pair_.world().now() + microseconds(random_.below(400));
    pair_.world().network().stop_at(*early_cut_);
  }
  /// As it is while nothing is wrong; the rails of one device have speeds of their own.
  sim::Link usual(size_t rail) const {
    static constexpr std::array<uint64_t, 4> rates{50'000'000, 20'000'000, 100'000'000, 5'000'000};
    sim::Link link = usual_;
    link.rate = run_.one_device ? rates[rail % rates.size()] : 0;
    return link;
  }
  void begin() {
    begun_ = true;
    next_ = pair_.world().now() + microseconds(random_.below(500));
    pair_.world().network().stop_at(next_);
  }

  /// Of `groups`, how many may be under way: each fault meets some, and some come after the last.
  uint64_t released(uint64_t groups) const {
    const auto happened = static_cast<uint64_t>(faults_max - left_);
    return std::max<uint64_t>(1, groups * (happened + 1) / (faults_max + 1));
  }

  void step() {
    const Instant now = pair_.world().now();
    for (size_t rail = 0; rail < lines_; ++rail) {
      if (healed_at_[rail] && now >= *healed_at_[rail]) {
        pair_.set_links(usual(rail), usual(rail), rail);
        healed_at_[rail].reset();
        tell(fmt::format("rail {} healed", rail));
      }
      if (port_up_at_[rail] && now >= *port_up_at_[rail]) {
        pair_.sender().nics[rail]->set_port(true);
        pair_.receiver().nics[rail]->set_port(true);
        port_up_at_[rail].reset();
        tell(fmt::format("ports of rail {} up", rail));
      }
    }
    if (early_cut_ && now >= *early_cut_) {
      early_cut_.reset();
      ++totals_.handshakes_cut;
      cut_for_a_while(now, random_.below(lines_));
    }
    if (!begun_ || now < next_ || left_ == 0) {
      return;
    }
    --left_;
    next_ = now + microseconds(random_.below(random_.chance(0.5) ? 500 : 20000));
    if (lines_ > 1 && random_.chance(0.3)) {
      next_ = now + milliseconds(random_.below(2000));  // long enough to move, and to fail back
    }
    pair_.world().network().stop_at(next_);
    if (random_.chance(run_.suspicions)) {
      suspect();
    } else if (run_.rdma && random_.chance(0.35)) {
      hurt_nic(now);
    } else if (random_.chance(0.2)) {
      slow(now);
    } else {
      cut(now);
    }
  }

 private:
  void suspect() {
    const bool sender = random_.chance(0.5);
    Driver& side = sender ? pair_.send_driver() : pair_.receive_driver();
    const auto path = static_cast<uint32_t>(random_.below(paths_));
    if (side.suspect(path)) {
      ++(sender ? totals_.false_verdicts_sender : totals_.false_verdicts_receiver);
      tell(
          fmt::format("the {} is told that path {} is dead", sender ? "sender" : "receiver", path));
    }
  }
  sim::RdmaNic& nic(bool sender, size_t rail) {
    return *(sender ? pair_.sender() : pair_.receiver()).nics[rail];
  }
  void hurt_nic(Instant now) {
    const size_t rail = random_.below(run_.rails);
    const bool sender = random_.chance(0.5);
    const char* whose = sender ? "sender" : "receiver";
    switch (random_.below(lines_ > 1 && !gone_ ? 5 : 4)) {
      case 0:
      case 1:
        nic(sender, rail).move_gid();
        ++totals_.gids_moved;
        tell(fmt::format("the {}'s address on rail {} has another GID index", whose, rail));
        return;
      case 2:
      case 3: {
        nic(sender, rail).set_port(false);
        ++totals_.ports_down;
        const auto lasts = milliseconds(random_.below(2000));
        port_up_at_[rail] = now + lasts;
        pair_.world().network().stop_at(now + lasts);
        tell(fmt::format("the {}'s port of rail {} down for {} ms", whose, rail, lasts.count()));
        return;
      }
      default: {
        // Late writes into a sender's memory end with its fence, into a receiver's by assumption.
        Random death(run_.seed * 1000003 + 7);
        const bool hangs = death.chance(0.5);
        const auto writes_for = milliseconds(death.below(sender ? 5000 : 400));
        const auto gone_after = milliseconds(death.below(30000));
        if (hangs) {
          nic(sender, rail)
              .fail_for_good({.writes_for = writes_for, .hangs = true, .gone_after = gone_after});
        } else {
          nic(sender, rail).fail_for_good();
        }
        gone_ = rail;
        ++totals_.devices_lost;
        totals_.devices_hung += hangs ? 1 : 0;
        tell(fmt::format("the {}'s device of rail {} {}", whose, rail,
                         hangs ? "hangs" : "failed for good"));
      }
    }
  }
  void slow(Instant now) {
    const size_t rail = random_.below(lines_);
    if (gone_ == rail || healed_at_[rail]) {
      return;
    }
    sim::Link heavy = usual(rail);
    heavy.delay = microseconds(1000 + random_.below(49000));
    pair_.set_links(heavy, heavy, rail);
    ++totals_.slow;
    const auto lasts = milliseconds(random_.below(1000));
    healed_at_[rail] = now + lasts;
    pair_.world().network().stop_at(now + lasts);
    tell(fmt::format("rail {} takes {} us for {} ms", rail, heavy.delay.count() / 1000,
                     lasts.count()));
  }
  void cut(Instant now) {
    const size_t rail = random_.below(lines_);
    sim::Link dark = usual(rail);
    dark.cut = true;
    if (gone_ == rail) {
      return;
    }
    if (lines_ > 1 && !gone_ && random_.chance(0.2)) {
      gone_ = rail;
      healed_at_[rail].reset();
      pair_.set_links(dark, dark, rail);
      ++totals_.cuts_for_good;
      tell(fmt::format("rail {} cut for good", rail));
      return;
    }
    cut_for_a_while(now, rail);
  }
  void cut_for_a_while(Instant now, size_t rail) {
    const sim::Link light = usual(rail);
    sim::Link dark = light;
    dark.cut = true;
    const uint64_t which = random_.below(3);
    pair_.set_links(which == 1 ? light : dark, which == 2 ? light : dark, rail);
    ++(which == 0 ? totals_.cuts_both : which == 1 ? totals_.cuts_back : totals_.cuts_there);
    const auto lasts = milliseconds(random_.below(3000));
    healed_at_[rail] = now + lasts;
    pair_.world().network().stop_at(now + lasts);
    tell(fmt::format("rail {} cut for {} ms: {}", rail, lasts.count(),
                     which == 0   ? "both directions"
                     : which == 1 ? "receiver to sender"
                                  : "sender to receiver"));
  }
  void tell(const std::string& what) {
    if (run_.trace) {
      run_.trace(what);
    }
  }

  SimPair& pair_;
  const FailoverRun& run_;
  Random random_;
  size_t paths_;
  sim::Link usual_;
  FailoverTotals& totals_;
  const size_t lines_;  ///< rails, and behind them the spare interface
  static constexpr int faults_max = 10;
  int left_ = faults_max;
  bool begun_ = false;
  std::optional<Instant> early_cut_;
  Instant next_{};
  std::vector<std::optional<Instant>> healed_at_;  ///< of each rail
  std::vector<std::optional<Instant>> port_up_at_;
  std::optional<size_t> gone_;  ///< a rail, for good
};

/// How many lanes its connections have at most.
size_t draw_device(const FailoverRun& run, Config& config, SimCables& cables) {
  Random random(run.seed + 77);  // what else is drawn stays what it was
  cables.one_device = true;
  cables.sout_and_sup = run.rails == 2 && random.chance(0.6);
  config.mpib_mode = random.chance(0.5) ? 1 : 0;
  config.mpib_island_prefix_len = random.chance(0.2) ? 32 : 24;
  config.mpib_sout_qp = static_cast<int64_t>(1 + random.below(2));
  config.mpib_sup_qp = static_cast<int64_t>(1 + random.below(4));
  config.mpib_direct_bytes = random.chance(0.5) ? 0 : 65536;
  config.enable_failback = random.chance(0.5);
  config.failback_ms = static_cast<int64_t>(random.below(500));
  if (random.chance(0.5)) {
    cables.hints = std::make_shared<RandomHints>(run.seed);
  }
  config.straggler_ms = 20;
  config.fence_stragglers = random.chance(0.5);
  return 2 + 4 + run.shadows;  // a verdict on one that there is not means nothing
}

void add(FailoverTotals& totals, const FailoverRun& run, SimPair& pair) {
  totals.count(pair.send_channel());
  totals.count(pair.receive_channel());
  totals.count(pair.world(), run.rdma && !run.spare ? pair.bytes_wanted() : 0);
  totals.places_found += pair.places_found();
}

}  // namespace

Config failover_config(int64_t paths) {
  Config config;
  config.dgram_dead_ms = 200;
  config.dgram_paths = paths;
  config.ib_qps = paths;
  config.ib_split_threshold = 4096;
  return config;
}

FailoverRun mixed_run(uint64_t seed) {
  static constexpr std::array turns{
      RunKind::classic, RunKind::paths,  RunKind::streams, RunKind::pauses,
      RunKind::deaths,  RunKind::paths,  RunKind::devices, RunKind::closes,
      RunKind::crowd,   RunKind::volume, RunKind::streams, RunKind::paths,
      RunKind::pauses,  RunKind::deaths, RunKind::devices, RunKind::closes};
  FailoverRun run = classic_run(seed);
  run.kind = turns[seed / 4 % turns.size()];
  return run;
}

FailoverRun classic_run(uint64_t seed) {
  FailoverRun run;
  run.seed = seed;
  run.rdma = seed % 2 == 1;
  run.spare = seed % 4 == 3;
  run.rails = run.spare && seed % 8 == 3 ? 1 : 2;
  return run;
}

std::string run_failovers(const FailoverRun& run, FailoverTotals* totals) {
  if (run.kind != RunKind::classic) {
    return run_scenario(run, totals);
  }
  Random random(run.seed);
  const auto paths = static_cast<int64_t>(1 + random.below(4));
  sim::Link usual;
  usual.drop = random.chance(0.5) ? 0.02 : 0;
  usual.duplicate = random.chance(0.5) ? 0.02 : 0;
  usual.reorder = random.chance(0.5) ? 0.05 : 0;
  Config config = failover_config(paths);
  const bool backed = run.rails > 1 || run.spare;
  if (backed) {
    config.heartbeat_ms = static_cast<int64_t>(10 + random.below(200));
    config.enable_failback = random.chance(0.5);
    config.failback_ms = static_cast<int64_t>(random.below(500));
    config.shadow_paths = static_cast<int64_t>(run.shadows);
  }
  SimCables cables{run.rails, run.rdma, run.spare};
  cables.traits.old_kernel = run.seed % 4 == 1;
  size_t lanes = static_cast<size_t>(paths) + (backed ? run.shadows : 0);
  if (run.one_device) {
    lanes = draw_device(run, config, cables);
  }
  SimPair pair(run.seed, usual, config, cables);
  if (random.chance(0.5)) {
    pair.world().rdma().late = 0.02;
    pair.world().rdma().latest = microseconds(random.below(5000));
  }
  if (run.begins) {
    run.begins(pair.world());
  }
  Chaos chaos(pair, run, lanes, usual, *totals);
  for (size_t rail = 0; run.one_device && rail < run.rails; ++rail) {
    pair.set_links(chaos.usual(rail), chaos.usual(rail), rail);
  }
  if (backed && random.chance(0.3)) {
    chaos.meet_handshake();
  }
  if (!pair.connect([&] { chaos.step(); })) {
    return "connect: " + pair.error();
  }
  chaos.begin();
  TransferPlan plan;
  plan.groups = 40;
  plan.seed = run.seed;
  plan.each_round = [&] { chaos.step(); };
  if (random.chance(0.5)) {  // else everything is under way when the first fault comes
    plan.released = [&] { return chaos.released(plan.groups); };
  }
  std::string outcome = pair.transfer(plan, seconds(120));
  add(*totals, run, pair);
  if (!pair.world().livelock().empty()) {
    return pair.world().livelock();
  }
  return pair.world().violation().empty() ? outcome : pair.world().violation();
}

}  // namespace nccl_ha::rig
