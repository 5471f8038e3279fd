#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "plugin/device_list.h"
#include "runtime/fabric/interfaces.h"
#include "runtime/fabric/port_halves.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::plugin {
namespace {

class DeviceListTest : public testing::Test {
 protected:
  DeviceListTest() {
    for (const char* name : {"mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1", "mlx5_4:1"}) {
      fabric::NetDevice device;
      device.name = name;
      device.netdev = "eth" + std::to_string(all_.size());
      device.pci_path = "/sys/devices/pci0000:00/" + device.netdev;
      device.speed_mbps = 100000 * static_cast<int64_t>(all_.size() + 1);
      all_.push_back(device);
    }
  }
  Result<void> pair(const char* sout, const char* sup) {
    config_.mpib_hca_sout = sout;
    config_.mpib_hca_sup = sup;
    return begin();
  }
  /// As after the library was loaded anew.
  Result<void> begin() {
    list_.end();
    return list_.begin(config_, all_);
  }
  Result<int> merge(std::vector<int> members) { return list_.merge(members); }

  Config config_;
  std::vector<fabric::NetDevice> all_;
  DeviceList list_;
};

TEST_F(DeviceListTest, EachDeviceIsOneUnlessSomebodySaysOtherwise) {
  ASSERT_TRUE(begin());
  ASSERT_EQ(list_.count(), 5U);
  for (int i = 0; i < 5; ++i) {
    const auto device = list_.find(i);
    EXPECT_EQ(device->rails, fabric::RailDevices(static_cast<size_t>(i)));
    EXPECT_EQ(device->members, std::vector<int>{i}) << "a plain device is its own only member";
  }
  EXPECT_FALSE(list_.find(5));
  EXPECT_FALSE(list_.find(-1));
}

TEST_F(DeviceListTest, PortsOfACardAreCounted) {
  for (size_t i = 0; i < all_.size(); ++i) {
    all_[i].guid = i < 3 ? 7 : i;  // the first three are functions of one card
  }
  ASSERT_TRUE(begin());
  for (const auto& [device, port] : {std::pair{0, 1}, {1, 2}, {2, 3}, {3, 1}, {4, 1}}) {
    EXPECT_EQ(list_.find(device)->port, port) << device;
  }
  ASSERT_TRUE(merge({2, 0}));
  EXPECT_EQ(list_.find(5)->port, 3);
}

TEST_F(DeviceListTest, SoutAndSupAreOneDeviceInThePlaceOfSout) {
  ASSERT_TRUE(pair("mlx5_1", "mlx5_0"));
  ASSERT_EQ(list_.count(), 4U);
  const auto device = list_.find(0);
  EXPECT_EQ(device->name, "mlx5_1:1+mlx5_0:1");
  EXPECT_EQ(device->rails.first(), 1U);
  EXPECT_EQ(device->rails.devices[1], 0U);
  EXPECT_EQ(device->rails.count, 2U);
  EXPECT_TRUE(device->rails.sout_and_sup);
  EXPECT_EQ(device->speed_mbps, 300000);
  EXPECT_EQ(device->members, std::vector<int>{0});
  EXPECT_EQ(list_.find(1)->name, "mlx5_2:1");
  EXPECT_EQ(list_.find(1)->members, std::vector<int>{1});
}

TEST_F(DeviceListTest, TheyAreNamedByDevicePortOrInterface) {
  for (const auto& [sout, sup] : {std::pair("mlx5_3:1", "eth4"), std::pair("eth3", "mlx5_4")}) {
    ASSERT_TRUE(pair(sout, sup));
    EXPECT_EQ(list_.find(3)->name, "mlx5_3:1+mlx5_4:1");
  }
}

TEST_F(DeviceListTest, AWrongNameIsAnErrorThatSaysWhatThereIs) {
  const auto missing = pair("mlx5_0", "mlx5_9");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message().find("HA_NCCL_HCA_SUP=mlx5_9"), std::string::npos);
  EXPECT_NE(missing.error().message().find("mlx5_4:1"), std::string::npos);
  EXPECT_FALSE(pair("mlx5_0", ""));
  EXPECT_FALSE(pair("", "mlx5_0"));
  EXPECT_FALSE(pair("mlx5_0", "eth0")) << "both are the same";
}

TEST_F(DeviceListTest, APairWithoutFailoverIsRefused) {
  config_.enable_backup = false;
  const auto refused = pair("mlx5_0", "mlx5_4");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("HA_NCCL_ENABLE_BACKUP=1"), std::string::npos);
}

