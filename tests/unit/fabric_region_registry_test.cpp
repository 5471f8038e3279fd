#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "runtime/base/own_fd.h"
#include "runtime/fabric/region_registry.h"
#include "tests/support/until.h"

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
  Result<RegionKeys> on_other(const OpenedDevice& device, uint32_t key, bool key_is_local,
                              const RegionRegistry::Elsewhere& other,
                              const RegionRegistry::Make& make, Waits who = Waits::caller) {
    return book_.on_other(device, key, key_is_local, other, who, make,
                          [this](const RegionRegistry::Elsewhere& there, const RegionKeys& keys) {
                            from_.push_back(there);
                            taken_back_.push_back(keys);
                          });
  }
  /// A device that says when it has been asked, and waits until it may answer.
  struct Slow {
    RegionRegistry::Make make(Result<RegionKeys> answer) {
      return [this, answer](const RegionOrigin&) {
        begun.set_value();
        answers.get_future().wait();
        return answer;
      };
    }
    std::promise<void> begun;
    std::promise<void> answers;
  };
  RegionRegistry book_;
  std::vector<RegionRegistry::Elsewhere> from_;
  std::vector<RegionKeys> taken_back_;  ///< from there
  int made_ = 0;
  RegionOrigin last_;
};

TEST_F(RegionBookTest, RegistersElsewhereOnceWhoeverAsks) {
  int memory = 0;
  book_.add(0, {10, 11, 0}, {&memory, sizeof memory, false, -1, 0});
  const auto by_local = on_other(0, 10, true, {1, 0}, make(70));
  ASSERT_TRUE(by_local);
  EXPECT_EQ(by_local->remote_key, 71U);
  EXPECT_EQ(last_.base, &memory);
  const auto by_remote = on_other(0, 11, false, {1, 0}, make(80));
  ASSERT_TRUE(by_remote);
  EXPECT_EQ(by_remote->local_key, 70U);
  EXPECT_EQ(made_, 1);
  ASSERT_TRUE(on_other(0, 10, true, {2, 0}, make(90)));
  EXPECT_EQ(made_, 2) << "another device";
  ASSERT_TRUE(on_other(0, 10, true, {2, 5}, make(100)));
  EXPECT_EQ(on_other(0, 10, true, {2, 6}, make(110))->local_key, 110U)
      << "another connection's part of a table";
}

TEST_F(RegionBookTest, TheLastUserGivesBackWhatWasMadeElsewhere) {
  book_.add(0, {10, 11, 0}, {nullptr, 4, false, -1, 0});
  book_.add(0, {10, 11, 0}, {nullptr, 4, false, -1, 0});
  ASSERT_TRUE(on_other(0, 10, true, {1, 0}, make(70)));
  EXPECT_TRUE(book_.remove(0, 10).empty()) << "somebody still uses it";
  const auto elsewhere = book_.remove(0, 10);
  ASSERT_EQ(elsewhere.size(), 1U);
  EXPECT_EQ(elsewhere[0].first.at.device, 1U);
  EXPECT_EQ(elsewhere[0].second.handle, 72U);
  EXPECT_FALSE(on_other(0, 10, true, {1, 0}, make(70)));
  EXPECT_FALSE(on_other(0, 11, false, {1, 0}, make(70)));
  EXPECT_TRUE(book_.remove(0, 10).empty());
}

TEST_F(RegionBookTest, WhatComesInPlaceOfADeviceHasKeysOfItsOwn) {
  int memory = 0;
  const OpenedDevice first(0, 0);
  const OpenedDevice second(0, 1);
  const OpenedDevice third(0, 2);
  book_.add(first, {10, 11, 0}, {&memory, sizeof memory, false, -1, 0});
  EXPECT_FALSE(on_other(second, 10, true, {1, 0}, make(60))) << "the same number, another device";
  ASSERT_TRUE(on_other(first, 10, true, {second, 0}, make(70)));
  EXPECT_TRUE(taken_back_.empty());
  // What a later connection knows it by leads there as well.
  EXPECT_EQ(on_other(second, 70, true, {third, 0}, make(80))->local_key, 80U);
  ASSERT_EQ(taken_back_.size(), 1U) << "nothing is reached by the one before any more";
  EXPECT_EQ(from_[0].at, second);
  EXPECT_EQ(taken_back_[0].handle, 72U);
  EXPECT_EQ(on_other(third, 81, false, {1, 0}, make(90))->local_key, 90U);
  EXPECT_EQ(on_other(second, 70, true, {third, 0}, make(60))->local_key, 80U) << "again";
  EXPECT_EQ(on_other(second, 71, false, {1, 0}, make(60))->local_key, 90U);
  const auto left = book_.remove(first, 10);
  EXPECT_EQ(std::ranges::count_if(left, [](const auto& one) { return one.second.handle != 0; }), 2)
      << "what was taken back is not taken back twice";
  EXPECT_FALSE(on_other(third, 80, true, {1, 0}, make(100)));
}

TEST_F(RegionBookTest, NamesOfADeviceThatIsGoneStayForWhoKnowsMemoryByThem) {
  const OpenedDevice gone(0, 0);
  const OpenedDevice later(0, 1);
  book_.add(later, {10, 11, 5}, {nullptr, 4, false, -1, 0});
  const auto name = [](const RegionOrigin&) -> Result<RegionKeys> { return RegionKeys{9, 9, 0}; };
  ASSERT_TRUE(on_other(later, 10, true, {gone, 0}, name));
  ASSERT_TRUE(on_other(gone, 9, true, {OpenedDevice(0, 2), 0}, make(70)));
  EXPECT_TRUE(on_other(gone, 9, true, {1, 0}, make(80)));
  EXPECT_TRUE(taken_back_.empty());
}

