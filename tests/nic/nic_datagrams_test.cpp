// Datagrams over UD queue pairs of emulated NICs: what waits for a device, and what does not.
#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/data_turn.h"
#include "runtime/fabric/verbs/ud_io.h"
#include "tests/nic/nic_product.h"

namespace nccl_ha::test {
namespace {

using emulated::Control;
using fabric::Channel;

/// Of the first port of each device.
struct UdEnds {
  explicit UdEnds(std::vector<verbs::UsablePort> of = ports_of({})) : ports(std::move(of)) {
    for (const verbs::UsablePort& port : ports) {
      verbs::UdIo::Route route;
      route.gid = *verbs::gid_preference({}, port.info);
      auto opened = verbs::UdIo::open(port.device, route, {});
      EXPECT_TRUE(opened) << opened.error().message();
      ends.push_back(std::move(*opened));
    }
  }
  /// From the first one to the second one.
  void send() {
    std::array<char, 64> bytes{};
    iovec part{bytes.data(), bytes.size()};
    const fabric::SocketAddress to = ends.at(1)->local(Channel::data);
    fabric::OutDatagram out{&to, &part, 1, 0, false};
    EXPECT_EQ(ends[0]->send(Channel::data, std::span(&out, 1)), 1U);
  }

  std::vector<verbs::UsablePort> ports;
  std::vector<std::unique_ptr<fabric::PacketIo>> ends;
};

// A neighbour that is not known yet, or firmware, takes its time.
TEST(NicDatagrams, AWorkerWaitsForNoAddressHandle) {
  with_nic("devices=2,cost.create_ah=1s", [](Control& control) {
    UdEnds pair;
    const DataTurn turn;
    const auto start = std::chrono::steady_clock::now();
    double longest = 0;
    while (control.device(1, 0).counters.packets.load() == 0 && seconds_since(start) < 10) {
      const auto before = std::chrono::steady_clock::now();
      pair.send();
      longest = std::max(longest, seconds_since(before));
      poll(nullptr, 0, 1);
    }
    EXPECT_GT(control.device(1, 0).counters.packets.load(), 0U) << "there is a way by then";
    EXPECT_GE(seconds_since(start), 1) << "it took its time";
    EXPECT_LT(longest, 0.5);
  });
}

// It may be of another port, or of an address that no queue pair has.
TEST(NicDatagrams, AnEventThatChangesNoAddressOfThePortLeavesTheQueuePairs) {
  with_nic("devices=2", [](Control& control) {
    WatchedPair pair({});
    const verbs::Device& device = *pair.ports[1].device;
    UdEnds ends(pair.ports);
    fabric::PacketIo& io = *ends.ends[1];
    EXPECT_FALSE(io.broken());
    control.raise({1, 1, 1, IBV_EVENT_GID_CHANGE, 0, 0});
    ASSERT_TRUE(pair.until([&] { return device.address_changes.load() == 1; }));
    EXPECT_TRUE(pair.until([&] { return !io.broken(); }));
    control.raise({1, 1, 1, IBV_EVENT_LID_CHANGE, 0, 0});
    ASSERT_TRUE(pair.until([&] { return device.address_changes.load() == 2; }));
    EXPECT_TRUE(pair.until([&] {
      io.tick(SteadyClock().now());
      return !io.broken();
    }));
    control.raise({1, 1, 1, IBV_EVENT_PKEY_CHANGE, 0, 0});
    ASSERT_TRUE(pair.until([&] { return device.partition_changes.load() == 1; }));
    EXPECT_FALSE(pair.until([&] { return !io.broken(); }, 0.3)) << "nobody knows which key it was";
  });
}

}  // namespace
}  // namespace nccl_ha::test
