#include "tests/support/path_harness.h"

#include <array>

#include "runtime/base/clock.h"
#include "runtime/base/config.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/fabric/datagram/datagram_path.h"
#include "runtime/fabric/datagram/fault_io.h"
#include "runtime/fabric/datagram/port.h"
#include "runtime/fabric/datagram/udp_io.h"
#include "runtime/fabric/verbs/port_list.h"
#include "runtime/fabric/verbs/ud_io.h"
#include "tests/rig/sim/secrets.h"
#include "tests/support/memory_network.h"
#include "tests/support/path_verbs.h"

namespace nccl_ha::test {
namespace {

using fabric::DatagramOptions;
using fabric::DatagramPort;
namespace verbs = fabric::verbs;

std::atomic<uint64_t> next_domain{1};

/// One host: memory, timers, a port.
struct Host {
  Host(Clock& clock, std::unique_ptr<fabric::PacketIo> io, const DatagramOptions& options,
       uint64_t seed, uint32_t mtu)
      : timers(clock.now()), secrets(seed) {
    DatagramPort::Environment environment;
    environment.memory = &memory;
    environment.clock = &clock;
    environment.timers = &timers;
    environment.secrets = &secrets;
    port = std::make_unique<DatagramPort>(std::move(io), options, environment, mtu);
  }
  unsigned turn(Clock& clock) {
    const unsigned work = port->poll(clock);
    return work + static_cast<unsigned>(timers.expire(clock.now()));
  }
  fabric::Memory memory;
  TimerWheel timers;
  sim::SimSecrets secrets;
  std::unique_ptr<DatagramPort> port;
};

/// An end on a host's datagram port.
std::unique_ptr<PathEnd> make_datagram_end(Host& host, fabric::PathOptions options) {
  auto end = std::make_unique<PathEnd>();
  const uint64_t domain = next_domain.fetch_add(1);
  options.domain = domain;
  auto add = [memory = &host.memory](uint64_t owner, void* base, size_t bytes) {
    auto key = memory->add(owner, base, bytes);
    return key ? PathKeys{*key, *key, *key} : PathKeys{};
  };
  end->add = [=](void* base, size_t bytes) { return add(domain, base, bytes); };
  end->add_foreign = [=](void* base, size_t bytes) { return add(domain + 1000000, base, bytes); };
  end->remove = [memory = &host.memory](PathKeys keys) {
    static_cast<void>(memory->remove(keys.local));
  };
  auto path = host.port->create_path(options, &end->owner);
  if (path) {
    end->path = std::move(*path);
  }
  return end;
}

class MemoryHarness final : public PathHarness {
 public:
  MemoryHarness(uint64_t seed, double drop, double duplicate, double reorder, uint32_t mtu,
                bool fallback)
      : network_(seed), lossy_(drop > 0 || duplicate > 0 || reorder > 0), fallback_(fallback) {
    clock_.set(Instant(std::chrono::seconds(1)));
    network_.set_time(clock_.now());
    network_.faults.drop = drop;
    network_.faults.duplicate = duplicate;
    network_.faults.reorder = reorder;
    DatagramOptions options;
    options.connect_timeout = std::chrono::seconds(5);
    options.dead_after = std::chrono::seconds(3);
    for (size_t i = 0; i < 2; ++i) {
      hosts_[i] = std::make_unique<Host>(clock_, network_.open(), options, seed + i, mtu);
    }
  }
  std::unique_ptr<End> make_end(int side, fabric::PathOptions options) override {
    options.fallback = fallback_;
    return make_datagram_end(*hosts_[static_cast<size_t>(side)], options);
  }
  bool run_until(const std::function<bool()>& done, Duration limit) override {
    const Instant end = clock_.now() + limit;
    while (!done()) {
      unsigned work = 0;
      for (auto& host : hosts_) {
        work += host->turn(clock_);
      }
      if (work != 0) {
        continue;
      }
      if (clock_.now() >= end) {
        return done();
      }
      // Jump to whatever happens next, but never over a timer.
      Instant next = clock_.now() + std::chrono::microseconds(20);
      if (const auto arrival = network_.next_arrival(); arrival && *arrival < next) {
        next = std::max(*arrival, clock_.now() + std::chrono::nanoseconds(100));
      }
      clock_.set(next);
      network_.set_time(next);
    }
    return true;
  }
  bool lossy() const override { return lossy_; }
  void cut() override {
    network_.faults.pass = [](fabric::Channel, std::span<const std::byte>) { return false; };
  }

