// One object of each type, for as long as somebody keeps it.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/engine/shared_objects.h"

namespace nccl_ha {
namespace {

struct Board {
  int value = 0;
};
struct Port {
  int value = 0;
};

TEST(SharedObjects, KeepTypesApart) {
  SharedObjects shared;
  EXPECT_EQ(shared.find<Board>(), nullptr);
  const auto board = std::make_shared<Board>(Board{1});
  const auto port = std::make_shared<Port>(Port{2});
  shared.put(board);
  shared.put(port);
  EXPECT_EQ(shared.find<Board>(), board);
  EXPECT_EQ(shared.find<Port>(), port);
}

TEST(SharedObjects, AreGoneWithTheLastWhoKeepsThem) {
  SharedObjects shared;
  auto first = std::make_shared<Board>(Board{1});
  shared.put(first);
  auto second = shared.find<Board>();
  first.reset();
  EXPECT_EQ(shared.find<Board>(), second);
  second.reset();
  EXPECT_EQ(shared.find<Board>(), nullptr);
  const auto next = std::make_shared<Board>(Board{3});
  shared.put(next);
  EXPECT_EQ(shared.find<Board>(), next);
}

TEST(SharedObjects, AreMadeOnceForAllThreads) {
  SharedObjects shared;
  std::atomic<int> made{0};
  std::array<std::shared_ptr<Board>, 4> got;
  std::vector<std::thread> threads;
  for (auto& mine : got) {
    threads.emplace_back([&] {
      mine = shared.find_or_make<Board>([&] { return std::make_shared<Board>(Board{++made}); });
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(made.load(), 1);
  for (const auto& one : got) {
    EXPECT_EQ(one, shared.find<Board>());
  }
}

}  // namespace
}  // namespace nccl_ha
