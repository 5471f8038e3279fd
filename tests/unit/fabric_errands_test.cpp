// Errands run on threads of their own, or with the caller where there are none to be had.
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <new>
#include <thread>

#include "runtime/fabric/errands.h"

namespace nccl_ha::fabric {
namespace {

TEST(Errands, RunOnAnotherThread) {
  Errands errands(false);
  std::atomic<std::thread::id> where{};
  errands.add([&] { where = std::this_thread::get_id(); });
  ASSERT_TRUE(errands.drain(std::chrono::seconds(20)));
  EXPECT_NE(where.load(), std::thread::id());
  EXPECT_NE(where.load(), std::this_thread::get_id());
}

TEST(Errands, OneWithoutMemoryEndsNoThread) {
  Errands errands(false);
  bool ran = false;
  errands.add([] { throw std::bad_alloc(); });
  errands.add([&] { ran = true; });
  ASSERT_TRUE(errands.drain(std::chrono::seconds(20)));
  EXPECT_TRUE(ran);
}

// Sanitizers start threads in their own way and end the program where they cannot.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

TEST(Errands, WithoutAThreadTheCallerRunsThem) {
  pthread_attr_t before;
  pthread_attr_t impossible;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_attr_init(&impossible), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&impossible, size_t{1} << 48), 0);
  ASSERT_EQ(pthread_setattr_default_np(&impossible), 0);
  {
    Errands errands(false);
    std::thread::id where{};
    errands.add([&] { where = std::this_thread::get_id(); });
    EXPECT_EQ(where, std::this_thread::get_id());
    EXPECT_TRUE(errands.drain(Duration(0)));
  }
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
}

#endif

}  // namespace
}  // namespace nccl_ha::fabric