 private:
  ManualClock clock_;
  MemoryNetwork network_;
  std::array<std::unique_ptr<Host>, 2> hosts_;
  bool lossy_;
  bool fallback_;
};

class SealedHarness final : public PathHarness {
 public:
  SealedHarness(std::unique_ptr<PathHarness> inner, bool encrypts)
      : inner_(std::move(inner)), encrypts_(encrypts) {}
  std::unique_ptr<End> make_end(int side, fabric::PathOptions options) override {
    options.shared = SharedKey{{std::byte{1}, std::byte{2}}, encrypts_};
    return inner_->make_end(side, options);
  }
  bool run_until(const std::function<bool()>& done, Duration limit) override {
    return inner_->run_until(done, limit);
  }
  bool lossy() const override { return inner_->lossy(); }
  void cut() override { inner_->cut(); }

 private:
  std::unique_ptr<PathHarness> inner_;
  bool encrypts_;
};

/// Drops everything once told to.
class CutIo final : public fabric::PacketIo {
 public:
  CutIo(std::unique_ptr<fabric::PacketIo> inner, const bool* cut)
      : inner_(std::move(inner)), cut_(cut) {}
  size_t send(fabric::Channel channel, std::span<fabric::OutDatagram> out) override {
    return *cut_ ? out.size() : inner_->send(channel, out);
  }
  size_t receive(fabric::Channel channel, fabric::PacketSink& sink, size_t limit) override {
    return inner_->receive(channel, sink, limit);
  }
  void tick(Instant now) override { inner_->tick(now); }
  fabric::SocketAddress local(fabric::Channel channel) const override {
    return inner_->local(channel);
  }
  size_t receive_buffer_bytes() const override { return inner_->receive_buffer_bytes(); }
  bool segmentation_offload() const override { return inner_->segmentation_offload(); }
  int wait_fd(fabric::Channel channel) const override { return inner_->wait_fd(channel); }
  size_t datagram_bytes_max() const override { return inner_->datagram_bytes_max(); }
  bool prepare_sleep() override { return inner_->prepare_sleep(); }

 private:
  std::unique_ptr<fabric::PacketIo> inner_;
  const bool* cut_;
};

/// The datagram engine over a real network.
class DatagramSide final : public PathSide {
 public:
  struct Loss {
    double drop = 0;
    double duplicate = 0;
    double reorder = 0;
    bool any() const { return drop > 0 || duplicate > 0 || reorder > 0; }
  };
  DatagramSide(std::unique_ptr<fabric::PacketIo> opened, size_t index, const Loss& loss,
               DatagramOptions options, uint32_t interface_mtu)
      : lossy_(loss.any()) {
    options.connect_timeout = std::chrono::seconds(5);
    options.dead_after = std::chrono::seconds(3);
    std::unique_ptr<fabric::PacketIo> io = std::make_unique<CutIo>(std::move(opened), &cut_);
    if (lossy_) {
      FaultPlan plan;
      plan.drop = loss.drop;
      plan.duplicate = loss.duplicate;
      plan.reorder = loss.reorder;
      plan.seed = 17 + index;
      io = std::make_unique<fabric::FaultIo>(std::move(io), plan);
    }
    host_ = std::make_unique<Host>(clock_, std::move(io), options, 99 + index, interface_mtu);
  }
  std::unique_ptr<PathEnd> make_end(fabric::PathOptions options) override {
    return make_datagram_end(*host_, options);
  }
  void turn() override { host_->turn(clock_); }
  bool lossy() const override { return lossy_; }
  void cut() override { cut_ = true; }

