// What the product makes of the emulated NICs, in a process of its own: what it sees of devices,
// what it asks queue pairs for, and what it does when a single queue fails.
#include "tests/nic/nic_product.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/data_turn.h"
#include "runtime/fabric/datagram/udp_factory.h"
#include "runtime/fabric/provider.h"
#include "runtime/fabric/verbs/host_ports.h"
#include "runtime/fabric/verbs/rc_factory.h"
#include "runtime/fabric/verbs/ud_io.h"
#include "tests/support/log_lines.h"
#include "tests/support/own_time.h"

namespace nccl_ha::test {
namespace {

using emulated::Control;

constexpr unsigned host = 1;                     // with_nic()
constexpr size_t nccl_buffer = size_t{4} << 20;  ///< of a channel, as NCCL has it unless told

/// Null where it cannot be made.
std::unique_ptr<fabric::Provider> provider_over_verbs() {
  Config config;
  config.fabric = "verbs";
  auto made = fabric::Provider::make(config, {}, 1);
  EXPECT_TRUE(made) << made.error().message();
  return made ? std::move(*made) : nullptr;
}

ibv_qp_attr asked_of(const std::unique_ptr<fabric::Path>& path) {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};
  EXPECT_EQ(ibv_query_qp(of(path).queue_pair(), &attributes, IBV_QP_AV, &init), 0);
  return attributes;
}

TEST(NicProduct, AControlVerbInAWorkersTurnIsReported) {
  with_nic("devices=1", [](Control&) {
    const auto ports = ports_of({});
    ASSERT_FALSE(ports.empty());
    const verbs::Device& device = *ports.front().device;
    const auto asks = [&] {
      ibv_port_attr attributes{};
      return device.library().device.query_port(device.context(), 1, &attributes) == 0;
    };
    const LogLines log;
    EXPECT_TRUE(asks());
    EXPECT_EQ(log.count("on a progress thread"), 0U);
    const DataTurn turn;
#ifdef NHA_DASSERTS
    EXPECT_DEATH(static_cast<void>(asks()), "a control verb on a progress thread");
#else
    EXPECT_TRUE(asks());
    EXPECT_EQ(log.count("ibv_query_port on a progress thread"), 1U);
#endif
  });
}

TEST(NicProduct, EntriesOfOtherNamespacesAreLeftOut) {
  // With foreign_shown the kernel tells their type, and their interface is not here.
  for (const std::string shown : {"", ",foreign_shown"}) {
    with_nic("devices=2,foreign_gids=2" + shown, [&](Control&) {
      ProductPair pair({});
      for (const verbs::UsablePort& port : pair.ports) {
        ASSERT_EQ(port.info.gids.size(), 3U);
        EXPECT_EQ(port.info.gids[0].scope,
                  shown.empty() ? verbs::GidScope::hidden : verbs::GidScope::elsewhere);
        EXPECT_EQ(port.info.gids[2].scope, verbs::GidScope::here);
        EXPECT_EQ(port.info.netdev, "lo");
      }
      EXPECT_EQ(asked_of(pair.paths[0].first).ah_attr.grh.sgid_index, 2);
      fabric::NicBoard board;
      const verbs::HostPorts host_ports(pair.ports, 1, board);
      EXPECT_EQ(host_ports.address(0).text(), "10.1.0.2");
    });
  }
}

TEST(NicProduct, EntriesWithoutAnInterfaceAreTaken) {
  with_nic("devices=2,unknown_netdev", [](Control&) {
    ProductPair pair({});
    EXPECT_EQ(pair.ports[0].info.gids.at(0).scope, verbs::GidScope::here);
  });
}

TEST(NicProduct, SettingsReachTheQueuePairs) {
  with_nic("devices=2,foreign_gids=1,ece=7", [](Control&) {
    Config config;
    config.ib_pkey = 5;
    config.ib_gid_index = 1;
    ProductPair pair(config);
    for (const auto* path : {&pair.paths[0].first, &pair.paths[0].second}) {
      const ibv_qp_attr asked = asked_of(*path);
      EXPECT_EQ(asked.pkey_index, 5);
      EXPECT_EQ(asked.ah_attr.sl, 3);
      EXPECT_EQ(asked.ah_attr.grh.traffic_class, 104);
      EXPECT_EQ(asked.ah_attr.grh.sgid_index, 1);
    }
  });
}

TEST(NicProduct, WhoHasAwaitedAPathsStopHearsOfNothingMore) {
  with_nic("devices=2,cost.modify_qp=1ms", [](Control&) {
    std::optional<ProductPair> pair;
    Duration awaited{};
    do {  // who waited for as long as it would for a hung device has learned nothing
      pair.emplace(Config{});
      const auto& path = pair->paths[0].second;
      path->fail(fail(Errc::remote, "the test wants it"));
      const Instant before = SteadyClock().now();
      path->await_stop();
      awaited = SteadyClock().now() - before;
    } while (awaited >= std::chrono::milliseconds(10));
    const auto& path = pair->paths[0].second;
    ibv_qp_attr attributes{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(ibv_query_qp(of(path).queue_pair(), &attributes, IBV_QP_STATE, &init), 0);
    EXPECT_EQ(attributes.qp_state, IBV_QPS_ERR);
  });
}

/// Each command to it takes a minute, and opening it takes several.
TEST(NicProduct, ADeviceWhoseFirmwareHangsIsLeftOutAndTheOtherOneIsNotKeptWaiting) {
  with_nic("devices=2", [](Control& control) {
    const std::string hung = ports_of({}).at(0).info.device;
    const std::string healthy = ports_of({}).at(1).info.device;
    control.set_mode(host, 0, emulated::Mode::hung);
    const LogLines log;
    Config without;
    without.ib_hca = "^=" + hung;
    const uint64_t commands = control.device(host, 0).counters.verbs.load();
    EXPECT_EQ(verbs::list_ports(without)->ports.size(), 1U);
    EXPECT_EQ(control.device(host, 0).counters.verbs.load(), commands) << "it was opened";
    const auto start = std::chrono::steady_clock::now();
    const auto list = verbs::list_ports({}, std::chrono::milliseconds(1000));
    EXPECT_LT(seconds_since(start), 30) << "it waited for the firmware";
    EXPECT_GT(seconds_since(start), 1) << "the fault did not happen";
    ASSERT_TRUE(list) << list.error().message();
    ASSERT_EQ(list->ports.size(), 1U);
    EXPECT_EQ(list->ports[0].info.device, healthy);
    EXPECT_EQ(log.count("is left out: its firmware has not answered for 1 s"), 1U);
  });
}

/// Datagrams over Ethernet take over, where there is nothing else.
TEST(NicProduct, WhatIsNeitherInfiniBandNorRoceIsLeftOut) {
  for (const auto& [setting, why] : {std::pair("transport=iwarp", "its transport is not"),
                                     std::pair("link=unspecified", "its link layer is neither")}) {
    with_nic(std::string("devices=2,") + setting, [&, note = why](Control&) {
      int count = 0;
      ibv_free_device_list(ibv_get_device_list(&count));
      EXPECT_EQ(count, 2) << "they are there";
      const auto list = verbs::list_ports({});
      ASSERT_TRUE(list) << list.error().message();
      EXPECT_TRUE(list->ports.empty());
      EXPECT_TRUE(list->down.empty() && list->without_gid.empty()) << "there is nothing to mend";
      EXPECT_EQ(std::ranges::count_if(
                    list->notes,
                    [&](const std::string& one) { return one.find(note) != std::string::npos; }),
                2);
      fabric::NetInterface ethernet;
      ethernet.name = "ens5";
      ethernet.addresses.emplace_back().bytes = {10, 0, 0, 1};
      const auto provider = fabric::Provider::make({}, {ethernet}, 1);
      ASSERT_TRUE(provider) << provider.error().message();
      ASSERT_EQ((*provider)->devices().size(), 1U);
      EXPECT_EQ((*provider)->devices()[0].kind, fabric::datagram_kind);
    });
  }
}

TEST(NicProduct, TheGidIndexIsTakenAsItIsSet) {
  with_nic("foreign_gids=1", [](Control&) {
    Config config;
    config.ib_gid_index = 0;
    const auto ports = ports_of(config);
    ASSERT_EQ(ports.size(), 1U);
    verbs::PathEnds ends;
    ASSERT_TRUE(ends.look_up(*ports[0].device, 1, *verbs::gid_preference(config, ports[0].info)));
    EXPECT_EQ(ends.local().gid[15], 255) << "the other namespace's: whoever sets it may know why";
  });
}

TEST(NicProduct, EceIsNegotiatedUnlessItIsSwitchedOff) {
  for (const bool on : {true, false}) {
    with_nic("devices=2,ece=7", [&](Control&) {
      Config config;
      config.ib_ece = on;
      const ProductPair pair(config);
      EXPECT_EQ(of(pair.paths[0].first).ends().local().has_ece, on);
      EXPECT_EQ(of(pair.paths[0].second).ends().peer().has_ece, on);
    });
  }
}

TEST(NicProduct, IdentitiesAreThoseThatNcclReports) {
  with_nic("devices=2,ports=2,sub_functions,vf,xdr", [](Control&) {
    const auto ports = ports_of({});
    ASSERT_EQ(ports.size(), 4U);
    EXPECT_EQ(ports[0].info.guid, 0xfa4e'0000'0001'0000U) << "the card's, not the function's 0";
    EXPECT_EQ(ports[1].info.guid, ports[0].info.guid) << "a card's two ports";
    EXPECT_NE(ports[2].info.guid, ports[0].info.guid);
    EXPECT_EQ(ports[2].info.pci_path, "/sys/devices/pci0000:41/0000:41:00.0");
    EXPECT_EQ(ports[0].info.speed_mbps, 800'000);
  });
  with_nic("ib", [](Control&) {
    const auto ports = ports_of({});
    ASSERT_EQ(ports.size(), 1U);
    EXPECT_EQ(ports[0].info.speed_mbps, 400'000);
    EXPECT_EQ(ports[0].info.pci_path, "/sys/devices/pci0000:40/0000:40:00.0");
  });
}

TEST(NicProduct, APeerIsNamedWithItsSubnetWhereLidsRepeat) {
  with_nic("devices=2,ib", [](Control&) {
    const ProductPair pair({});
    fabric::FailureDomains domains;
    pair.paths[0].first->failure_domains(domains);
    const fabric::FailureDomain peer{fabric::FailureDomain::Kind::remote_nic,
                                     "LID 37 of subnet fe80000000000000"};
    EXPECT_TRUE(fabric::contains(domains, peer)) << domains.back().name;
  });
}

TEST(NicProduct, AnInfiniBandPortThatRequiresAGlobalRoutingHeaderGetsOne) {
  with_nic("devices=2,ib,grh", [](Control&) {
    ProductPair pair({});
    EXPECT_TRUE(pair.ports[0].info.global_only);
    for (const auto* path : {&pair.paths[0].first, &pair.paths[0].second}) {
      EXPECT_EQ((*path)->state(), PathState::ready) << "that to itself, for flushes, has one too";
      EXPECT_EQ(asked_of(*path).ah_attr.is_global, 1);
      EXPECT_NE(asked_of(*path).ah_attr.dlid, 0);
    }
  });
}

TEST(NicProduct, AnotherInfiniBandSubnetIsReachedByTheRouterThatThePeersGidNames) {
  with_nic("devices=2,ib,subnets", [](Control&) {
    ProductPair pair({});
    EXPECT_EQ(pair.paths[0].second->state(), PathState::ready);
    EXPECT_EQ(asked_of(pair.paths[0].first).ah_attr.dlid, 0xB001);
    EXPECT_EQ(asked_of(pair.paths[0].second).ah_attr.dlid, 0xB000);
  });
}

TEST(NicProduct, RetriesThatOutlastFailoverAreSaidAtInit) {
  with_nic("devices=2", [](Control&) {
    Config config;
    config.fabric = "verbs";
    for (const int64_t timeout : {14, 20}) {
      config.ib_timeout = timeout;
      const LogLines log;
      EXPECT_TRUE(fabric::Provider::make(config, {}, 1));
      EXPECT_EQ(log.count("RDMA NICs retry for 34359 ms or more"), timeout == 20 ? 1U : 0U)
          << log.text();
    }
  });
}

/// Neither before nor twice; usually within 10 ms (seeds/004, 5), with what commands of a ConnectX
/// take.
TEST(NicProduct, MemoryIsRegisteredWithAnotherDeviceWhenAPathGoesThere) {
  with_nic("devices=2,cost.reg_mr=100us,cost.reg_page=300ns", [](Control& control) {
    const auto provider = provider_over_verbs();
    ASSERT_TRUE(provider);
    const auto at = [&](size_t device) {
      return fabric::Attachment{device, provider->devices()[device].kind};
    };
    const auto commands = [&] { return control.device(host, 1).counters.verbs.load(); };
    const uint64_t before = commands();
    std::vector<std::byte> memory(9 * nccl_buffer);
    std::vector<fabric::Registration> own;
    for (size_t i = 0; i < 9; ++i) {
      const auto made =
          provider->add_memory(at(0), 1, memory.data() + i * nccl_buffer, nccl_buffer, false);
      ASSERT_TRUE(made) << made.error().message();
      own.push_back(*made);
    }
    EXPECT_EQ(commands(), before) << "perhaps no path ever goes there";
    std::vector<double> took;
    std::vector<double> took_ms;  // but for what other programs took
    std::vector<uint32_t> keys;
    for (const int time : {1, 2}) {
      for (size_t i = 0; i < own.size(); ++i) {
        const OwnTime own_time({getpid()});
        const auto start = std::chrono::steady_clock::now();
        const auto there = provider->keys_on(at(1), 1, at(0), own[i].remote_key, false);
        ASSERT_TRUE(there) << there.error().message();
        if (time == 1) {
          took.push_back(seconds_since(start));
          took_ms.push_back(own_time.ms());
          keys.push_back(there->remote_key);
        }
        EXPECT_EQ(there->remote_key, keys[i]);
      }
      EXPECT_EQ(commands(), before + own.size());
    }
    std::ranges::sort(took_ms);
    EXPECT_GT(std::ranges::min(took), 0.0004) << "1,024 pages";
    EXPECT_LT(took_ms[took_ms.size() / 2], 10);
    for (const fabric::Registration& one : own) {
      EXPECT_TRUE(provider->remove_memory(one));
    }
    EXPECT_EQ(commands(), before + 2 * own.size()) << "they are taken back there too";
  });
}

/// Workers have other connections, and callers paths over other devices.
TEST(NicProduct, ADeviceThatHangsHoldsUpNobodyForLongWhoRegistersMemory) {
  with_nic("devices=2", [](Control& control) {
    const auto provider = provider_over_verbs();
    ASSERT_TRUE(provider);
    const auto at = [&](size_t device) {
      return fabric::Attachment{device, provider->devices()[device].kind};
    };
    std::vector<std::byte> memory(nccl_buffer);
    const auto made = provider->add_memory(at(0), 1, memory.data(), memory.size(), false);
    ASSERT_TRUE(made) << made.error().message();
    control.set_mode(host, 1, emulated::Mode::hung);
    const auto asked = [&] { return control.device(host, 1).counters.verbs.load(); };
    const uint64_t before = asked();
    const auto pages = std::make_shared<Pages>(page_bytes);
    auto own = provider->own_memory(at(1), 1, {pages, pages->data()}, pages->size());
    EXPECT_TRUE(own) << own.error().message();
    own = Result<std::shared_ptr<fabric::OwnMemory>>(nullptr);
    EXPECT_EQ(asked(), before) << "nobody waits for the device";
    auto start = std::chrono::steady_clock::now();
    const auto there = provider->keys_on(at(1), 1, at(0), made->local_key, true);
    EXPECT_LT(seconds_since(start), 1) << "a worker";
    ASSERT_FALSE(there);
    EXPECT_EQ(there.error().sys, EBUSY) << there.error().message();
    start = std::chrono::steady_clock::now();
    const auto names = provider->add_memory(at(1), 1, memory.data(), memory.size(), false);
    EXPECT_GT(seconds_since(start), 3) << "it may be slow";
    EXPECT_LT(seconds_since(start), 10) << "each command takes a minute";
    ASSERT_TRUE(names) << names.error().message();
    EXPECT_EQ(names->handle, 0U) << "good for nothing";
    control.set_mode(host, 1, emulated::Mode::running);
    EXPECT_TRUE(provider->remove_memory(*names));
    EXPECT_TRUE(provider->remove_memory(*made));
  });
}

// More than a device has nobody promises, and what is promised can be had.
TEST(NicProduct, AsManyConnectionsAsArePromisedCanBeOpened) {
  const std::pair<const char*, size_t> limits[] = {
      {"max_qp=64", 14},             // 2 paths with 2 pairs each, one in 8 left
      {"max_mr=400", 14},            // 12 regions a path
      {"max_cq=7,max_cqe=1200", 6},  // 2 paths a queue
      {"max_qp=64,max_mr=100", 3}};  // the tightest one
  for (const auto& [setting, connections] : limits) {
    with_nic(std::string("devices=2,") + setting, [&, most = connections](Control&) {
      const Config config;
      auto usable = ports_of(config);
      ProductEnd end(usable.at(0), config);
      fabric::NicBoard board;
      fabric::FabricHost fabric_host;
      const verbs::RcFactory factory(
          config, fabric_host, std::make_shared<verbs::HostPorts>(std::move(usable), 1, board));
      const auto devices = factory.devices();
      ASSERT_EQ(devices.size(), 2U);
      EXPECT_EQ(factory.connections_max(devices[0], 65536), most);
      EXPECT_EQ(factory.connections_max(devices[0], 3), 3U);
      std::vector<std::unique_ptr<fabric::Path>> paths;
      std::vector<char> memory(1 << 16);
      for (size_t i = 0; i < 2 * most; ++i) {  // each with a shadow
        paths.push_back(end.make(true));
        ASSERT_NE(paths.back(), nullptr) << i;
        const auto connected = paths.back()->connect(paths.back()->local_address());
        ASSERT_TRUE(connected) << i << ": " << connected.error().message();
        for (size_t region = 0; region < 12; ++region) {
          const auto made = end.device->add(memory.data() + i, region + 1, verbs::MemoryKind::host);
          ASSERT_TRUE(made) << made.error().message();
        }
      }
    });
  }
}

TEST(NicProduct, AQueuePairThatFailsWithoutACompletionEndsItsPathAtOnce) {
  for (const ibv_event_type type :
       {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR}) {
    with_nic("devices=2", [&](Control& control) {
      WatchedPair pair({});
      pair.connect();
      const auto& [first, second] = pair.paths[0];
      const uint32_t number = of(first).queue_pair()->qp_num;
      control.raise({host, 0, 1, static_cast<uint32_t>(type), number, 1});
      EXPECT_TRUE(pair.fails(first)) << "nothing was posted, so that no silence tells";
      EXPECT_EQ(pair.paths[1].first->state(), PathState::ready) << "the one beside it";
      EXPECT_TRUE(pair.ends[0]->device->health.usable());
      pair.connect();
      EXPECT_EQ(pair.paths[2].first->state(), PathState::ready);
    });
  }
}

TEST(NicProduct, ACompletionQueueThatOverrunsEndsItsPathsAndNotTheDevice) {
  with_nic("devices=2", [](Control& control) {
    WatchedPair pair({});
    pair.ends[0]->writes_max = 64;  // a third one would have room in their queue
    pair.connect();
    control.raise({host, 0, 1, IBV_EVENT_CQ_ERR, 0, 0});
    EXPECT_TRUE(pair.fails(pair.paths[0].first));
    EXPECT_TRUE(pair.fails(pair.paths[1].first)) << "they share the queue";
    EXPECT_TRUE(pair.ends[0]->device->health.usable());
    pair.connect();  // over a queue of its own
    EXPECT_EQ(pair.paths[2].first->state(), PathState::ready);
  });
}

TEST(NicProduct, MemoryOfADeviceThatHangsIsLetGoWhenItIsThroughAndNobodyWaitsForThat) {
  with_nic("devices=1", [](Control& control) {
    const auto ports = ports_of({});
    verbs::Device& device = *ports.at(0).device;
    using Bytes = std::array<std::byte, 4096>;
    auto kept = std::make_shared<Bytes>();
    Bytes callers{};
    const std::weak_ptr<Bytes> alive = kept;
    const auto first = device.add(kept->data(), kept->size(), verbs::MemoryKind::host);
    const auto second = device.add(callers.data(), callers.size(), verbs::MemoryKind::host);
    ASSERT_TRUE(first && second);
    control.set_mode(host, 0, emulated::Mode::hung);
    const uint64_t commands = control.device(host, 0).counters.verbs.load();
    Bytes more{};
    std::thread registers(
        [&] { EXPECT_TRUE(device.add(more.data(), more.size(), verbs::MemoryKind::host)); });
    while (control.device(host, 0).counters.verbs.load() == commands) {
      std::this_thread::yield();
    }
    auto start = std::chrono::steady_clock::now();
    device.remove(*first, std::move(kept));
    EXPECT_LT(seconds_since(start), 1) << "the memory is its own, whoever registers another";
    EXPECT_TRUE(device.may_answer()) << "perhaps it is slow";
    start = std::chrono::steady_clock::now();
    device.remove(*second);
    EXPECT_GT(seconds_since(start), 3) << "it may be slow, and the memory is the caller's";
    EXPECT_LT(seconds_since(start), 10) << "each command takes a minute";
    EXPECT_FALSE(alive.expired()) << "the device may still write there";
    start = std::chrono::steady_clock::now();
    while (device.may_answer() && seconds_since(start) < 1) {
      std::this_thread::yield();  // the command may have begun a little later
    }
    EXPECT_FALSE(device.may_answer());
    control.set_mode(host, 0, emulated::Mode::running);
    start = std::chrono::steady_clock::now();
    while (!alive.expired() && seconds_since(start) < 5) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(alive.expired()) << "it is through";
    registers.join();
  });
}

// Such a driver says that the queue pair is destroyed, and how its port is, whatever the firmware
// does.
TEST(NicProduct, ADriverThatAnswersForItsFirmwareProvesNothing) {
  with_nic("devices=2,driver=bnxt_re,internal.writes=60s,internal.reset=60s", [](Control& control) {
    ProductPair pair({});
    const auto& path = pair.paths[0].second;
    static std::shared_ptr<verbs::Device> kept;  // what was not ended has its context
    kept = pair.ends[1]->device;
    verbs::Device& device = *kept;
    control.set_mode(host, 1, emulated::Mode::internal);
    ibv_port_attr attributes{};
    ASSERT_EQ(device.library().device.query_port(device.context(), 1, &attributes), 0);
    path->fail(fail(Errc::remote, "the test wants it"));
    const auto failed = [&] { return control.device(host, 1).counters.verbs_failed.load(); };
    EXPECT_TRUE(pair.until([&] { return failed() >= 5; })) << "stop and end of both, a question";
    EXPECT_FALSE(pair.until([&] { return of(path).fence_over(); }, 0.3)) << "it may still write";
    EXPECT_TRUE(device.health.usable()) << "nobody has said so yet";
    EXPECT_FALSE(device.answers()) << "who asks whether it lives";
    device.health.worsen(verbs::DeviceHealth::Level::gone);
    EXPECT_TRUE(pair.until([&] { return of(path).fence_over(); }));
  });
}

// The device has as many completion queues as it can have.
TEST(NicProduct, AQuestionThatADeviceHasNoRoomForIsAskedAgainSoonAndProvesNothing) {
  with_nic("devices=2,max_cq=2", [](Control& control) {
    ProductPair pair({});
    const auto& path = pair.paths[0].second;
    verbs::Device& device = *pair.ends[1]->device;
    const verbs::CompletionCalls& calls = device.library().completion;
    ibv_cq* last = calls.create_queue(device.context(), 16, nullptr, nullptr, 0);
    ASSERT_NE(last, nullptr);
    const auto commands = [&] { return control.device(host, 1).counters.verbs.load(); };
    const uint64_t before = commands();
    const auto start = std::chrono::steady_clock::now();
    path->fail(fail(Errc::remote, "the test wants it"));
    constexpr uint64_t ends = 4;  // two queue pairs stop and go, whatever is asked
    EXPECT_TRUE(pair.until([&] { return commands() >= before + ends + 5; }));
    EXPECT_FALSE(of(path).fence_over());
    EXPECT_LE(static_cast<double>(commands() - before - ends), seconds_since(start) / 0.02 + 3);
    EXPECT_TRUE(device.answers()) << "it lives, or nobody knows";
    EXPECT_TRUE(device.health.usable());
    ASSERT_EQ(calls.destroy_queue(last), 0);
    EXPECT_TRUE(pair.until([&] { return of(path).fence_over(); }));
    EXPECT_EQ(pair.ends[1]->port->statistics().fences_by_destroy, 1U);
  });
}

TEST(NicProduct, MemoryWhoseEndNobodyCouldAskAboutIsLetGoWithTheNextAnswer) {
  with_nic("devices=1,max_cq=1", [](Control&) {
    const auto ports = ports_of({});
    verbs::Device& device = *ports.at(0).device;
    const verbs::CompletionCalls& calls = device.library().completion;
    ibv_cq* last = calls.create_queue(device.context(), 16, nullptr, nullptr, 0);
    ASSERT_NE(last, nullptr) << "and there is no room for a question's";
    using Bytes = std::array<std::byte, 4096>;
    const auto let_go = [&] {
      auto kept = std::make_shared<Bytes>();
      const std::weak_ptr<Bytes> alive = kept;
      const auto region = device.add(kept->data(), kept->size(), verbs::MemoryKind::host);
      EXPECT_TRUE(region) << region.error().message();
      device.remove(*region, std::move(kept));
      EXPECT_TRUE(device.conductor().drain(std::chrono::seconds(5)));
      return alive;
    };
    const auto first = let_go();
    EXPECT_FALSE(first.expired()) << "the firmware may be dead";
    ASSERT_EQ(calls.destroy_queue(last), 0);
    const auto second = let_go();
    EXPECT_TRUE(second.expired());
    EXPECT_TRUE(first.expired()) << "it was ended before that";
  });
}

// Whoever used it last: its commands end after that, and so does it.
TEST(NicProduct, ADeviceEndsAfterTheLastThatUsedIt) {
  with_nic("devices=1", [](Control&) {
    const Config config;
    const auto descriptors = [] {
      return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
    };
    using User = std::function<std::shared_ptr<void>(const verbs::UsablePort&)>;
    const User datagrams = [&](const verbs::UsablePort& usable) {
      verbs::UdIo::Route route;
      route.port = usable.info.port;
      route.gid = *verbs::gid_preference(config, usable.info);
      auto io = verbs::UdIo::open(usable.device, route, verbs::Options::from(config));
      EXPECT_TRUE(io) << io.error().message();
      return std::shared_ptr<void>(io ? std::move(*io) : nullptr);
    };
    const User path = [&](const verbs::UsablePort& usable) {
      struct PathOfAPort {
        PathOfAPort(const verbs::UsablePort& its, const Config& config) : end(its, config) {}
        ProductEnd end;
        std::unique_ptr<fabric::Path> path = end.make(true);
      };
      return std::make_shared<PathOfAPort>(usable, config);
    };
    static_cast<void>(ports_of(config));  // what the process opens once
    const auto before = descriptors();
    for (const User& user : {datagrams, path}) {
      for (int i = 0; i < 20; ++i) {
        auto used = user(ports_of(config).at(0));
        EXPECT_TRUE(used != nullptr && descriptors() > before) << "a device has descriptors";
        used.reset();
        EXPECT_EQ(descriptors(), before) << "at " << i;
      }
    }
  });
}

}  // namespace
}  // namespace nccl_ha::test
