#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/base/own_fd.h"
#include "runtime/fabric/region_registry.h"

namespace nccl_ha::fabric {
namespace {

class RegionBookTest : public testing::Test {
 protected:
  /// Registers elsewhere; counts how often.
  RegionRegistry::Make make(uint32_t key) {
    return [this, key](const RegionOrigin& origin) -> Result<RegionKeys> {
      ++made_;
      last_ = origin;
      return RegionKeys{key, key + 1, key + 2};
    };
  }
  RegionRegistry book_;
  int made_ = 0;
  RegionOrigin last_;
};

TEST_F(RegionBookTest, RegistersElsewhereOnceWhoeverAsks) {
  int memory = 0;
  book_.add(0, {10, 11, 0}, {&memory, sizeof memory, false, -1, 0});
  const auto by_local = book_.on_other(0, 10, true, {1, 0}, make(70));
  ASSERT_TRUE(by_local);
  EXPECT_EQ(by_local->remote_key, 71U);
  EXPECT_EQ(last_.base, &memory);
  const auto by_remote = book_.on_other(0, 11, false, {1, 0}, make(80));
  ASSERT_TRUE(by_remote);
  EXPECT_EQ(by_remote->local_key, 70U);
  EXPECT_EQ(made_, 1);
  ASSERT_TRUE(book_.on_other(0, 10, true, {2, 0}, make(90)));
  EXPECT_EQ(made_, 2) << "another device";
  ASSERT_TRUE(book_.on_other(0, 10, true, {2, 5}, make(100)));
  EXPECT_EQ(book_.on_other(0, 10, true, {2, 6}, make(110))->local_key, 110U)
      << "another connection's part of a table";
}

TEST_F(RegionBookTest, TheLastUserGivesBackWhatWasMadeElsewhere) {
  book_.add(0, {10, 11, 0}, {nullptr, 4, false, -1, 0});
  book_.add(0, {10, 11, 0}, {nullptr, 4, false, -1, 0});
  ASSERT_TRUE(book_.on_other(0, 10, true, {1, 0}, make(70)));
  EXPECT_TRUE(book_.remove(0, 10).empty()) << "somebody still uses it";
  const auto elsewhere = book_.remove(0, 10);
  ASSERT_EQ(elsewhere.size(), 1U);
  EXPECT_EQ(elsewhere[0].first.device, 1U);
  EXPECT_EQ(elsewhere[0].second.handle, 72U);
  EXPECT_FALSE(book_.on_other(0, 10, true, {1, 0}, make(70)));
  EXPECT_FALSE(book_.on_other(0, 11, false, {1, 0}, make(70)));
  EXPECT_TRUE(book_.remove(0, 10).empty());
}

TEST_F(RegionBookTest, AFailureIsPassedOnAndTriedAgain) {
  book_.add(0, {10, 11, 0}, {nullptr, 4, false, -1, 0});
  const auto refused = book_.on_other(
      0, 10, true, {1, 0},
      [](const RegionOrigin&) -> Result<RegionKeys> { return fail(Errc::no_memory, "no"); });
  EXPECT_EQ(refused.code(), Errc::no_memory);
  EXPECT_TRUE(book_.on_other(0, 10, true, {1, 0}, make(70)));
}

TEST_F(RegionBookTest, ADescriptorLivesAsLongAsTheRegion) {
  const auto null = [] { return open("/dev/null", O_RDONLY | O_CLOEXEC); };
  const int fd = make_fd(null);
  const int second = make_fd(null);
  ASSERT_GE(fd, 0);
  book_.add(0, {10, 11, 0}, {nullptr, 4, true, fd, 8});
  book_.add(0, {10, 11, 0}, {nullptr, 4, true, second, 8});
  EXPECT_EQ(fcntl(second, F_GETFD), -1) << "one is enough";
  static_cast<void>(book_.remove(0, 10));
  EXPECT_NE(fcntl(fd, F_GETFD), -1);
  static_cast<void>(book_.remove(0, 10));
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
}

}  // namespace
}  // namespace nccl_ha::fabric
