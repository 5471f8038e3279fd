#include "runtime/sim/world.h"

#include <algorithm>
#include <string>

#include "runtime/fabric/verbs/host_ports.h"

namespace nccl_ha::sim {
namespace {

// What a round in which somebody worked takes, so that time passes as they work.
constexpr Duration round_time = std::chrono::microseconds(1);

fabric::NetInterface interface_of(Ip address, size_t number) {
  fabric::NetInterface interface;
  interface.name = "sim" + std::to_string(number);
  interface.ifindex = static_cast<int>(number) + 1;
  interface.mtu = 9000;
  interface.guid = address;
  interface.up = true;
  fabric::IpAddress own;
  own.prefix_len = 16;
  for (size_t i = 0; i < 4; ++i) {
    own.bytes[i] = static_cast<uint8_t>(address >> (24 - 8 * i));
  }
  interface.addresses.push_back(own);
  return interface;
}

}  // namespace

World::World(uint64_t seed) : random_(seed), network_(clock_, random_.next()) {
  clock_.set(Instant(std::chrono::seconds(1)));  // 0 stands for "never" here and there
}

World::~World() {
  // Engines say goodbye over the network, so they go first.
  for (auto& process : processes_) {
    process->engine.reset();
    process->provider.reset();
  }
}

Result<Process*> World::add_process(const std::vector<Ip>& addresses, const Config& config,
                                    size_t rdma) {
  if (addresses.empty()) {
    return fail(Errc::invalid_argument, "a simulated process needs an address");
  }
  auto process = std::make_unique<Process>();
  const Ip address = addresses.front();
  process->address = address;
  process->addresses = addresses;
  Config own = config;
  own.fabric = rdma == 0 ? "datagram" : "auto";
  std::vector<fabric::NetInterface> interfaces;
  for (const Ip one : addresses) {
    network_.same_host_as(address, one);
    interfaces.push_back(interface_of(one, interfaces.size()));
  }
  const auto threads = static_cast<size_t>(own.progress_threads);
  std::vector<fabric::verbs::UsablePort> ports;
  for (size_t i = 0; i < rdma; ++i) {
    const auto number = static_cast<uint32_t>(nics_.size());
    nics_.push_back(std::make_unique<RdmaNic>(network_, rdma_, random_.next(), addresses[i],
                                              "simrdma" + std::to_string(i), number));
    process->nics.push_back(nics_.back().get());
    auto port = nics_.back()->open(own, interfaces[i].name);
    if (!port) {
      return port.error();
    }
    ports.push_back(std::move(*port));
  }
  fabric::Provider::RdmaSource source;
  if (rdma != 0) {
    source = [&](fabric::NicBoard& board) {
      return std::make_unique<fabric::verbs::HostPorts>(std::move(ports), threads, board);
    };
  }
  auto provider = rdma != 0 ? fabric::Provider::make(own, std::move(interfaces), threads, source)
                            : fabric::Provider::make(own, std::move(interfaces), threads);
  if (!provider) {
    return provider.error();
  }
  process->provider = std::move(*provider);
  process->provider->use_packets(
      [this](const fabric::SocketAddress& local) -> Result<std::unique_ptr<fabric::PacketIo>> {
        return network_.open_packets(
            Endpoint::of(reinterpret_cast<const sockaddr*>(&local.storage)).ip);
      });
  process->engine = Engine::start_virtual(
      own, clock_, random_.next(), [this, address] { return network_.make_streams(address); });
  processes_.push_back(std::move(process));
  return processes_.back().get();
}

void World::kill(Process& process) {
  for (const Ip address : process.addresses) {
    network_.vanish(address);
  }
  process.engine.reset();
}

bool World::run_until(const std::function<bool()>& done, Duration limit) {
  const Instant end = now() + limit;
  std::vector<Worker*> workers;
  for (auto& process : processes_) {
    for (size_t i = 0; process->engine && i < process->engine->worker_count(); ++i) {
      workers.push_back(&process->engine->worker(i));
    }
  }
  while (!done()) {
    if (now() >= end) {
      return false;
    }
    ++rounds_;
    size_t work = network_.advance();
    for (Worker* worker : workers) {
      work += worker->turn();
    }
    const bool idle = work == 0 && std::all_of(workers.begin(), workers.end(),
                                               [](Worker* worker) { return worker->may_sleep(); });
    Instant next = now() + round_time;
    if (idle) {
      Instant wake = end;
      if (const auto event = network_.next_event()) {
        wake = std::min(wake, *event);
      }
      for (Worker* worker : workers) {
        if (const auto deadline = worker->next_deadline()) {
          wake = std::min(wake, *deadline);
        }
      }
      next = std::max(wake, next);
    }
    clock_.set(next);
  }
  return true;
}

}  // namespace nccl_ha::sim
