#include "tests/support/failover_run.h"

namespace nccl_ha::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Does something to a pair now and then, as its seed says.
class Chaos {
 public:
  Chaos(SimPair& pair, uint64_t seed, size_t paths, const sim::Link& usual)
      : pair_(pair), random_(seed), paths_(paths), usual_(usual) {
    next_ = pair_.world().now() + microseconds(random_.below(500));
  }
  double doubts = 0;  ///< of what happens, the part that is a false verdict
  int left = 10;      ///< that many things happen

  void step() {
    const Instant now = pair_.world().now();
    if (healed_at_ && now >= *healed_at_) {
      set_links(usual_, usual_);
      healed_at_.reset();
    }
    if (now < next_ || left == 0) {
      return;
    }
    --left;
    next_ = now + microseconds(random_.below(random_.chance(0.5) ? 500 : 20000));
    if (random_.chance(doubts)) {
      Channel& side = random_.chance(0.5) ? static_cast<Channel&>(pair_.send_channel())
                                          : static_cast<Channel&>(pair_.receive_channel());
      static_cast<void>(side.tell_doubt(static_cast<uint32_t>(random_.below(paths_))));
      return;
    }
    sim::Link dark = usual_;
    dark.cut = true;
    const uint64_t which = random_.below(3);
    set_links(which == 1 ? usual_ : dark, which == 2 ? usual_ : dark);
    healed_at_ = now + milliseconds(random_.below(3000));
  }

 private:
  void set_links(const sim::Link& there, const sim::Link& back) {
    auto& network = pair_.world().network();
    network.set_link(pair_.sender().address, pair_.receiver().address, there);
    network.set_link(pair_.receiver().address, pair_.sender().address, back);
  }
  SimPair& pair_;
  Random random_;
  size_t paths_;
  sim::Link usual_;
  Instant next_{};
  std::optional<Instant> healed_at_;
};

}  // namespace

void FailoverTotals::add(SimPair& pair) {
  for (Channel* channel : {static_cast<Channel*>(&pair.send_channel()),
                           static_cast<Channel*>(&pair.receive_channel())}) {
    down += channel->failovers.down.load();
    back += channel->failovers.back.load();
    again += channel->failovers.chunks_again.load();
    kept += channel->failovers.chunks_kept.load();
  }
  cut += pair.world().network().counts().cut;
}

Config failover_config(int64_t paths) {
  Config config;
  config.dgram_dead_ms = 200;
  config.dgram_paths = paths;
  config.ib_split_threshold = 4096;
  return config;
}

std::string run_failovers(uint64_t seed, double doubts, FailoverTotals* totals) {
  Random random(seed);
  const auto paths = static_cast<int64_t>(1 + random.below(4));
  sim::Link usual;
  usual.drop = random.chance(0.5) ? 0.02 : 0;
  usual.duplicate = random.chance(0.5) ? 0.02 : 0;
  usual.reorder = random.chance(0.5) ? 0.05 : 0;
  SimPair pair(seed, usual, failover_config(paths));
  if (!pair.connect()) {
    return "connect: " + pair.error();
  }
  Chaos chaos(pair, seed, static_cast<size_t>(paths), usual);
  chaos.doubts = doubts;
  TransferPlan plan;
  plan.groups = 40;
  plan.seed = seed;
  plan.each_round = [&] { chaos.step(); };
  const std::string outcome = pair.transfer(plan, seconds(120));
  totals->add(pair);
  return outcome;
}

}  // namespace nccl_ha::test
