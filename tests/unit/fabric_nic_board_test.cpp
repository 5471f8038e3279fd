#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "runtime/fabric/nic_board.h"
#include "tests/support/until.h"

namespace nccl_ha::fabric {
namespace {

FailureDomains nic(const std::string& name) { return {{FailureDomain::Kind::local_nic, name}}; }

struct CountingReader final : NicBoard::Reader {
  void on_notice() override { ++told; }
  int told = 0;
};

TEST(NicBoard, TellsEverybodyButTheOneWhoPosted) {
  NicBoard board;
  CountingReader one;
  CountingReader other;
  EXPECT_TRUE(board.enter(&one));
  EXPECT_FALSE(board.enter(&other));
  board.post({NicNotice::Kind::suspect, nic("rail0"), "node2"}, &one);
  EXPECT_EQ(one.told, 0);
  EXPECT_EQ(other.told, 1);
  EXPECT_TRUE(board.take(&one).empty());
  const auto notices = board.take(&other);
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_EQ(notices[0].domains, nic("rail0"));
  EXPECT_EQ(notices[0].peer, "node2");
  EXPECT_TRUE(board.take(&other).empty()) << "each once";
  board.post({NicNotice::Kind::down, nic("rail1"), ""});
  EXPECT_EQ(board.take(&one).size(), 1U);
  board.unsubscribe(&other);
  EXPECT_TRUE(board.take(&other).empty());
  board.post({NicNotice::Kind::up, nic("rail1"), ""});
  EXPECT_EQ(other.told, 2);
  board.unsubscribe(&one);
}

TEST(NicBoard, AReaderWhoDoesNotReadKeepsTheNewest) {
  NicBoard board;
  CountingReader reader;
  board.enter(&reader);
  for (int i = 0; i < 1000; ++i) {
    board.post({NicNotice::Kind::suspect, nic(std::to_string(i)), ""});
  }
  const auto notices = board.take(&reader);
  ASSERT_FALSE(notices.empty());
  EXPECT_LE(notices.size(), 100U);
  EXPECT_EQ(notices.back().domains, nic("999"));
  board.unsubscribe(&reader);
}

TEST(NicBoard, ReadersComeAndGoWhileOthersPost) {
  NicBoard board;
  std::atomic<bool> over{false};
  std::thread poster([&] {
    while (!over.load()) {
      board.post({NicNotice::Kind::suspect, nic("rail0"), "node2"});
    }
  });
  int readers = 0;
  size_t taken = 0;
  EXPECT_TRUE(test::until([&] {
    CountingReader reader;
    board.enter(&reader);
    std::this_thread::yield();
    const size_t notices = board.take(&reader).size();
    board.unsubscribe(&reader);
    EXPECT_GE(static_cast<size_t>(reader.told), notices);
    taken += notices;
    return ++readers >= 200 && taken != 0;
  })) << "they never met";
  over.store(true);
  poster.join();
}

}  // namespace
}  // namespace nccl_ha::fabric
