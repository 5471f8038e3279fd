// Two simulated NICs with a path of queue pairs between them, without the actors above.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/engine/timer_wheel.h"
#include "runtime/fabric/verbs/port.h"
#include "tests/rig/sim/network.h"
#include "tests/rig/sim/rdma.h"
#include "tests/rig/sim/secrets.h"
#include "tests/support/path_harness.h"

namespace nccl_ha::test {

struct VerbsSide {
  RecordingOwner owner;
  TimerWheel timers{Instant(std::chrono::seconds(1))};
  sim::SimSecrets secrets{7};
  std::unique_ptr<sim::RdmaNic> nic;
  std::shared_ptr<fabric::verbs::Device> device;
  std::shared_ptr<fabric::verbs::Port> port;
  fabric::verbs::GidPreference gid;
  std::unique_ptr<fabric::Path> path;
};

/// Two NICs with a connected path between them, one worker each.
class VerbsSides : public testing::Test {
 protected:
  void make(const fabric::verbs::Library& library = sim::rdma_library(),
            const fabric::verbs::Options& options = {}) {
    clock_.set(Instant(std::chrono::seconds(1)));
    for (uint8_t i = 0; i < 2; ++i) {
      VerbsSide& side = sides_[i];
      side.nic = std::make_unique<sim::RdmaNic>(network_, conditions_, 5 + i,
                                                std::vector{address(i)}, "sim", i, traits_[i]);
      auto usable = side.nic->open(Config{}, "sim0", library);
      ASSERT_TRUE(usable);
      side.device = usable->device;
      fabric::verbs::Port::Environment environment;
      environment.clock = &clock_;
      environment.timers = &side.timers;
      environment.secrets = &side.secrets;
      auto port = fabric::verbs::Port::open(*usable, options, environment);
      ASSERT_TRUE(port);
      side.port = std::move(*port);
      side.gid = *gid_preference(Config{}, usable->info);
    }
    make_path(sides_[0], true);
    make_path(sides_[1], false);
    ASSERT_TRUE(sides_[0].path->connect(sides_[1].path->local_address()));
    run([] { return false; }, std::chrono::microseconds(2));  // its device may have more to say
    ASSERT_TRUE(sides_[1].path->connect(sides_[0].path->local_address()));
    ASSERT_TRUE(run([&] {
      return sides_[0].path->state() == fabric::PathState::ready &&
             sides_[1].path->state() == fabric::PathState::ready;
    }));
  }
  void make_path(VerbsSide& side, bool active) {
    fabric::PathOptions options;
    options.active = active;
    options.receives_spare = spare;
    options.flushes_max = flushes_ ? 32 : 0;
    options.connect_limit = connect_limit_;
    auto path = side.port->create_path(options, side.gid, &side.owner);
    ASSERT_TRUE(path) << path.error().message();
    side.path = std::move(*path);
    ASSERT_TRUE(run([&] { return side.path->address_ready(); }));
  }
  /// Nobody but the devices runs, and side 0 if `polls`.
  void run_devices(Duration time, bool polls = false) {
    for (const Instant end = clock_.now() + time; clock_.now() < end;
         clock_.advance(std::chrono::microseconds(1))) {
      network_.advance();
      for (VerbsSide& side : sides_) {
        static_cast<void>(side.device->conductor().pump(clock_.now()));
      }
      if (polls) {
        sides_[0].port->poll(clock_);
      }
    }
  }
  /// Turns both sides until `done`, or for `limit` of virtual time; in bigger steps where that is
  /// long, as millions of turns take their time under a sanitizer.
  bool run(const std::function<bool()>& done, Duration limit = std::chrono::seconds(1)) {
    const Duration step = std::chrono::microseconds(limit > std::chrono::seconds(1) ? 200 : 1);
    for (const Instant end = clock_.now() + limit; !done(); clock_.set(clock_.now() + step)) {
      if (clock_.now() >= end) {
        return false;
      }
      network_.advance();
      for (VerbsSide& side : sides_) {
        static_cast<void>(side.device->conductor().pump(clock_.now()));
        side.port->poll(clock_);
        side.timers.expire(clock_.now());
      }
    }
    return true;
  }
  void post_receives(VerbsSide& side, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(side.path->post_receive(), Errc::ok);
    }
    run([] { return false; },
        std::chrono::microseconds(10));  // the device has all but those held back
  }
  size_t flushed(const VerbsSide& side) const {
    return side.owner.count(fabric::CompletionKind::receive_immediate,
                            fabric::CompletionStatus::flushed);
  }
  static Error reason() { return fail(Errc::remote, "the test wants it"); }

  static constexpr uint32_t spare = 16;  ///< receives that the peer never uses
  static sim::Ip address(uint8_t host) { return sim::ip(10, 0, 0, host); }
  ManualClock clock_;
  sim::Network network_{clock_, 3};
  sim::RdmaNic::Conditions conditions_;
  bool flushes_ = true;
  Duration connect_limit_{};
  std::array<sim::DeviceTraits, 2> traits_;
  std::array<VerbsSide, 2> sides_;
};

}  // namespace nccl_ha::test
