// A side of the contract suite over a reliable (RC) queue pair of a real RDMA device.
#include "tests/support/path_verbs.h"

#include <stdexcept>

#include "runtime/config.h"
#include "runtime/fabric/verbs/verbs_path.h"
#include "runtime/timer_wheel.h"

namespace nccl_ha::test {
namespace {

namespace verbs = fabric::verbs;

class VerbsSide final : public PathSide {
 public:
  /// Each side opens the device for itself, as two processes would.
  explicit VerbsSide(size_t index) : index_(index) {
    auto ports = verbs::list_ports(config_);
    if (!ports || ports->ports.empty()) {
      throw std::runtime_error("no usable RDMA port");
    }
    device_ = ports->ports.front().device;
    want_ = *verbs::gid_preference(config_, ports->ports.front().info);
    verbs::Options options = verbs::Options::from(config_);
    options.dead_after = std::chrono::seconds(3);
    verbs::Port::Environment environment;
    environment.clock = &clock_;
    environment.timers = &timers_;
    environment.random = &random_;
    auto port = verbs::Port::open(device_, ports->ports.front().info.port, options, environment);
    if (!port) {
      throw std::runtime_error(port.error().message());
    }
    port_ = std::move(*port);
  }

  std::unique_ptr<PathEnd> make_end(fabric::PathOptions options) override {
    auto end = std::make_unique<PathEnd>();
    options.flushes = true;
    auto path = port_->create_path(options, want_, &end->owner);
    if (!path) {
      throw std::runtime_error(path.error().message());
    }
    path_ = static_cast<verbs::VerbsPath*>(path->get());
    end->path = std::move(*path);
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
    port_->poll(clock_);
    timers_.expire(clock_.now());
  }

  fabric::CompletionStatus reported(fabric::CompletionStatus status) const override {
    // Its driver has one code, "operation error", for both.
    const bool one_code = status == fabric::CompletionStatus::length_error ||
                          status == fabric::CompletionStatus::local_protection;
    return device_->name().starts_with("rxe") && one_code ? fabric::CompletionStatus::device_fault
                                                          : status;
  }
  bool shares_memory() const override { return true; }

  /// The second side's queue pair is taken away: packets to it are dropped as a dead host's would.
  void cut() override {
    ibv_qp_attr reset{};
    reset.qp_state = IBV_QPS_RESET;
    if (index_ == 1) {
      static_cast<void>(device_->library().modify_qp(path_->queue_pair(), &reset, IBV_QP_STATE));
    }
  }

 private:
  size_t index_;
  Config config_;
  SteadyClock clock_;
  TimerWheel timers_{clock_.now()};
  Random random_{11};
  verbs::GidPreference want_;
  std::shared_ptr<verbs::Device> device_;
  std::shared_ptr<verbs::Port> port_;
  verbs::VerbsPath* path_ = nullptr;
};

}  // namespace

bool have_verbs() {
  auto ports = verbs::list_ports(Config{});
  return ports && !ports->ports.empty();
}

std::unique_ptr<PathSide> make_rc_side(size_t index) { return std::make_unique<VerbsSide>(index); }

}  // namespace nccl_ha::test
