#include <gtest/gtest.h>

#include <set>

#include "runtime/fabric/datagram/path_table.h"
#include "tests/support/datagram_environment.h"

namespace nccl_ha::fabric {
namespace {

std::unique_ptr<DatagramPath> make_fallback(test::DatagramEnvironment& world) {
  PathOptions options;
  options.fallback = true;
  return world.make_path(options);
}

TEST(PathTable, FindsPathsByTheirPlaces) {
  test::DatagramEnvironment world;
  const auto first = world.make_path();
  const auto second = world.make_path();
  EXPECT_NE(first->id(), second->id());
  EXPECT_EQ(world.env.paths.at_place_of(first->id()), first.get());
  EXPECT_EQ(world.env.paths.at_place_of(second->id()), second.get());
  EXPECT_EQ(world.env.paths.at_place_of(2), nullptr) << "none was there yet";
  EXPECT_EQ(world.env.paths.size(), 2U);
}

TEST(PathTable, APlaceIsGivenAgainUnderAnotherNumber) {
  test::DatagramEnvironment world;
  auto path = world.make_path();
  const uint32_t place = path->id() & PathTable::index_mask;
  std::set<uint32_t> ids{path->id()};
  for (int i = 0; i < 100; ++i) {
    const uint32_t before = path->id();
    path.reset();
    EXPECT_EQ(world.env.paths.at_place_of(before), nullptr);
    path = world.make_path();
    EXPECT_EQ(path->id() & PathTable::index_mask, place);
    EXPECT_TRUE(ids.insert(path->id()).second) << "a number comes again too soon";
  }
}

TEST(PathTable, ThePlaceThatIsFreeForLongestIsNext) {
  test::DatagramEnvironment world;
  auto first = world.make_path();
  auto second = world.make_path();
  const uint32_t place = second->id() & PathTable::index_mask;
  second.reset();
  first.reset();
  EXPECT_EQ(world.make_path()->id() & PathTable::index_mask, place);
}

TEST(PathTable, KnowsWhetherAnyOfThemCarriesTraffic) {
  test::DatagramEnvironment world;
  EXPECT_TRUE(world.env.paths.only_fallbacks());
  const auto fallback = make_fallback(world);
  EXPECT_TRUE(world.env.paths.only_fallbacks());
  auto used = world.make_path();
  EXPECT_FALSE(world.env.paths.only_fallbacks());
  used.reset();
  EXPECT_TRUE(world.env.paths.only_fallbacks());
}

}  // namespace
}  // namespace nccl_ha::fabric
