// runtime/base/linked_queue.h: elements that carry their places.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "runtime/base/linked_queue.h"

namespace nccl_ha {
namespace {

struct Item {
  int number = 0;
  QueueLink<Item> link;
};
using Items = LinkedQueue<Item, &Item::link>;

class LinkedQueueTest : public testing::Test {
 protected:
  LinkedQueueTest() {
    for (int i = 0; i < 4; ++i) {
      items_[static_cast<size_t>(i)].number = i;
    }
  }
  void push_all() {
    for (Item& item : items_) {
      EXPECT_TRUE(queue_.push(item));
    }
  }
  std::vector<int> drain() {
    std::vector<int> numbers;
    while (!queue_.empty()) {
      numbers.push_back(queue_.pop().number);
    }
    return numbers;
  }

  std::array<Item, 4> items_;
  Items queue_;
};

TEST_F(LinkedQueueTest, KeepsOrderAndTakesEachOnce) {
  EXPECT_EQ(queue_.last(), nullptr);
  push_all();
  EXPECT_FALSE(queue_.push(items_[2])) << "it is there";
  EXPECT_EQ(queue_.last(), &items_[3]);
  EXPECT_EQ(drain(), (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(queue_.last(), nullptr);
  EXPECT_TRUE(queue_.push(items_[2])) << "it was taken";
}

TEST_F(LinkedQueueTest, KnowsHowManyThereAre) {
  EXPECT_EQ(queue_.size(), 0U);
  push_all();
  static_cast<void>(queue_.push(items_[2]));
  EXPECT_EQ(queue_.size(), 4U);
  queue_.pop();
  queue_.remove(items_[0]);
  EXPECT_EQ(queue_.size(), 3U);
  queue_.remove_if([](const Item& item) { return item.number != 2; });
  EXPECT_EQ(queue_.size(), 1U);
  queue_.pop();
  EXPECT_EQ(queue_.size(), 0U);
}

TEST_F(LinkedQueueTest, TheFirstCanBecomeTheLastAlsoAlone) {
  queue_.push(items_[0]);
  queue_.push(queue_.pop());
  EXPECT_EQ(&queue_.first(), &items_[0]);
  queue_.push(items_[1]);
  queue_.push(queue_.pop());
  EXPECT_EQ(drain(), (std::vector{1, 0}));
}

TEST_F(LinkedQueueTest, LosesWhicheverIsRemovedAndGoesOn) {
  for (size_t gone = 0; gone < items_.size(); ++gone) {
    push_all();
    queue_.remove(items_[gone]);
    queue_.remove(items_[gone]);  // which is not there any more
    EXPECT_TRUE(queue_.push(items_[gone])) << "at the end";
    std::vector<int> expected{0, 1, 2, 3};
    expected.erase(expected.begin() + static_cast<ptrdiff_t>(gone));
    expected.push_back(static_cast<int>(gone));
    EXPECT_EQ(drain(), expected);
  }
}

TEST_F(LinkedQueueTest, RemovesAllThatAreMeantAndCanBeEmptied) {
  push_all();
  queue_.remove_if([](const Item& item) { return item.number % 2 == 1; });
  EXPECT_FALSE(items_[3].link.listed);
  EXPECT_EQ(queue_.last(), &items_[2]);
  queue_.remove_if([](const Item&) { return true; });
  EXPECT_TRUE(queue_.empty());
  push_all();
  EXPECT_EQ(drain().size(), items_.size());
}

}  // namespace
}  // namespace nccl_ha
