// Which changes of a host's RDMA devices a relay node begins anew for.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"
#include "tools/relay/rdma_devices.h"

namespace nccl_ha::tools {
namespace {

class RdmaDevicesTest : public testing::Test {
 protected:
  void SetUp() override {
    add("mlx5_0", "4: ACTIVE");
    add("mlx5_1", "1: DOWN");
  }
  std::filesystem::path at(const std::string& name) const {
    return std::filesystem::path(folder_.path()) / name;
  }
  void add(const std::string& name, const std::string& state) const {
    std::filesystem::create_directories(at(name) / "ports" / "1");
    std::ofstream(at(name) / "ports" / "1" / "state") << state << '\n';
  }
  /// As the node looks: until it has seen the same twice.
  static bool changed(RdmaDevices& devices) {
    static_cast<void>(devices.changed());
    return devices.changed();
  }

  const tests::TemporaryFolder folder_;
};

TEST_F(RdmaDevicesTest, ACableThatIsPulledOrNothingIsNoReason) {
  RdmaDevices devices(folder_.path());
  EXPECT_FALSE(changed(devices));
  add("mlx5_0", "1: DOWN");
  EXPECT_FALSE(changed(devices));
  add("mlx5_0", "4: ACTIVE");
  EXPECT_FALSE(changed(devices));
}

TEST_F(RdmaDevicesTest, OneThatHasGoneIsSeenTwice) {
  RdmaDevices devices(folder_.path());
  std::filesystem::remove_all(at("mlx5_0"));
  EXPECT_FALSE(devices.changed()) << "it may be in the middle";
  EXPECT_TRUE(devices.changed());
}

TEST_F(RdmaDevicesTest, OneThatHasComeCountsWhenItsPortIsActive) {
  RdmaDevices devices(folder_.path());
  add("mlx5_2", "2: INIT");
  EXPECT_FALSE(changed(devices)) << "a node that begins now would not use it";
  add("mlx5_2", "4: ACTIVE");
  EXPECT_TRUE(changed(devices));
}

TEST_F(RdmaDevicesTest, APortThatWasDownAtTheBeginningCounts) {
  RdmaDevices devices(folder_.path());
  add("mlx5_1", "4: ACTIVE");
  EXPECT_TRUE(changed(devices));
}

}  // namespace
}  // namespace nccl_ha::tools
