// What tests of connections that share control streams have in common.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/rig/runs/link.h"
#include "tests/rig/runs/traffic.h"
#include "tests/rig/sim/world.h"

namespace nccl_ha::test {

inline Config sharing(bool on = true) {
  Config config;
  config.peer_sessions = on;
  return config;
}

/// Hears nothing that matters.
struct Unasked final : StreamOwner {
  void on_stream_open(Stream&) override {}
  void on_stream_data(Stream&, std::span<const std::byte>) override {}
  void on_stream_closed(Stream&, const Error&) override {}
};

/// Two hosts, whose connections all lead from the first to the second.
class SimSession : public testing::Test {
 protected:
  /// `rdma`: so many of the rails are those of RDMA NICs.
  void make_hosts(const Config& from, const Config& to, size_t rails = 1, size_t rdma = 0) {
    for (uint8_t host = 1; host <= 2; ++host) {
      std::vector<sim::Ip> addresses;
      for (size_t rail = 0; rail < rails; ++rail) {
        addresses.push_back(sim::ip(10, static_cast<uint8_t>(rail), 0, host));
      }
      hosts_.push_back(*world_.add_process(addresses, host == 1 ? from : to, rdma));
    }
  }
  void add_links(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      links_.push_back(std::make_unique<rig::SimLink>(world_, *hosts_[0], *hosts_[1]));
    }
  }
  bool all_connected() {
    bool all = true;
    for (const auto& link : links_) {
      all = link->step_connecting() && link->connected() && all;
    }
    return all;
  }
  void connect(size_t count) {
    add_links(count);
    ASSERT_TRUE(run_until([&] { return all_connected(); }, std::chrono::seconds(10)))
        << first_error();
  }
  /// On all connections at a time, every byte right.
  void expect_all_transfer() {
    rig::TransferPlan plan;
    plan.groups = 6;
    plan.bytes_max = 20000;
    std::vector<std::unique_ptr<rig::Traffic>> traffic;
    for (const auto& link : links_) {
      ++plan.seed;
      traffic.push_back(std::make_unique<rig::Traffic>(*link, plan));
    }
    EXPECT_TRUE(run_until(
        [&] {
          bool all = true;
          for (const auto& one : traffic) {
            all = one->step() && all;
          }
          return all;
        },
        std::chrono::seconds(30)));
    for (const auto& one : traffic) {
      EXPECT_EQ(one->outcome(), "");
    }
  }
  /// TCP connections that a host has.
  size_t streams(size_t host = 0) { return world_.network().tcp().held(hosts_[host]->addresses); }
  uint64_t streams_anew() const {
    uint64_t least = UINT64_MAX;
    for (const auto& link : links_) {
      least = std::min({least, link->sender().counters().streams_anew.get(),
                        link->receiver().counters().streams_anew.get()});
    }
    return least;
  }
  std::string first_error() const {
    for (const auto& link : links_) {
      if (link->failed()) {
        return link->error();
      }
    }
    return "none failed";
  }
  bool any_failed() const {
    return std::ranges::any_of(links_, [](const auto& link) { return link->failed(); });
  }
  bool run_until(const std::function<bool()>& done, Duration limit) {
    return world_.run_until(done, limit);
  }
  void pass(Duration time) {
    static_cast<void>(world_.run_until([] { return false; }, time));
  }
  void end_flows(bool reset) {
    for (size_t rail = 0; rail < hosts_[0]->addresses.size(); ++rail) {
      world_.network().tcp().end_flows(hosts_[0]->addresses[rail], hosts_[1]->addresses[rail],
                                       reset);
    }
  }

  sim::World world_{71};
  std::vector<sim::Process*> hosts_;
  std::vector<std::unique_ptr<rig::SimLink>> links_;
};

}  // namespace nccl_ha::test
