#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "runtime/fabric/interfaces.h"
#include "runtime/fabric/memory.h"
#include "tests/rig/sim/secrets.h"

namespace nccl_ha::fabric {
namespace {

TEST(Memory, ResolvesInsideTheRegionOnly) {
  Memory memory;
  std::vector<std::byte> bytes(100);
  auto key = memory.add(5, bytes.data(), bytes.size());
  ASSERT_TRUE(key);
  const auto base = reinterpret_cast<uint64_t>(bytes.data());
  EXPECT_EQ(memory.resolve(*key, 5, base, 100), bytes.data());
  EXPECT_EQ(memory.resolve(*key, 5, base + 99, 1), bytes.data() + 99);
  EXPECT_EQ(memory.resolve(*key, 5, base, 101), nullptr);
  EXPECT_EQ(memory.resolve(*key, 5, base - 1, 1), nullptr);
  EXPECT_EQ(memory.resolve(*key, 5, base + 101, 0), nullptr);
  EXPECT_EQ(memory.resolve(*key, 5, base + 50, UINT64_MAX), nullptr);
  EXPECT_EQ(memory.resolve(*key, 6, base, 1), nullptr) << "another domain";
  EXPECT_EQ(memory.resolve(*key + 1, 5, base, 1), nullptr);
  EXPECT_EQ(memory.resolve(0, 5, base, 1), nullptr);
}

TEST(Memory, ARemovedKeyStaysDeadWhenItsPlaceIsReused) {
  Memory memory;
  int value = 0;
  const auto base = reinterpret_cast<uint64_t>(&value);
  std::vector<uint32_t> keys;
  for (int i = 0; i < 5000; ++i) {
    auto key = memory.add(1, &value, sizeof value);
    ASSERT_TRUE(key);
    for (const uint32_t old : keys) {
      ASSERT_NE(old, *key);
    }
    ASSERT_TRUE(memory.remove(*key));
    EXPECT_EQ(memory.resolve(*key, 1, base, 4), nullptr);
    EXPECT_FALSE(memory.remove(*key)) << "twice";
    if (keys.size() < 100) {
      keys.push_back(*key);
    }
  }
  EXPECT_EQ(memory.size(), 0U);
  EXPECT_FALSE(memory.add(1, nullptr, 4));
  EXPECT_FALSE(memory.add(1, reinterpret_cast<void*>(UINT64_MAX - 1), 100)) << "wraps";
}

TEST(Memory, NoKeyTellsOfAnother) {
  constexpr size_t count = 512;
  std::vector<std::byte> bytes(1);
  const auto keys_of = [&](uint64_t seed) {
    sim::SimSecrets secrets(seed);
    Memory memory;
    memory.set_secrets(secrets);
    std::vector<uint32_t> keys;
    while (keys.size() < count) {
      keys.push_back(memory.add(1, bytes.data(), bytes.size()).value());
    }
    return keys;
  };
  const auto keys = keys_of(1);
  EXPECT_EQ(keys, keys_of(1));
  EXPECT_EQ(std::set<uint32_t>(keys.begin(), keys.end()).size(), count);
  const auto others = keys_of(2);
  size_t same = 0;
  std::map<uint32_t, size_t> apart;
  for (size_t i = 1; i < count; ++i) {
    same += keys[i] == others[i] ? 1U : 0U;
    ++apart[keys[i] - keys[i - 1]];
  }
  EXPECT_LE(same, 1U);
  for (const auto& [difference, often] : apart) {
    EXPECT_LE(often, 3U) << difference;
  }
}

TEST(Memory, RemoveWaitsForWhoeverIsStillInside) {
  // A worker uses the region inside its guard; the owner removes and poisons it.  The worker must
  // never see the poison while its key resolved.
  Memory memory;
  MemoryGuard guard;
  memory.attach(&guard);
  std::atomic<uint32_t> key{0};
  std::atomic<bool> stop{false};
  std::vector<int> region(256, 1);
  std::atomic<uint64_t> used{0};
  std::thread worker([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      guard.enter();
      auto* at = memory.resolve(key.load(std::memory_order_relaxed), 1,
                                reinterpret_cast<uint64_t>(region.data()), 1024);
      if (at != nullptr) {
        ++used;
        for (int i = 0; i < 256; ++i) {
          ASSERT_EQ(reinterpret_cast<int*>(at)[i], 1);
        }
      }
      guard.exit();
    }
  });
  // On a busy machine the worker may get its first turn late.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int round = 0;
       round < 2000 || (used.load() == 0 && std::chrono::steady_clock::now() < deadline); ++round) {
    auto added = memory.add(1, region.data(), 1024);
    key.store(*added, std::memory_order_relaxed);
    std::this_thread::yield();
    ASSERT_TRUE(memory.remove(*added));
    std::fill(region.begin(), region.end(), -1);
    std::fill(region.begin(), region.end(), 1);
  }
  stop.store(true);
  worker.join();
  memory.detach(&guard);
  EXPECT_GT(used.load(), 0U) << "the two never met";
}