/// As on GB10: two ports, each behind two PCI functions.
std::vector<fabric::NetDevice> two_split_ports() {
  std::vector<fabric::NetDevice> all;
  for (const auto& [name, port, slot] : {std::tuple("rocep1s0f0", "p0", "0000:01:00.0"),
                                         std::tuple("rocep1s0f1", "p1", "0000:01:00.1"),
                                         std::tuple("roceP2p1s0f0", "p0", "0002:01:00.0"),
                                         std::tuple("roceP2p1s0f1", "p1", "0002:01:00.1")}) {
    fabric::NetDevice device;
    device.name = name;
    device.pci_path = std::string("/sys/devices/") + slot;
    device.switch_id = "4cbb:4700:0001:0203";
    device.port_name = port;
    device.speed_mbps = 100000;
    all.push_back(device);
  }
  return all;
}

TEST_F(DeviceListTest, HalvesOfOnePortAreOneDevice) {
  all_ = two_split_ports();
  ASSERT_TRUE(begin());
  ASSERT_EQ(list_.count(), 2U);
  EXPECT_EQ(list_.find(0)->name, "rocep1s0f0+roceP2p1s0f0");
  EXPECT_EQ(list_.find(0)->rails.devices[1], 2U);
  EXPECT_FALSE(list_.find(0)->rails.sout_and_sup) << "chunks go where they arrive first";
  EXPECT_EQ(list_.find(0)->speed_mbps, 200000);
  EXPECT_EQ(list_.find(1)->name, "rocep1s0f1+roceP2p1s0f1");
  EXPECT_EQ(list_.find(1)->members, std::vector<int>{1});
  EXPECT_FALSE(merge({0, 1})) << "they are several already";
}

