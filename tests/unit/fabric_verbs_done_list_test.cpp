#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <thread>

#include "runtime/fabric/verbs/done_list.h"

namespace nccl_ha::fabric::verbs {
namespace {

/// Who looks all along may take what was added before whoever added it is through.
TEST(DoneList, NothingIsReadableWhenAllWasTaken) {
  const auto list = *DoneList::make();
  constexpr int rounds = 20000;
  std::atomic<int> added{0};
  std::atomic<int> taken{0};
  std::thread conductor([&] {
    for (int i = 0; i < rounds; ++i) {
      while (taken.load() != i) {
        std::this_thread::yield();
      }
      list->add({1, 2, DoneList::Step::ready});
      added.store(i + 1);
    }
  });
  int readable = 0;
  for (int i = 0; i < rounds; ++i) {
    while (!list->any()) {
    }
    EXPECT_EQ(list->take().size(), 1U);
    while (added.load() != i + 1) {
      std::this_thread::yield();
    }
    pollfd asked{list->fd(), POLLIN, 0};
    readable += poll(&asked, 1, 0);
    taken.store(i + 1);
  }
  conductor.join();
  EXPECT_EQ(readable, 0) << "its port would never sleep again";
}

}  // namespace
}  // namespace nccl_ha::fabric::verbs