NetInterface make(const char* name, const char* address, uint8_t prefix, bool up = true) {
  NetInterface interface;
  interface.name = name;
  interface.up = up;
  interface.loopback = interface.name == "lo";
  IpAddress ip;
  sscanf(address, "%hhu.%hhu.%hhu.%hhu", &ip.bytes[0], &ip.bytes[1], &ip.bytes[2], &ip.bytes[3]);
  ip.prefix_len = prefix;
  interface.addresses.push_back(ip);
  return interface;
}

std::string names(const Result<std::vector<NetInterface>>& list) {
  std::string out;
  if (!list) {
    return "error";
  }
  for (const NetInterface& interface : *list) {
    out += (out.empty() ? "" : " ") + interface.name;
  }
  return out;
}

TEST(Interfaces, FollowsNcclsRules) {
  std::vector<NetInterface> all{
      make("lo", "127.0.0.1", 8),        make("eth0", "10.0.0.1", 24),
      make("eth1", "10.0.1.1", 24),      make("eth10", "10.0.2.1", 24),
      make("docker0", "172.17.0.1", 16), make("ib0", "10.9.0.1", 24, false)};
  all[4].leads_to = LinkClass::internal;
  EXPECT_EQ(names(select_offered(all, "", "")), "eth0 eth1 eth10");
  EXPECT_EQ(names(select_offered(all, "eth1", "")), "eth1 eth10") << "a prefix";
  EXPECT_EQ(names(select_offered(all, "=eth1", "")), "eth1");
  EXPECT_EQ(names(select_offered(all, "^eth1", "")), "eth0");
  EXPECT_EQ(names(select_offered(all, "^=eth1", "")), "eth0 eth10");
  EXPECT_EQ(names(select_offered(all, "lo", "")), "lo");
  EXPECT_EQ(names(select_offered(all, "eth0:5000,docker", "")), "eth0 docker0");
  EXPECT_EQ(names(select_offered(all, "ib0", "")), "error") << "it is down";
  EXPECT_EQ(names(select_offered(all, "", "AF_INET6")), "error");
  EXPECT_EQ(names(select_offered({make("lo", "127.0.0.1", 8)}, "", "")), "lo");
  auto missing = select_interfaces(all, "nope", "");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().what.find("eth0 (10.0.0.1)"), std::string::npos);
  EXPECT_NE(missing.error().what.find("ib0 (10.9.0.1, down)"), std::string::npos);
  EXPECT_EQ(select_interfaces(all, "", "IPv4").code(), Errc::invalid_argument);
}

TEST(Interfaces, SubnetsAndAddresses) {
  const IpAddress a = make("a", "10.1.2.3", 24).addresses[0];
  EXPECT_TRUE(a.same_subnet(make("b", "10.1.2.200", 24).addresses[0]));
  EXPECT_FALSE(a.same_subnet(make("b", "10.1.3.3", 24).addresses[0]));
  IpAddress wide = a;
  wide.prefix_len = 0;
  EXPECT_TRUE(wide.same_subnet(make("b", "192.168.0.1", 24).addresses[0]));
  IpAddress six;
  six.family = 6;
  EXPECT_FALSE(wide.same_subnet(six));
  EXPECT_EQ(a.text(), "10.1.2.3");
  sockaddr_storage storage;
  a.to_sockaddr(99, &storage);
  auto back = IpAddress::from_sockaddr(reinterpret_cast<sockaddr*>(&storage));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->bytes, a.bytes);
}

TEST(Interfaces, ThisHostHasAtLeastLoopbackWithUniqueGuids) {
  auto all = list_interfaces();
  ASSERT_TRUE(all);
  ASSERT_FALSE(all->empty());
  for (size_t i = 0; i < all->size(); ++i) {
    EXPECT_NE((*all)[i].guid, 0U);
    EXPECT_GT((*all)[i].speed_mbps, 0);
    EXPECT_FALSE((*all)[i].addresses.empty());
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE((*all)[i].guid, (*all)[j].guid);
      EXPECT_NE((*all)[i].name, (*all)[j].name);
    }
  }
}

}  // namespace
}  // namespace nccl_ha::fabric