TEST_F(DeviceListTest, APortIsFoundByTheNicBeneathWhichComesFirst) {
  all_ = two_split_ports();
  for (fabric::NetDevice& device : all_) {
    device.netdev = "net-" + device.name;
  }
  ASSERT_TRUE(begin());
  const auto rails_of = [&](const char* nic) {
    std::vector<std::string> names;
    const auto found = fabric::rails_at(list_.ports(), all_, nic);
    for (size_t i = 0; found && i < found->count; ++i) {
      names.push_back(all_[found->devices[i]].name);
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(rails_of("net-rocep1s0f1"), (Names{"rocep1s0f1", "roceP2p1s0f1"}));
  EXPECT_EQ(rails_of("net-roceP2p1s0f0"), (Names{"roceP2p1s0f0", "rocep1s0f0"}));
  EXPECT_EQ(rails_of("eth0"), Names{});
  // SOUT stays the first one of its device.
  ASSERT_TRUE(pair("rocep1s0f0", "rocep1s0f1"));
  EXPECT_EQ(rails_of("net-rocep1s0f1"), (Names{"rocep1s0f0", "rocep1s0f1"}));
}

TEST_F(DeviceListTest, HalvesStayApartWhereThatIsWantedOrTheyAreNamed) {
  all_ = two_split_ports();
  config_.join_port_halves = false;
  ASSERT_TRUE(begin());
  EXPECT_EQ(list_.count(), 4U);
  config_.join_port_halves = true;
  config_.enable_backup = false;
  ASSERT_TRUE(begin());
  EXPECT_EQ(list_.count(), 4U) << "further rails need failover";
  config_.enable_backup = true;
  ASSERT_TRUE(pair("rocep1s0f0", "rocep1s0f1"));
  ASSERT_EQ(list_.count(), 3U);
  EXPECT_EQ(list_.find(0)->name, "rocep1s0f0+rocep1s0f1");
  EXPECT_TRUE(list_.find(0)->rails.sout_and_sup);
  EXPECT_EQ(list_.find(1)->name, "roceP2p1s0f0");
}

TEST_F(DeviceListTest, WhatIsNotKnownToShareAPortDoesNot) {
  const auto apart = [&](const std::function<void(fabric::NetDevice&)>& change) {
    all_ = two_split_ports();
    change(all_[2]);
    EXPECT_TRUE(begin());
    return list_.count() == 3;
  };
  EXPECT_TRUE(apart([](auto& device) { device.switch_id = "another"; }));
  EXPECT_TRUE(apart([](auto& device) { device.switch_id.clear(); }));
  EXPECT_TRUE(apart([](auto& device) { device.port_name.clear(); }));
  EXPECT_TRUE(apart([](auto& device) { device.port_name = "pf0vf1"; }));
  EXPECT_TRUE(apart([](auto& device) { device.pci_path = "/sys/devices/0000:01:00.0"; }));
  EXPECT_TRUE(apart([](auto& device) { device.pci_path.clear(); }));
  EXPECT_TRUE(apart([](auto& device) { device.port = 2; }));
  for (fabric::NetDevice& device : all_ = two_split_ports()) {
    device.port_name = "pf0vf0";  // two virtual functions of one name are no halves
    device.switch_id = "same";
  }
  ASSERT_TRUE(begin());
  EXPECT_EQ(list_.count(), 4U);
}

TEST(PortIdentity, IsReadFromTheInterfaceOrFromTheRdmaDeviceOnTheSameFunction) {
  const tests::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  const auto write = [&](const std::string& file, const std::string& text) {
    const std::filesystem::path path = folder + "/net/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  };
  write("eth0/phys_port_name", "p1");
  write("eth0/device/infiniband/mlx5_0/sys_image_guid", "0000:0000:0000:0000");
  EXPECT_EQ(fabric::read_port_identity("eth0", folder).port_name, "p1");
  EXPECT_EQ(fabric::read_port_identity("eth0", folder).switch_id, "") << "no GUID";
  write("eth0/device/infiniband/mlx5_0/sys_image_guid", "4cbb:4700:0001:0203");
  EXPECT_EQ(fabric::read_port_identity("eth0", folder).switch_id, "4cbb:4700:0001:0203");
  write("eth0/phys_switch_id", "0302010000474bbc");
  EXPECT_EQ(fabric::read_port_identity("eth0", folder).switch_id, "0302010000474bbc");
  EXPECT_EQ(fabric::read_port_identity("eth1", folder).port_name, "");
}

TEST_F(DeviceListTest, WhatIsMergedIsAppendedAndItsMembersStay) {
  ASSERT_TRUE(begin());
  const auto two = merge({2, 0});
  ASSERT_TRUE(two);
  EXPECT_EQ(*two, 5);
  const auto four = merge({0, 1, 2, 3});
  ASSERT_TRUE(four);
  EXPECT_EQ(*four, 6);
  EXPECT_EQ(list_.count(), 7U);
  EXPECT_EQ(list_.find(5)->name, "mlx5_2:1+mlx5_0:1");
  EXPECT_EQ(list_.find(5)->members, (std::vector<int>{2, 0}));
  EXPECT_EQ(list_.find(5)->rails.first(), 2U);
  EXPECT_EQ(list_.find(5)->speed_mbps, 400000);
  EXPECT_FALSE(list_.find(5)->rails.sout_and_sup);
  EXPECT_EQ(list_.find(6)->rails.count, 4U);
  EXPECT_EQ(list_.find(0)->rails.count, 1U);
}

/// It has asked for their count once, and merges once for each time that it loads the library.
TEST_F(DeviceListTest, NumbersThatNcclKnowsStayForAsLongAsTheLibraryDoes) {
  ASSERT_TRUE(begin());
  ASSERT_EQ(*merge({2, 0}), 5);
  ASSERT_TRUE(list_.begin(config_, all_));
  EXPECT_EQ(list_.count(), 6U);
  EXPECT_EQ(list_.find(5)->name, "mlx5_2:1+mlx5_0:1");
  EXPECT_EQ(*merge({2, 0}), 5) << "the same once more";
  EXPECT_EQ(*merge({0, 2}), 6);
  const auto before = all_;
  all_.erase(all_.begin() + 1);
  const auto fewer = list_.begin(config_, all_);
  ASSERT_FALSE(fewer);
  EXPECT_NE(fewer.error().what.find(before[1].name), std::string::npos) << fewer.error().what;
  EXPECT_EQ(list_.count(), 7U);
  EXPECT_EQ(list_.find(1)->name, before[1].name);
  list_.end();
  ASSERT_TRUE(list_.begin(config_, all_));
  EXPECT_EQ(list_.count(), 4U);
}

TEST_F(DeviceListTest, WhatNcclCannotPlaceIsNotMerged) {
  all_[1].pci_path.clear();
  ASSERT_TRUE(begin());
  const auto refused = merge({0, 1});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("mlx5_1:1 is no PCI device"), std::string::npos);
  EXPECT_EQ(list_.count(), 5U);
  EXPECT_TRUE(merge({0, 2}));
}

TEST_F(DeviceListTest, WhatCannotBeMergedIsRefused) {
  ASSERT_TRUE(pair("mlx5_0", "mlx5_1"));
  EXPECT_FALSE(merge({}));
  EXPECT_FALSE(merge({1}));
  EXPECT_FALSE(merge({1, 1})) << "twice the same";
  EXPECT_FALSE(merge({1, 4})) << "there are four";
  EXPECT_FALSE(merge({-1, 1}));
  EXPECT_FALSE(merge({0, 1})) << "it is two already";
  EXPECT_FALSE(merge({1, 2, 3, 1, 2}));
  EXPECT_EQ(list_.count(), 4U);
  ASSERT_TRUE(merge({1, 2}));
  EXPECT_FALSE(merge({4, 3})) << "a merged one is no member";
}

}  // namespace
}  // namespace nccl_ha::plugin