 private:
  SteadyClock clock_;
  bool cut_ = false;
  bool lossy_;
  std::unique_ptr<Host> host_;
};

constexpr DatagramSide::Loss heavy_loss{0.05, 0.05, 0.05};

std::unique_ptr<PathSide> make_ud_side(size_t index, const DatagramSide::Loss& loss) {
  const Config config;
  auto ports = verbs::list_ports(config);
  if (!ports || ports->ports.empty()) {
    throw std::runtime_error("no usable RDMA port");
  }
  const verbs::UsablePort& usable = ports->ports.front();
  verbs::UdIo::Route route;
  route.port = usable.info.port;
  route.gid = *verbs::gid_preference(config, usable.info);
  auto opened = verbs::UdIo::open(usable.device, route, verbs::Options::from(config));
  if (!opened) {
    throw std::runtime_error(opened.error().message());
  }
  return std::make_unique<DatagramSide>(std::move(*opened), index, loss, DatagramOptions{}, 0);
}

}  // namespace

std::unique_ptr<PathHarness> make_memory_harness(uint64_t seed, double drop, double duplicate,
                                                 double reorder, uint32_t mtu, bool fallback) {
  return std::make_unique<MemoryHarness>(seed, drop, duplicate, reorder, mtu, fallback);
}

std::unique_ptr<PathHarness> make_udp_harness(double drop, double duplicate, double reorder,
                                              uint32_t mtu) {
  DatagramOptions options;
  options.mtu = mtu;
  const auto side = [&](size_t index) {
    fabric::UdpIo::Options udp;
    auto* in4 = reinterpret_cast<sockaddr_in*>(&udp.bind.storage);
    in4->sin_family = AF_INET;
    in4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    udp.bind.length = sizeof(sockaddr_in);
    auto opened = fabric::UdpIo::open(udp);
    if (!opened) {
      throw std::runtime_error(opened.error().message());
    }
    const DatagramSide::Loss loss{drop, duplicate, reorder};
    return std::make_unique<DatagramSide>(std::move(*opened), index, loss, options, 65536);
  };
  return std::make_unique<PairHarness>(side(0), side(1));
}

std::vector<std::pair<const char*, HarnessFactory>> sealed_harnesses() {
  const auto sealed = [](std::unique_ptr<PathHarness> inner, bool encrypts) {
    return std::make_unique<SealedHarness>(std::move(inner), encrypts);
  };
  return {
      {"memory_sealed",
       [=] { return sealed(make_memory_harness(7, 0.05, 0.05, 0.05, 1500), false); }},
      {"udp_sealed", [=] { return sealed(make_udp_harness(0, 0, 0, 0), false); }},
      {"udp_encrypted_lossy", [=] { return sealed(make_udp_harness(0.05, 0.05, 0.05, 0), true); }},
  };
}

std::unique_ptr<PathSide> make_rdma_side(const std::string& provider, size_t index) {
  if (provider == "verbs_rc") {
    return make_rc_side(index);
  }
  if (provider == "verbs_ud" || provider == "verbs_ud_lossy") {
    return make_ud_side(index, provider == "verbs_ud" ? DatagramSide::Loss{} : heavy_loss);
  }
  throw std::runtime_error("there is no provider " + provider);
}

bool PairHarness::run_until(const std::function<bool()>& done, Duration limit) {
  SteadyClock clock;
  const Instant end = clock.now() + limit;
  bool met = done();
  while (!met && clock.now() < end) {
    for (auto& side : sides_) {
      side->turn();
    }
    met = done();
  }
  return met;
}

}  // namespace nccl_ha::test
