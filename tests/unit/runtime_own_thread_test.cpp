#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "runtime/base/own_thread.h"

namespace nccl_ha {
namespace {

int niceness() { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); }

TEST(OwnThread, OneThatGivesPrecedenceLeavesOthersAsTheyAre) {
  const int before = niceness();
  int other = -1;
  std::thread([&] {
    give_precedence();
    other = niceness();
  }).join();
  EXPECT_EQ(other, std::max(before, 10));
  EXPECT_EQ(niceness(), before);
}

}  // namespace
}  // namespace nccl_ha
