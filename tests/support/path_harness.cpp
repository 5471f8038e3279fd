#include "tests/support/path_harness.h"

#include <array>

#include "runtime/clock.h"
#include "runtime/config.h"
#include "runtime/fabric/datagram/datagram_path.h"
#include "runtime/fabric/datagram/fault_io.h"
#include "runtime/fabric/datagram/port.h"
#include "runtime/fabric/datagram/udp_io.h"
#include "runtime/fabric/verbs/ud_io.h"
#include "runtime/timer_wheel.h"
#include "tests/support/memory_network.h"

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
      : timers(clock.now()), random(seed) {
    DatagramPort::Environment environment;
    environment.memory = &memory;
    environment.clock = &clock;
    environment.timers = &timers;
    environment.random = &random;
    port = std::make_unique<DatagramPort>(std::move(io), options, environment, mtu);
  }
  unsigned turn(Instant now) {
    const unsigned work = port->poll(now);
    return work + static_cast<unsigned>(timers.expire(now));
  }
  fabric::Memory memory;
  TimerWheel timers;
  Random random;
  std::unique_ptr<DatagramPort> port;
};

class DatagramHarness : public PathHarness {
 public:
  std::unique_ptr<End> make_end(int side, fabric::PathOptions options) override {
    auto end = std::make_unique<End>();
    Host& host = *hosts_[static_cast<size_t>(side)];
    const uint64_t domain = next_domain.fetch_add(1);
    options.domain = domain;
    auto add = [memory = &host.memory](uint64_t owner, void* base, size_t bytes) {
      auto key = memory->add(owner, base, bytes);
      return key ? Keys{*key, *key, *key} : Keys{};
    };
    end->add = [=](void* base, size_t bytes) { return add(domain, base, bytes); };
    end->add_foreign = [=](void* base, size_t bytes) { return add(domain + 1000000, base, bytes); };
    end->remove = [memory = &host.memory](Keys keys) {
      static_cast<void>(memory->remove(keys.local));
    };
    auto path = host.port->create_path(options, &end->owner);
    if (path) {
      end->path = std::move(*path);
    }
    return end;
  }

 protected:
  std::array<std::unique_ptr<Host>, 2> hosts_;
};

class MemoryHarness final : public DatagramHarness {
 public:
  MemoryHarness(uint64_t seed, double drop, double duplicate, double reorder, uint32_t mtu)
      : network_(seed), lossy_(drop > 0 || duplicate > 0 || reorder > 0) {
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
  bool run_until(const std::function<bool()>& done, Duration limit) override {
    const Instant end = clock_.now() + limit;
    while (!done()) {
      unsigned work = 0;
      for (auto& host : hosts_) {
        work += host->turn(clock_.now());
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
  bool lossy_;
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

/// Two real endpoints on this machine, on real time.
class RealHarness final : public DatagramHarness {
 public:
  using Open = std::function<Result<std::unique_ptr<fabric::PacketIo>>()>;
  RealHarness(const Open& open, double drop, double duplicate, double reorder,
              DatagramOptions options, uint32_t interface_mtu)
      : lossy_(drop > 0 || duplicate > 0 || reorder > 0) {
    options.connect_timeout = std::chrono::seconds(5);
    options.dead_after = std::chrono::seconds(3);
    for (size_t i = 0; i < 2; ++i) {
      auto opened = open();
      if (!opened) {
        throw std::runtime_error(opened.error().message());
      }
      std::unique_ptr<fabric::PacketIo> io = std::make_unique<CutIo>(std::move(*opened), &cut_);
      if (lossy_) {
        fabric::FaultPlan plan;
        plan.drop = drop;
        plan.duplicate = duplicate;
        plan.reorder = reorder;
        plan.seed = 17 + i;
        io = std::make_unique<fabric::FaultIo>(std::move(io), plan);
      }
      hosts_[i] = std::make_unique<Host>(clock_, std::move(io), options, 99 + i, interface_mtu);
    }
  }
  bool run_until(const std::function<bool()>& done, Duration limit) override {
    const Instant end = clock_.now() + limit;
    while (!done()) {
      if (clock_.now() >= end) {
        return false;
      }
      for (auto& host : hosts_) {
        host->turn(clock_.now());
      }
    }
    return true;
  }
  bool lossy() const override { return lossy_; }
  void cut() override { cut_ = true; }

 private:
  SteadyClock clock_;
  bool cut_ = false;
  bool lossy_;
};

}  // namespace

std::unique_ptr<PathHarness> make_memory_harness(uint64_t seed, double drop, double duplicate,
                                                 double reorder, uint32_t mtu) {
  return std::make_unique<MemoryHarness>(seed, drop, duplicate, reorder, mtu);
}

std::unique_ptr<PathHarness> make_udp_harness(double drop, double duplicate, double reorder,
                                              uint32_t mtu) {
  DatagramOptions options;
  options.mtu = mtu;
  const auto open = []() -> Result<std::unique_ptr<fabric::PacketIo>> {
    fabric::UdpIo::Options udp;
    auto* in4 = reinterpret_cast<sockaddr_in*>(&udp.bind.storage);
    in4->sin_family = AF_INET;
    in4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    udp.bind.length = sizeof(sockaddr_in);
    auto opened = fabric::UdpIo::open(udp);
    if (!opened) {
      return opened.error();
    }
    return std::unique_ptr<fabric::PacketIo>(std::move(*opened));
  };
  return std::make_unique<RealHarness>(open, drop, duplicate, reorder, options, 65536);
}

std::unique_ptr<PathHarness> make_ud_harness(double drop, double duplicate, double reorder) {
  const Config config;
  auto ports = verbs::list_ports(config);
  if (!ports || ports->ports.empty()) {
    throw std::runtime_error("no usable RDMA port");
  }
  const verbs::UsablePort& usable = ports->ports.front();
  const auto open = [&]() -> Result<std::unique_ptr<fabric::PacketIo>> {
    verbs::UdIo::Route route;
    route.port = usable.info.port;
    route.gid = *verbs::gid_preference(config, usable.info);
    auto opened = verbs::UdIo::open(usable.device, route, verbs::Options::from(config));
    if (!opened) {
      return opened.error();
    }
    return std::unique_ptr<fabric::PacketIo>(std::move(*opened));
  };
  return std::make_unique<RealHarness>(open, drop, duplicate, reorder, DatagramOptions{},
                                       usable.info.mtu);
}

}  // namespace nccl_ha::test
