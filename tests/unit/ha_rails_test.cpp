#include <gtest/gtest.h>

#include "ha/rails.h"

namespace nccl_ha::ha {
namespace {

RailTerms terms(RailMode mode, std::array<uint8_t, 4> address, uint8_t prefix_len = 24) {
  RailTerms terms;
  terms.mode = mode;
  terms.rails = 2;
  terms.lanes = 4;
  terms.prefix_len = prefix_len;
  terms.family = 4;
  std::copy(address.begin(), address.end(), terms.address.begin());
  return terms;
}
RailTerms ipv6(uint8_t prefix_len, uint8_t network, uint8_t host) {
  RailTerms terms;
  terms.mode = RailMode::isolated;
  terms.rails = 2;
  terms.prefix_len = prefix_len;
  terms.family = 6;
  terms.address = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, network};
  terms.address[15] = host;
  return terms;
}

TEST(Rails, AnIslandIsWhatSharesAPrefix) {
  const auto here = terms(RailMode::isolated, {10, 0, 1, 1});
  EXPECT_EQ(classify(here, terms(RailMode::isolated, {10, 0, 1, 200})), PathClass::intra_island);
  EXPECT_EQ(classify(here, terms(RailMode::isolated, {10, 0, 2, 1})), PathClass::inter_island);
}

TEST(Rails, EachBitOfAPrefixCounts) {
  for (uint8_t bits = 1; bits <= 32; ++bits) {
    const auto one = terms(RailMode::isolated, {0, 0, 0, 0}, bits);
    for (uint8_t differs = 0; differs < 32; ++differs) {
      std::array<uint8_t, 4> address{};
      address[differs / 8] = static_cast<uint8_t>(0x80U >> (differs % 8));
      const auto other = terms(RailMode::isolated, address, bits);
      EXPECT_EQ(classify(one, other),
                differs < bits ? PathClass::inter_island : PathClass::intra_island)
          << "of " << int{bits} << " bits number " << int{differs};
    }
  }
}

TEST(Rails, WithoutAPrefixThereIsOneIsland) {
  EXPECT_EQ(classify(terms(RailMode::isolated, {10, 0, 1, 1}, 0),
                     terms(RailMode::isolated, {192, 168, 0, 1}, 0)),
            PathClass::intra_island);
  EXPECT_EQ(classify(terms(RailMode::isolated, {10, 0, 1, 1}, 0), ipv6(0, 0, 1)),
            PathClass::intra_island);
}

TEST(Rails, MoreBitsThanAnAddressHasAreAllOfThem) {
  const auto here = terms(RailMode::isolated, {10, 0, 1, 1}, 128);
  EXPECT_EQ(classify(here, here), PathClass::intra_island);
  EXPECT_EQ(classify(here, terms(RailMode::isolated, {10, 0, 1, 2}, 128)), PathClass::inter_island);
}

TEST(Rails, IPv6IsComparedByItsOwnBits) {
  EXPECT_EQ(classify(ipv6(64, 1, 1), ipv6(64, 1, 2)), PathClass::intra_island);
  EXPECT_EQ(classify(ipv6(64, 1, 1), ipv6(64, 2, 1)), PathClass::inter_island);
  EXPECT_EQ(classify(ipv6(64, 1, 1), terms(RailMode::isolated, {0x20, 0x01, 0x0d, 0xb8}, 24)),
            PathClass::inter_island)
      << "of another family";
}

TEST(Rails, BothMustTakeEachOtherForNeighbours) {
  const auto strict = terms(RailMode::isolated, {10, 0, 1, 1}, 24);
  const auto generous = terms(RailMode::isolated, {10, 0, 2, 1}, 16);
  EXPECT_EQ(classify(strict, generous), PathClass::inter_island);
  EXPECT_EQ(classify(generous, strict), PathClass::inter_island);
}

TEST(Rails, BetweenIslandsAnIsolatedHostMakesNoPathOverSup) {
  const auto here = terms(RailMode::isolated, {10, 0, 1, 1});
  const auto neighbour = terms(RailMode::isolated, {10, 0, 1, 2});
  const auto away = terms(RailMode::isolated, {10, 0, 2, 1});
  EXPECT_EQ(agree(here, neighbour, 8), (RailAgreement{PathClass::intra_island, 1, 4}));
  EXPECT_EQ(agree(here, away, 8), (RailAgreement{PathClass::inter_island, 0, 0}));
  auto hinted = away;
  hinted.mode = RailMode::hinted;
  EXPECT_EQ(agree(here, hinted, 8).rails, 0) << "whatever the other one wants";
  auto both = here;
  both.mode = RailMode::hinted;
  EXPECT_EQ(agree(both, hinted, 8), (RailAgreement{PathClass::inter_island, 1, 4}));
}

TEST(Rails, AgreementIsTheSameSeenFromEitherEnd) {
  for (uint8_t mode = 0; mode < rail_modes; ++mode) {
    for (uint8_t other = 0; other < rail_modes; ++other) {
      for (uint8_t rails = 1; rails <= device_rails_max; ++rails) {
        auto one = terms(static_cast<RailMode>(mode), {10, 0, 1, 1});
        auto two = terms(static_cast<RailMode>(other), {10, 0, rails, 1});
        one.rails = rails;
        two.lanes = 2;
        const auto agreed = agree(one, two, 5);
        EXPECT_EQ(agreed, agree(two, one, 5));
        EXPECT_LE(agreed.rails * agreed.lanes, 5);
        EXPECT_EQ(agreed.rails == 0, agreed.lanes == 0);
        EXPECT_LT(agreed.rails, rails);
      }
    }
  }
}

TEST(Rails, AHostWithOneRailGetsNone) {
  auto one = terms(RailMode::single, {10, 0, 1, 1});
  one.rails = 1;
  EXPECT_EQ(agree(one, terms(RailMode::isolated, {10, 0, 1, 2}), 8).rails, 0);
  EXPECT_EQ(agree(terms(RailMode::balanced, {10, 0, 1, 2}), one, 8).rails, 0);
}

TEST(Rails, SupIsNoRailThatAnotherHostHasMerged) {
  EXPECT_EQ(
      agree(terms(RailMode::hinted, {10, 0, 1, 1}), terms(RailMode::balanced, {10, 0, 1, 2}), 8)
          .rails,
      0);
}

TEST(Rails, TheFirstRailStandsByWhereIsolatedHostsHaveSup) {
  const RailAgreement sup{PathClass::intra_island, 1, 4};
  EXPECT_EQ(ranks_of(RailMode::isolated, sup), (RailRanks{1, 0, 2}));
  EXPECT_EQ(ranks_of(RailMode::hinted, sup), (RailRanks{0, 0, 1}));
  EXPECT_EQ(ranks_of(RailMode::balanced, sup), (RailRanks{0, 0, 1}));
  EXPECT_EQ(ranks_of(RailMode::isolated, {PathClass::inter_island, 0, 0}), (RailRanks{0, 0, 1}));
}

/// Seed 000, table 3.4, and 4.1 for the advanced mode.
TEST(Rails, ClearToSendsTakeSupWithinAnIslandInVanillaMode) {
  EXPECT_TRUE(announces_on_others(RailMode::isolated, {PathClass::intra_island, 1, 4}));
  EXPECT_FALSE(announces_on_others(RailMode::isolated, {PathClass::inter_island, 0, 0}));
  EXPECT_FALSE(announces_on_others(RailMode::hinted, {PathClass::intra_island, 1, 4}));
}

}  // namespace
}  // namespace nccl_ha::ha
