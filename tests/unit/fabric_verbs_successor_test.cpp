// Which device is the NIC that was there before.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "runtime/fabric/verbs/successor.h"

namespace nccl_ha::fabric::verbs {
namespace {

const NicIdentity before{"mlx5_1", 0xB1, "/sys/devices/pci0000:40/0000:41:00.1"};
const char* const other_slot = "/sys/devices/pci0000:40/0000:41:00.0";

std::optional<size_t> found(const std::vector<NicIdentity>& now) {
  return successor_of(before, now);
}

TEST(Successor, IsTheDeviceWithItsGuidWhateverItsNameAndPlaceInTheList) {
  const NicIdentity neighbour{"mlx5_0", 0xA1, other_slot};
  EXPECT_EQ(found({neighbour, before}), 1U);
  EXPECT_EQ(found({before, neighbour}), 0U);
  EXPECT_EQ(found({neighbour, {"mlx5_7", 0xB1, before.pci_path}}), 1U);
  EXPECT_EQ(found({{"mlx5_1", 0xA1, other_slot}, {"mlx5_0", 0xB1, before.pci_path}}), 1U)
      << "names are given anew";
  EXPECT_EQ(found({neighbour, {"mlx5_1", 0xB1, "/sys/devices/pci0000:80/0000:81:00.0"}}), 1U)
      << "buses are numbered anew";
}

TEST(Successor, IsNoOtherNic) {
  EXPECT_FALSE(found({}));
  EXPECT_FALSE(found({{"mlx5_0", 0xA1, other_slot}}));
  EXPECT_FALSE(found({{"mlx5_1", 0xA1, before.pci_path}})) << "another card in that slot";
  EXPECT_FALSE(found({{"mlx5_1", 0, other_slot}}));
  EXPECT_FALSE(found({{"mlx5_2", 0, before.pci_path}})) << "another sub-function of that device";
}

TEST(Successor, OfSeveralWithOneGuidIsTheOneInItsSlot) {
  EXPECT_EQ(found({{"mlx5_0", 0xB1, other_slot}, {"mlx5_1", 0xB1, before.pci_path}}), 1U);
}

TEST(Successor, OfSeveralInOneSlotIsTheOneWithItsName) {
  const NicIdentity on_vlan{"rxe1", 0x52, ""};
  EXPECT_EQ(successor_of(on_vlan, std::vector<NicIdentity>{{"rxe0", 0x52, ""}, on_vlan}), 1U);
}

TEST(Successor, WithoutAGuidIsTheOneWithItsNameInItsSlot) {
  EXPECT_EQ(found({{"mlx5_0", 0, other_slot}, {"mlx5_1", 0, before.pci_path}}), 1U);
  const NicIdentity software{"rxe0", 0, ""};
  const std::vector<NicIdentity> now{{"rxe1", 0, ""}, {"rxe0", 0x52, ""}};
  EXPECT_EQ(successor_of(software, now), 1U);
}

}  // namespace
}  // namespace nccl_ha::fabric::verbs
