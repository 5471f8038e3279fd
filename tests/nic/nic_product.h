// A port of the product's over an emulated NIC, and paths between two.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/secret.h"
#include "runtime/engine/engine.h"
#include "runtime/fabric/verbs/device_watch.h"
#include "runtime/fabric/verbs/port.h"
#include "runtime/fabric/verbs/port_list.h"
#include "runtime/fabric/verbs/verbs_path.h"
#include "tests/nic/nic_world.h"
#include "tests/support/path_harness.h"

namespace nccl_ha::test {

namespace verbs = fabric::verbs;
using fabric::PathOptions;
using fabric::PathState;

inline std::vector<verbs::UsablePort> ports_of(const Config& config) {
  auto list = verbs::list_ports(config);
  EXPECT_TRUE(list) << list.error().message();
  return list ? std::move(list->ports) : std::vector<verbs::UsablePort>();
}

/// A port of the product's, and paths over it.
struct ProductEnd {
  ProductEnd(const verbs::UsablePort& usable, const Config& its_config)
      : config(its_config), device(usable.device) {
    want = *verbs::gid_preference(config, usable.info);
    verbs::Port::Environment environment;
    environment.clock = &clock;
    environment.timers = &timers;
    environment.secrets = &kernel_secrets();
    port = std::move(*verbs::Port::open(usable, verbs::Options::from(config), environment));
  }
  std::unique_ptr<fabric::Path> make(bool active, bool flushes = true) {
    PathOptions options;
    options.active = active;
    options.writes_max = writes_max;
    options.flushes_max = flushes ? 32 : 0;
    options.traffic_class = 104;
    options.service_level = 3;
    auto path = port->create_path(options, want, &owner);
    EXPECT_TRUE(path) << path.error().message();
    while (path && !(*path)->address_ready() && (*path)->state() != PathState::error) {
      turn();
    }
    return path ? std::move(*path) : nullptr;
  }
  void turn() {
    port->poll(clock);
    timers.expire(clock.now());
  }

  Config config;
  uint32_t writes_max = PathOptions{}.writes_max;
  SteadyClock clock;
  TimerWheel timers{clock.now()};
  RecordingOwner owner;
  std::shared_ptr<verbs::Device> device;
  verbs::GidPreference want;
  std::shared_ptr<verbs::Port> port;
};

inline verbs::VerbsPath& of(const std::unique_ptr<fabric::Path>& path) {
  return static_cast<verbs::VerbsPath&>(*path);
}

/// From device 0 to device 1.
struct ProductPair {
  explicit ProductPair(const Config& config) : ports(ports_of(config)) {
    for (size_t i = 0; i < 2; ++i) {
      ends.push_back(std::make_unique<ProductEnd>(ports.at(i), config));
    }
    connect();
  }
  /// Paths between both, one more each time.
  void connect() {
    paths.push_back({ends[0]->make(false), ends[1]->make(true)});
    const auto& a = paths.back().first;
    const auto& b = paths.back().second;
    ASSERT_TRUE(a != nullptr && b != nullptr);
    ASSERT_TRUE(a->connect(b->local_address()));
    ASSERT_TRUE(b->connect(a->local_address()));
    EXPECT_TRUE(until([&] { return a->state() == PathState::ready; }));
  }
  bool until(const std::function<bool()>& done, double limit = 5) {
    for (const auto start = std::chrono::steady_clock::now(); !done();) {
      if (seconds_since(start) > limit) {
        return false;
      }
      for (auto& end : ends) {
        end->turn();
      }
    }
    return true;
  }

  std::vector<verbs::UsablePort> ports;
  std::vector<std::unique_ptr<ProductEnd>> ends;
  std::vector<std::pair<std::unique_ptr<fabric::Path>, std::unique_ptr<fabric::Path>>> paths;
};

/// Both devices' events are read.
struct WatchedPair : ProductPair {
  explicit WatchedPair(const Config& config) : ProductPair(config) {
    engine = std::move(*Engine::start(config));
    for (auto& end : ends) {
      EXPECT_TRUE(engine->worker(0).adopt(std::make_unique<verbs::DeviceWatch>(end->device)));
    }
  }
  bool fails(const std::unique_ptr<fabric::Path>& path) {
    return until([&] { return path->state() == PathState::error; }, 2);
  }
  std::unique_ptr<Engine> engine;
};

}  // namespace nccl_ha::test
