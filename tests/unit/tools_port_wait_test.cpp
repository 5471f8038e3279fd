#include <gtest/gtest.h>

#include "runtime/base/result.h"
#include "tools/relay/port_wait.h"

namespace nccl_ha::tools {
namespace {

/// Fails with that error the first times.
class Port {
 public:
  Port(int times, int error) : times_(times), error_(error) {}
  Result<int> open() {
    ++tried;
    return times_-- > 0 ? Result<int>(fail(Errc::system, "taken", error_)) : Result<int>(7);
  }
  int tried = 0;

 private:
  int times_;
  int error_;
};

TEST(PortWait, TriesAgainUntilThePortIsFree) {
  SteadyClock clock;
  PortWait wait(clock, std::chrono::seconds(60));
  Port port(3, EADDRINUSE);
  const auto opened = wait.open([&] { return port.open(); }, [] { return false; });
  ASSERT_TRUE(opened);
  EXPECT_EQ(*opened, 7);
  EXPECT_EQ(port.tried, 4);
}

TEST(PortWait, EndsWhereWaitingDoesNotHelp) {
  SteadyClock clock;
  PortWait patient(clock, std::chrono::hours(1));
  Port stays(1000000, EADDRINUSE);
  EXPECT_EQ(patient.open([&] { return stays.open(); }, [] { return true; }).error().sys,
            EADDRINUSE);
  EXPECT_EQ(stays.tried, 1);
  Port other(1000000, EACCES);
  EXPECT_EQ(patient.open([&] { return other.open(); }, [] { return false; }).error().sys, EACCES);
  EXPECT_EQ(other.tried, 1);
  PortWait over(clock, Duration(0));
  Port late(1000000, EADDRINUSE);
  EXPECT_FALSE(over.open([&] { return late.open(); }, [] { return false; }));
  EXPECT_EQ(late.tried, 1);
}

}  // namespace
}  // namespace nccl_ha::tools
