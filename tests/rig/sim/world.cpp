#include "tests/rig/sim/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/fabric/verbs/host_ports.h"
#include "tests/rig/sim/streams.h"

namespace nccl_ha::sim {
namespace {

// What a round in which somebody worked takes, so that time passes as they work.
constexpr Duration round_time = std::chrono::microseconds(1);

/// Callers that find nothing come back after so long: rarely enough to be cheap, often enough that
/// the fallback thread sees them call.
constexpr Duration call_interval = std::chrono::microseconds(200);

constexpr uint64_t fruitless_rounds_max = 1'000'000;
constexpr uint64_t rounds_max = 50'000'000;

std::string interface_name(size_t number) { return "sim" + std::to_string(number); }

fabric::NetInterface interface_of(Ip address, size_t number) {
  fabric::NetInterface interface;
  interface.name = interface_name(number);
  interface.ifindex = static_cast<int>(number) + 1;
  interface.mtu = 9000;
  interface.guid = address;
  interface.up = true;
  IpAddress own;
  own.prefix_len = 16;
  for (size_t i = 0; i < 4; ++i) {
    own.bytes[i] = static_cast<uint8_t>(address >> (24 - 8 * i));
  }
  interface.addresses.push_back(own);
  return interface;
}

}  // namespace

World::World(uint64_t seed) : random_(seed), network_(clock_, random_.next()) {
  check_deeply();
  clock_.set(Instant(std::chrono::seconds(1)));  // 0 stands for "never" here and there
}

World::~World() {
  // Engines say goodbye over the network, so they go first.
  for (auto& process : processes_) {
    end_process(*process);
    process->program.reset();
    process->own_provider.reset();
  }
}

Result<Process*> World::add_process(const std::vector<Ip>& addresses, const Config& config,
                                    size_t rdma, const DeviceTraits& traits) {
  if (addresses.empty()) {
    return fail(Errc::invalid_argument, "a simulated process needs an address");
  }
  auto process = std::make_unique<Process>();
  const Ip address = addresses.front();
  process->address = address;
  process->tie = std::make_shared<ProcessTie>();
  process->addresses = addresses;
  Config own = config;
  if (kinds.empty()) {
    own.fabric = rdma == 0 ? "datagram" : config.fabric == "ud" ? "ud" : "auto";
  }
  std::vector<fabric::NetInterface> interfaces;
  for (const Ip one : addresses) {
    network_.same_host_as(address, one);
    interfaces.push_back(interface_of(one, interfaces.size()));
  }
  const auto threads = static_cast<size_t>(own.progress_threads);
  std::vector<fabric::verbs::UsablePort> ports;
  for (size_t first = 0; first < rdma; first += traits.ports) {
    const size_t count = std::min(traits.ports, rdma - first);
    const auto begin = addresses.begin() + static_cast<ptrdiff_t>(first);
    const std::vector<Ip> own_addresses(begin, begin + static_cast<ptrdiff_t>(count));
    nics_.push_back(std::make_unique<RdmaNic>(network_, rdma_, random_.next(), own_addresses,
                                              "simrdma" + std::to_string(first / traits.ports),
                                              static_cast<uint32_t>(nics_.size()), traits));
    process->nics.insert(process->nics.end(), count, nics_.back().get());
    auto opened = open_nic(*process, *nics_.back(), own);
    if (!opened) {
      return opened.error();
    }
    std::move(opened->begin(), opened->end(), std::back_inserter(ports));
  }
  fabric::Provider::Sources sources;
  sources.kinds = kinds;
  if (rdma != 0) {
    sources.standard.rdma = [&](fabric::NicBoard& board) {
      return std::make_unique<fabric::verbs::HostPorts>(
          std::move(ports), threads, board,
          [this, its = process.get()](const fabric::verbs::NicIdentity& before) {
            return find_successor(*its, before.name);
          });
    };
  }
  if (rdma == 0) {
    sources.standard.rdma = [](fabric::NicBoard&) { return nullptr; };  // none of this machine's
  }
  sources.standard.packets =
      [this, tie = process->tie](
          const fabric::SocketAddress& local) -> Result<std::unique_ptr<fabric::PacketIo>> {
    return network_.open_packets(Endpoint::of(reinterpret_cast<const sockaddr*>(&local.storage)).ip,
                                 tie);
  };
  process->key_secrets = std::make_unique<SimSecrets>(processes_.size());
  sources.standard.secrets = process->key_secrets.get();
  auto provider = fabric::Provider::make(own, interfaces, threads, sources);
  if (!provider) {
    return provider.error();
  }
  process->config = own;
  process->interfaces = std::move(interfaces);
  process->own_provider = std::move(*provider);
  process->provider = process->own_provider.get();
  if (!process->nics.empty()) {
    process->provider->use_duplicate(
        [nic = process->nics.front()](int fd) { return nic->duplicate(fd); });
  }
  process->worker_waits_until.resize(threads);
  process->thread_due.resize(threads);
  process->seen_turns.resize(threads);
  process->called_at.resize(threads);
  process->secrets = std::make_unique<SimSecrets>(random_.next());
  process->own_engine = Engine::start_virtual(
      own, clock_, random_.next(),
      [&, tie = process->tie] {
        return network_.make_streams(address, tie, unanswered_limit(own));
      },
      callers_help > 0, *process->secrets);
  process->engine = process->own_engine.get();
  processes_.push_back(std::move(process));
  return processes_.back().get();
}

Result<std::vector<fabric::verbs::UsablePort>> World::open_nic(Process& process, RdmaNic& nic,
                                                               const Config& config) {
  std::vector<std::string> netdevs;
  for (const Ip address : nic.addresses()) {
    const auto own = std::ranges::find(process.addresses, address);
    netdevs.push_back(interface_name(static_cast<size_t>(own - process.addresses.begin())));
  }
  auto opened = nic.open_ports(config, netdevs);
  if (opened) {
    std::erase_if(process.conducted, [](const auto& one) { return one.expired(); });
    process.conducted.push_back(opened->front().device);
  }
  return opened;
}

std::vector<fabric::verbs::UsablePort> World::find_successor(Process& process,
                                                             const std::string& name) {
  const auto found = std::ranges::find_if(
      process.nics, [&](const RdmaNic* nic) { return nic->name() == name && !nic->failed(); });
  if (found == process.nics.end()) {
    return {};
  }
  auto opened = open_nic(process, **found, process.config);
  return opened ? std::move(*opened) : std::vector<fabric::verbs::UsablePort>();
}

void World::bring_back(Process& process, size_t number) {
  RdmaNic* const before = process.nics[number];
  nics_.push_back(before->successor());
  std::ranges::replace(process.nics, before, nics_.back().get());
}

void World::end_process(Process& process) {
  if (process.program && process.engine) {
    process.program->end();
  }
  process.own_engine.reset();
  process.engine = nullptr;
}

void World::kill_process(Process& process) {
  if (!process.engine) {
    return;
  }
  for (size_t i = 0; i < process.engine->worker_count(); ++i) {
    network_.tcp().process_dies(
        static_cast<SimStreams&>(process.engine->worker(i).context().streams()));
  }
  for (RdmaNic* nic : process.nics) {
    nic->fail_for_good();
  }
  process.tie->dead = true;
  end_process(process);
}

void World::power_off(Process& process) {
  for (auto& other : processes_) {
    if (!network_.same_host(other->address, process.address)) {
      continue;
    }
    for (const Ip address : other->addresses) {
      network_.vanish(address);
    }
    network_.vanish(other->management);
    other->tie->dead = true;
    end_process(*other);
  }
  network_.tcp().host_dies(process.address);
}

void World::power_on(Process& process) {
  for (const Ip address : process.addresses) {
    network_.come_back(address);
  }
  network_.come_back(process.management);
}

void World::tell_link(const Process& process, Ip address, bool up) {
  const auto own = std::find(process.addresses.begin(), process.addresses.end(), address);
  NHA_ASSERT(own != process.addresses.end(), "an interface of that process");
  const auto number = static_cast<size_t>(own - process.addresses.begin());
  network_.tell_link(process.address, interface_name(number), up);
}

void World::pause(Process& process, Instant until) {
  process.paused_until = until;
  network_.stop_at(until);
}

void World::starve(Process& process, size_t worker, Duration time) {
  Instant& until = process.worker_waits_until[worker];
  until = std::max(until, now() + time);
  network_.stop_at(until);
}

void World::pause_callers(Process& process, Duration time) {
  process.callers_away_until = std::max(process.callers_away_until, now() + time);
  network_.stop_at(process.callers_away_until);
}

/// The rules say how many rounds may bring nothing; more are a livelock.
bool World::goes_round(uint64_t rounds_here, bool fruitless) {
  fruitless_rounds_ = fruitless ? fruitless_rounds_ + 1 : 0;
  if (network_.stuck()) {
    livelock_ = "livelock: events of one moment bring forth new ones without end";
  } else if (fruitless_rounds_ > fruitless_rounds_max) {
    livelock_ = "livelock: a deadline has passed, and nobody does what is due";
  } else if (rounds_here > rounds_max) {
    livelock_ = fmt::format("livelock: no end after {} rounds", rounds_here);
  }
  return !livelock_.empty();
}

size_t World::turn(Process& process, size_t worker) {
  rdma_.waited = Duration{};  // what other threads wait for is theirs
  const size_t work = process.engine->worker(worker).turn();
  if (rdma_.waited > Duration{}) {
    starve(process, worker, rdma_.waited);
  }
  return work;
}

/// The worker's thread, which drives or looks whether callers do; sometimes it does not run.
size_t World::turn_helped(Process& process, size_t worker) {
  if (random_.chance(callers_help)) {
    process.engine->give_to_callers(worker);
    process.thread_due[worker] = now();
  }
  if (now() < process.thread_due[worker]) {
    return 0;
  }
  rdma_.waited = Duration{};
  const Engine::ThreadTurn turn = process.engine->turn_thread(worker);
  if (rdma_.waited > Duration{}) {
    starve(process, worker, rdma_.waited);
  }
  process.thread_due[worker] = turn.stands_by_until.value_or(now());
  return turn.work;
}

/// Somebody turns the worker as soon as there is something to do.
bool World::turns_soon(const Process& process, size_t worker) const {
  return process.is_inline()   ? process.called_at[worker]
         : process.is_helped() ? process.called_at[worker] ||
                                     (awake(process, worker) && now() >= process.thread_due[worker])
                               : awake(process, worker);
}

/// Inline mode: the fallback thread, when it is due or was woken; whether it did anything.
bool World::turn_fallback(Process& process) {
  Engine& engine = *process.engine;
  bool woken = process.fallback_sleeps && (!engine.fallback_sleeps() || process.tie->unread != 0);
  for (size_t i = 0; process.fallback_sleeps && i < engine.worker_count(); ++i) {
    woken = woken || !engine.worker(i).may_sleep();  // a descriptor would tell
  }
  if (now() < process.fallback_due && !woken) {
    return false;
  }
  const Engine::Rest rest = engine.turn_fallback();
  process.fallback_sleeps = rest.kind == Engine::Rest::Kind::sleep;
  process.fallback_due = rest.until.value_or(Instant::max());
  if (rest.kind == Engine::Rest::Kind::none) {
    process.fallback_due = now();
  }
  return rest.kind == Engine::Rest::Kind::none;
}

/// Before the workers' turns of a round: who was turned by callers since the last one.
void World::observe_callers() {
  for (auto& process : processes_) {
    process->called = false;
    for (size_t i = 0;
         (process->is_inline() || process->is_helped()) && i < process->engine->worker_count();
         ++i) {
      process->called_at[i] = process->engine->worker(i).turns() != process->seen_turns[i];
      process->called = process->called || process->called_at[i];
    }
  }
}

void World::remember_turns(Process& process) {
  for (size_t i = 0; i < process.engine->worker_count(); ++i) {
    process.seen_turns[i] = process.engine->worker(i).turns();
  }
}

/// The threads that make the control verbs of devices.
void World::turn_conductors() {
  for (auto& process : processes_) {
    std::optional<Instant> next;
    for (const auto& one : process->conducted) {
      const auto device = process->engine && now() >= process->paused_until ? one.lock() : nullptr;
      const auto due = device ? device->conductor().pump(now()) : std::nullopt;
      next = due && (!next || *due < *next) ? due : next;
    }
    if (next && std::exchange(process->conductors_due, *next) != *next) {
      network_.stop_at(*next);
    }
  }
}

size_t World::turn_workers() {
  size_t work = 0;
  for (auto& process : processes_) {
    if (process->is_inline()) {
      work += awake(*process, 0) && turn_fallback(*process) ? 1 : 0;
      remember_turns(*process);
      continue;
    }
    for (size_t i = 0; process->engine && i < process->engine->worker_count(); ++i) {
      if (awake(*process, i)) {
        work += process->is_helped() ? turn_helped(*process, i) : turn(*process, i);
      }
    }
    if (process->is_helped()) {
      remember_turns(*process);
    }
  }
  return work;
}

bool World::all_idle() {
  for (auto& process : processes_) {
    for (size_t i = 0; process->engine && i < process->engine->worker_count(); ++i) {
      // What waits for a caller or for the end of a pause is not going to be done at once.
      if (turns_soon(*process, i) && !process->engine->worker(i).may_sleep()) {
        return false;
      }
    }
  }
  return true;
}

/// When something happens next, while nobody has anything to do.
Instant World::next_moment(Instant limit) {
  Instant wake = std::min(limit, network_.next_event().value_or(limit));
  for (auto& process : processes_) {
    if ((process->is_inline() || process->is_helped()) && process->called) {
      wake = std::min(wake, now() + call_interval);
    }
    if (process->is_inline() && awake(*process, 0)) {
      wake = std::min(wake, process->fallback_due);
    }
    // Callers look at timers by themselves; else the fallback thread knows when it is due.
    for (size_t i = 0; process->engine && i < process->engine->worker_count(); ++i) {
      if (process->is_helped() && awake(*process, i) && now() < process->thread_due[i]) {
        wake = std::min(wake, process->thread_due[i]);
      }
      if (process->is_helped() && calls(*process) && !awake(*process, i)) {
        wake = std::min(wake, now() + call_interval);  // who asks again turns it
      }
      const auto deadline =
          turns_soon(*process, i) ? process->engine->worker(i).next_deadline() : std::nullopt;
      wake = std::min(wake, deadline.value_or(wake));
    }
  }
  return wake;
}

bool World::run_until(const std::function<bool()>& done, Duration limit) {
  const Instant end = now() + limit;
  const uint64_t first_round = rounds_;
  // Before anybody looks: what is due has happened.
  size_t happened = network_.advance();
  while (!done()) {
    if (now() >= end || !livelock_.empty()) {
      return false;
    }
    ++rounds_;
    observe_callers();
    turn_conductors();
    const size_t work = happened + turn_workers();
    const bool idle = work == 0 && all_idle();
    const Instant wake = idle ? next_moment(end) : now();
    if (goes_round(rounds_ - first_round, idle && wake <= now())) {
      return false;
    }
    clock_.set(std::max(wake, now() + round_time));
    happened = network_.advance();
  }
  return true;
}

}  // namespace nccl_ha::sim
