// Sides of the contract suite over reliable (RC) queue pairs, of a real RDMA device or of simulated
// ones.
#include "tests/support/path_verbs.h"

#include <array>
#include <stdexcept>

#include "runtime/base/config.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/fabric/verbs/port.h"
#include "runtime/fabric/verbs/port_list.h"
#include "runtime/fabric/verbs/verbs_path.h"
#include "tests/rig/sim/network.h"
#include "tests/rig/sim/rdma.h"
#include "tests/rig/sim/secrets.h"

namespace nccl_ha::test {
namespace {

namespace verbs = fabric::verbs;

class VerbsSide final : public PathSide {
 public:
  VerbsSide(size_t index, const verbs::UsablePort& usable, Clock& clock)
      : index_(index), clock_(clock), device_(usable.device) {
    want_ = *verbs::gid_preference(config_, usable.info);
    verbs::Options options = verbs::Options::from(config_);
    options.dead_after = std::chrono::seconds(3);
    verbs::Port::Environment environment;
    environment.clock = &clock_;
    environment.timers = &timers_;
    environment.secrets = &secrets_;
    auto port = verbs::Port::open(usable, options, environment);
    if (!port) {
      throw std::runtime_error(port.error().message());
    }
    port_ = std::move(*port);
  }

  std::unique_ptr<PathEnd> make_end(fabric::PathOptions options) override {
    auto end = std::make_unique<PathEnd>();
    options.flushes_max = options.receives_max;
    auto path = port_->create_path(options, want_, &end->owner);
    if (!path) {
      throw std::runtime_error(path.error().message());
    }
    path_ = static_cast<verbs::VerbsPath*>(path->get());
    end->path = std::move(*path);
    while (!end->path->address_ready() && end->path->state() != fabric::PathState::error) {
      turn();
    }
    end->add = [device = device_](void* base, size_t bytes) {
      auto region = device->add(base, bytes, verbs::MemoryKind::host);
      return region ? PathKeys{region->local_key(), region->remote_key(),
                               reinterpret_cast<uint64_t>(region->mr)}
                    : PathKeys{};
    };
    end->add_foreign = end->add;
    end->remove = [device = device_](PathKeys keys) {
      device->remove(verbs::Region{reinterpret_cast<ibv_mr*>(keys.handle)});
    };
    return end;
  }

  void turn() override {
    if (device_->library().waited != nullptr) {
      static_cast<void>(device_->conductor().pump(clock_.now()));
    }
    port_->poll(clock_);
    timers_.expire(clock_.now());
  }

  fabric::CompletionStatus reported(fabric::CompletionStatus status) const override {
    // Its driver says "operation error" of that.
    const bool unnamed = status == fabric::CompletionStatus::local_protection;
    return device_->name().starts_with("rxe") && unnamed ? fabric::CompletionStatus::device_fault
                                                         : status;
  }
  bool shares_memory() const override { return true; }

  /// The second side's queue pair is taken away: packets to it are dropped as a dead host's would.
  void cut() override {
    ibv_qp_attr reset{};
    reset.qp_state = IBV_QPS_RESET;
    if (index_ == 1) {
      static_cast<void>(
          device_->library().queue_pair.modify(path_->queue_pair(), &reset, IBV_QP_STATE));
    }
  }

 private:
  size_t index_;
  Config config_;
  Clock& clock_;
  TimerWheel timers_{clock_.now()};
  sim::SimSecrets secrets_{11};
  verbs::GidPreference want_;
  std::shared_ptr<verbs::Device> device_;
  std::shared_ptr<verbs::Port> port_;
  verbs::VerbsPath* path_ = nullptr;
};

/// Two simulated NICs on virtual time.
class SimVerbsHarness final : public PathHarness {
 public:
  SimVerbsHarness(uint64_t seed, const sim::Link& conditions) : network_(clock_, seed) {
    clock_.set(Instant(std::chrono::seconds(1)));
    network_.all = conditions;
    for (uint8_t i = 0; i < 2; ++i) {
      nics_[i] =
          std::make_unique<sim::RdmaNic>(network_, rdma_, seed + i, address(i), "simrdma", i);
      auto port = nics_[i]->open(Config{}, "sim0");
      if (!port) {
        throw std::runtime_error(port.error().message());
      }
      sides_[i] = std::make_unique<VerbsSide>(i, *port, clock_);
    }
  }
  std::unique_ptr<End> make_end(int side, fabric::PathOptions options) override {
    return sides_[static_cast<size_t>(side)]->make_end(options);
  }
  bool run_until(const std::function<bool()>& done, Duration limit) override {
    const Instant end = clock_.now() + limit;
    while (!done()) {
      if (clock_.now() >= end) {
        return false;
      }
      network_.advance();
      for (auto& side : sides_) {
        side->turn();
      }
      clock_.set(clock_.now() + std::chrono::microseconds(1));
    }
    return true;
  }
  bool shares_memory() const override { return true; }
  void cut() override {
    sim::Link dark;
    dark.cut = true;
    network_.set_link(address(0), address(1), dark);
    network_.set_link(address(1), address(0), dark);
  }

 private:
  static sim::Ip address(uint8_t host) { return sim::ip(10, 0, 0, host); }
  ManualClock clock_;
  sim::Network network_;
  sim::RdmaNic::Conditions rdma_;
  std::array<std::unique_ptr<sim::RdmaNic>, 2> nics_;
  std::array<std::unique_ptr<VerbsSide>, 2> sides_;
};

}  // namespace

std::unique_ptr<PathHarness> make_sim_verbs_harness(uint64_t seed, double duplicate,
                                                    double reorder) {
  sim::Link conditions;
  conditions.duplicate = duplicate;
  conditions.reorder = reorder;
  return std::make_unique<SimVerbsHarness>(seed, conditions);
}

bool have_verbs() {
  auto ports = verbs::list_ports(Config{});
  return ports && !ports->ports.empty();
}

/// Each side opens the device for itself, as two processes would.
std::unique_ptr<PathSide> make_rc_side(size_t index) {
  static SteadyClock clock;
  auto ports = verbs::list_ports(Config{});
  if (!ports || ports->ports.empty()) {
    throw std::runtime_error("no usable RDMA port");
  }
  return std::make_unique<VerbsSide>(index, ports->ports.front(), clock);
}

}  // namespace nccl_ha::test