TEST_F(RegionBookTest, AFailureIsPassedOnAndTriedAgain) {
  book_.add(0, {10, 11, 0}, {nullptr, 4, false, -1, 0});
  const auto refused = on_other(0, 10, true, {1, 0}, [](const RegionOrigin&) -> Result<RegionKeys> {
    return fail(Errc::no_memory, "no");
  });
  EXPECT_EQ(refused.code(), Errc::no_memory);
  EXPECT_TRUE(on_other(0, 10, true, {1, 0}, make(70)));
}

/// As one does whose firmware hangs.
TEST_F(RegionBookTest, ADeviceThatTakesLongHoldsUpWhoNeedsThatRegionOnly) {
  book_.add(0, {10, 11, 0}, {nullptr, 4, false, -1, 0});
  book_.add(0, {20, 21, 0}, {nullptr, 4, false, -1, 0});
  Slow slow;
  std::thread first([&] {
    EXPECT_EQ(on_other(0, 10, true, {1, 0}, slow.make(RegionKeys{70, 71, 72}))->handle, 72U);
  });
  slow.begun.get_future().wait();
  EXPECT_TRUE(on_other(0, 20, true, {1, 0}, make(80))) << "another region";
  EXPECT_TRUE(on_other(0, 10, true, {2, 0}, make(90))) << "another device";
  book_.add(0, {30, 31, 0}, {nullptr, 4, false, -1, 0});
  EXPECT_EQ(book_.remove(0, 20).size(), 1U);
  std::promise<pid_t> asks;
  std::atomic<int> through{0};
  std::thread same([&] {
    asks.set_value(gettid());
    EXPECT_EQ(on_other(0, 11, false, {1, 0}, make(100))->handle, 72U) << "made twice";
    ++through;
    EXPECT_EQ(book_.remove(0, 10).size(), 2U) << "it is not given back";
    ++through;
  });
  const pid_t waits = asks.get_future().get();
  EXPECT_TRUE(test::until([&] { return test::sleeps(waits); }));
  EXPECT_EQ(through.load(), 0);
  slow.answers.set_value();
  first.join();
  same.join();
  EXPECT_EQ(through.load(), 2);
  EXPECT_EQ(made_, 2);
}

/// Who waits for another's registration hears why it came to nothing; a worker does not wait for
/// long.
TEST_F(RegionBookTest, AFailureIsToldToWhoeverWaitsAndAWorkerHasOthersToServe) {
  book_.add(0, {10, 11, 0}, {nullptr, 4, false, -1, 0});
  Slow slow;
  std::thread first([&] {
    const auto heard =
        on_other(0, 10, true, {1, 0}, slow.make(fail(Errc::timed_out, "it hangs", EBUSY)));
    EXPECT_EQ(heard.code(), Errc::timed_out);
  });
  slow.begun.get_future().wait();
  const auto start = std::chrono::steady_clock::now();
  const auto worker = on_other(0, 10, true, {1, 0}, make(80), Waits::worker);
  const auto took = std::chrono::steady_clock::now() - start;
  ASSERT_FALSE(worker);
  EXPECT_EQ(worker.error().sys, EBUSY);
  EXPECT_GE(took, RegionRegistry::worker_patience);
  EXPECT_LT(took, 10 * RegionRegistry::worker_patience);
  std::promise<pid_t> asks;
  std::thread same([&] {
    asks.set_value(gettid());
    const auto heard = on_other(0, 10, true, {1, 0}, make(80));
    EXPECT_EQ(heard.code(), Errc::timed_out);
    EXPECT_EQ(heard.error().sys, EBUSY);
  });
  const pid_t waits = asks.get_future().get();
  EXPECT_TRUE(test::until([&] { return test::sleeps(waits); }));
  slow.answers.set_value();
  first.join();
  same.join();
  EXPECT_TRUE(on_other(0, 10, true, {1, 0}, make(80)));
  EXPECT_EQ(made_, 1);
}

TEST_F(RegionBookTest, WhatIsTakenBackWhileADeviceRegistersItGoesFromThereToo) {
  const int fd = make_fd([] { return open("/dev/null", O_RDONLY | O_CLOEXEC); });
  book_.add(0, {10, 11, 0}, {nullptr, 4, true, fd, 0});
  std::promise<void> begun;
  std::promise<void> answers;
  std::thread registers([&] {
    EXPECT_EQ(on_other(0, 10, true, {1, 0},
                       [&](const RegionOrigin& origin) -> Result<RegionKeys> {
                         begun.set_value();
                         answers.get_future().wait();
                         EXPECT_EQ(fcntl(origin.dmabuf_fd, F_GETFD), FD_CLOEXEC);
                         return RegionKeys{70, 71, 72};
                       })
                  .code(),
              Errc::closed);
  });
  begun.get_future().wait();
  EXPECT_TRUE(book_.remove(0, 10).empty()) << "who frees memory does not wait for another device";
  book_.add(0, {10, 11, 0}, {nullptr, 8, false, -1, 0});
  answers.set_value();
  registers.join();
  ASSERT_EQ(taken_back_.size(), 1U);
  EXPECT_EQ(taken_back_[0].handle, 72U);
  EXPECT_EQ(fcntl(fd, F_GETFD), -1) << "the descriptor is left open";
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
