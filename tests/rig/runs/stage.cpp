#include "tests/rig/runs/stage.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tests/rig/runs/random_hints.h"

namespace nccl_ha::rig {
namespace {

constexpr uint8_t management_net = 200;
constexpr Duration device_faults_last = std::chrono::seconds(8);

}  // namespace

Stage::Stage(const Scenario& scenario, FailoverTotals& totals,
             std::function<void(const std::string&)> trace)
    : scenario_(scenario), totals_(totals), trace_(std::move(trace)), world_(scenario.seed) {
  world_.network().all = scenario.usual;
  world_.rdma().late = scenario.late;
  world_.rdma().latest = scenario.latest;
  world_.callers_help = scenario.callers_help;
  for (size_t host = 0; host < scenario.hosts; ++host) {
    for (size_t number = 0; number < scenario.processes_per_host; ++number) {
      std::vector<sim::Ip> addresses;
      for (size_t line = 0; line < lines(); ++line) {
        addresses.push_back(address(host, number, line));
      }
      sim::Process& process =
          **world_.add_process(addresses, scenario.configs[host],
                               scenario.rdma ? scenario.rails : 0, scenario.traits[host]);
      world_.network().same_host_as(address(host, 0, 0), process.address);
      for (const sim::Ip one : addresses) {
        world_.network().same_host_as(address(host, 0, 0), one);
      }
      if (scenario.management) {
        process.management = management(host);
        world_.network().same_host_as(address(host, 0, 0), process.management);
      }
      for (size_t rail = 1; rail < scenario.device_rails; ++rail) {
        process.devices.devices[process.devices.count++] = rail;
      }
      process.devices.sout_and_sup = scenario.sout_and_sup;
      processes_.push_back(&process);
    }
  }
  for (size_t one = 0; !scenario.rates.empty() && one < scenario.hosts; ++one) {
    for (size_t other = one + 1; other < scenario.hosts; ++other) {
      for (size_t line = 0; line < lines(); ++line) {
        mend_line(one, other, line);
      }
    }
  }
}

Stage::~Stage() {
  traffic_.clear();
  links_.clear();
}

sim::Ip Stage::address(size_t host, size_t number, size_t line) const {
  // Processes with RDMA have NICs of their own.
  const size_t net = scenario_.rdma ? number * lines() + line : line;
  return sim::ip(10, static_cast<uint8_t>(net), 0, static_cast<uint8_t>(host + 1));
}

sim::Ip Stage::management(size_t host) {
  return sim::ip(10, management_net, 0, static_cast<uint8_t>(host + 1));
}

void Stage::set_line(size_t one, size_t other, size_t line, const sim::Link& there,
                     const sim::Link& back) {
  for (size_t number = 0; number < scenario_.processes_per_host; ++number) {
    const sim::Ip from = address(one, number, line);
    const sim::Ip to = address(other, number, line);
    world_.network().set_link(from, to, there);
    world_.network().set_link(to, from, back);
  }
}

void Stage::make_links() {
  uint64_t hints_seed = scenario_.seed + 5000;
  for (const Scenario::Ends& ends : scenario_.links) {
    std::shared_ptr<ha::HintSource> hints;
    if (scenario_.hinted) {
      hints = std::make_shared<RandomHints>(hints_seed);
    }
    ++hints_seed;
    links_.push_back(std::make_unique<SimLink>(world_, *processes_[ends.from], *processes_[ends.to],
                                               std::move(hints)));
    traffic_.emplace_back();
  }
}

bool Stage::step_connecting() {
  bool all = true;
  for (auto& link : links_) {
    all = (link->step_connecting() || link->failed() || !link->sender_lives() ||
           !link->receiver_lives()) &&
          all;
  }
  return all;
}

/// For a while, so that a path can come back within the budget.
void Stage::begin_device_faults() {
  Random random(scenario_.seed);
  for (sim::Process* process : processes_) {
    for (sim::RdmaNic* nic : process->nics) {
      sim::DeviceFaults faults = sim::draw_device_faults(random);
      faults[sim::Verb::poll] = 0;  // that device is lost for good, and there may be no other
      // Without both, nothing is left that tells what arrived, and the connection has to end.
      faults.destroy_takes_completions = faults.destroy_takes_completions &&
                                         faults[sim::Verb::to_error] == 0 && faults.keeps_work == 0;
      nic->verbs().faults = faults;
      later(device_faults_last, [nic] { nic->verbs().faults.fails = {}; });
    }
  }
}

void Stage::make_traffic(const std::function<double()>& released) {
  connected_ = true;
  for (size_t i = 0; i < links_.size(); ++i) {
    if (!links_[i]->connected() || links_[i]->sender().phase() != Phase::ready) {
      continue;
    }
    if (!scenario_.listens_on) {
      links_[i]->close_listener();
    }
    TransferPlan plan = scenario_.plan;
    plan.seed = scenario_.seed * 64 + i;
    if (released) {
      plan.released = [released, groups = plan.groups] {
        return std::max<uint64_t>(1,
                                  static_cast<uint64_t>(static_cast<double>(groups) * released()));
      };
    }
    traffic_[i] = std::make_unique<Traffic>(*links_[i], plan);
  }
  count_streams();
}

void Stage::count_streams() {
  const auto connections =
      std::ranges::count_if(links_, [](const auto& one) { return one->connected(); });
  size_t ends = 0;
  for (size_t host = 0; host < scenario_.hosts; ++host) {
    ends += world_.network().tcp().held(std::array{management(host)});
  }
  for (const sim::Process* process : processes_) {
    ends += world_.network().tcp().held(process->addresses);
  }
  totals_.shared_streams += ends < 2 * static_cast<size_t>(connections) ? 1 : 0;
}

/// Those that were to meet, where they did.
void Stage::count_settings() {
  constexpr uint64_t enough = 50'000;
  const Scenario::Ends& ends = scenario_.links.front();
  size_t carry = 0;
  for (size_t rail = 0; rail < scenario_.device_rails; ++rail) {
    carry += world_.network().carried(processes_[ends.from]->addresses[rail],
                                      processes_[ends.to]->addresses[rail]) > enough
                 ? 1
                 : 0;
  }
  const bool records =
      scenario_.rdma && scenario_.configs[host_of(ends.from)].ib_adaptive_routing > 0;
  totals_.rails_at_once += carry > 1 ? 1 : 0;
  totals_.rails_with_records += carry > 1 && records ? 1 : 0;
  const auto other = std::ranges::find_if(scenario_.traits, [&](const sim::DeviceTraits& one) {
    return one.mtu != scenario_.traits.front().mtu;
  });
  totals_.unequal_mtus += scenario_.rdma && other != scenario_.traits.end() ? 1 : 0;
}

void Stage::count() {
  count_settings();
  uint64_t wanted = 0;
  for (size_t i = 0; i < links_.size(); ++i) {
    if (traffic_[i]) {
      wanted += traffic_[i]->bytes();
      totals_.places_found += traffic_[i]->places_found();
      totals_.groups += traffic_[i]->groups_done();
    }
    totals_.count(links_[i]->sender());
    if (links_[i]->accepted()) {
      totals_.count(links_[i]->receiver());
    }
  }
  totals_.count(world_, scenario_.rdma && !scenario_.spare ? wanted : 0);
}

}  // namespace nccl_ha::rig
