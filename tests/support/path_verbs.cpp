// The contract suite's two ends over RC queue pairs of a real RDMA device.
#include <stdexcept>

#include "runtime/config.h"
#include "runtime/fabric/verbs/verbs_path.h"
#include "runtime/timer_wheel.h"
#include "tests/support/path_harness.h"

namespace nccl_ha::test {
namespace {

namespace verbs = fabric::verbs;

class VerbsHarness final : public PathHarness {
 public:
  VerbsHarness() {
    for (Side& side : sides_) {
      // Each side opens the device for itself, as two processes would.
      auto ports = verbs::list_ports(config_);
      if (!ports || ports->ports.empty()) {
        throw std::runtime_error("no usable RDMA port");
      }
      side.device = ports->ports.front().device;
      want_ = *verbs::gid_preference(config_, ports->ports.front().info);
      verbs::Options options = verbs::Options::from(config_);
      options.dead_after = std::chrono::seconds(3);
      verbs::Port::Environment environment;
      environment.clock = &clock_;
      environment.timers = &timers_;
      environment.random = &random_;
      auto port =
          verbs::Port::open(side.device, ports->ports.front().info.port, options, environment);
      if (!port) {
        throw std::runtime_error(port.error().message());
      }
      side.port = std::move(*port);
    }
  }

  std::unique_ptr<End> make_end(int index, fabric::PathOptions options) override {
    Side& side = sides_[static_cast<size_t>(index)];
    auto end = std::make_unique<End>();
    options.flushes = true;
    auto path = side.port->create_path(options, want_, &end->owner);
    if (!path) {
      throw std::runtime_error(path.error().message());
    }
    side.path = static_cast<verbs::VerbsPath*>(path->get());
    end->path = std::move(*path);
    end->add = [device = side.device](void* base, size_t bytes) {
      auto region = device->add(base, bytes, verbs::MemoryKind::host);
      return region ? Keys{region->local_key(), region->remote_key(),
                           reinterpret_cast<uint64_t>(region->mr)}
                    : Keys{};
    };
    end->add_foreign = end->add;
    end->remove = [device = side.device](Keys keys) {
      device->remove(verbs::Region{reinterpret_cast<ibv_mr*>(keys.handle)});
    };
    return end;
  }

  bool run_until(const std::function<bool()>& done, Duration limit) override {
    const Instant end = clock_.now() + limit;
    while (!done()) {
      const Instant now = clock_.now();
      if (now >= end) {
        return false;
      }
      for (Side& side : sides_) {
        side.port->poll(now);
      }
      timers_.expire(now);
    }
    return true;
  }

  fabric::CompletionStatus reported(fabric::CompletionStatus status) const override {
    // Its driver has one code, "operation error", for both.
    const bool one_code = status == fabric::CompletionStatus::length_error ||
                          status == fabric::CompletionStatus::local_protection;
    return sides_[0].device->name().starts_with("rxe") && one_code
               ? fabric::CompletionStatus::device_fault
               : status;
  }
  bool shares_memory() const override { return true; }

  /// The peer's queue pair is taken away: its packets are dropped as a dead host's would be.
  void cut() override {
    ibv_qp_attr reset{};
    reset.qp_state = IBV_QPS_RESET;
    static_cast<void>(
        sides_[1].device->library().modify_qp(sides_[1].path->queue_pair(), &reset, IBV_QP_STATE));
  }

 private:
  struct Side {
    std::shared_ptr<verbs::Device> device;
    std::shared_ptr<verbs::Port> port;
    verbs::VerbsPath* path = nullptr;
  };
  Config config_;
  SteadyClock clock_;
  TimerWheel timers_{clock_.now()};
  Random random_{11};
  verbs::GidPreference want_;
  std::array<Side, 2> sides_;
};

}  // namespace

bool have_verbs() {
  auto ports = verbs::list_ports(Config{});
  return ports && !ports->ports.empty();
}

std::unique_ptr<PathHarness> make_verbs_harness() { return std::make_unique<VerbsHarness>(); }

}  // namespace nccl_ha::test
