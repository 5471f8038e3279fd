#include <gtest/gtest.h>

#include <vector>

#include "runtime/fabric/datagram/request_ring.h"

namespace nccl_ha::fabric {
namespace {

WorkRequest request_of(uint64_t id, uint32_t length, bool unsignaled = false) {
  WritePost post{};
  post.id = id;
  post.unsignaled = unsignaled;
  WorkRequest request(post);
  request.length = length;
  return request;
}

void send_current(RequestRing& ring, uint32_t end_sequence) {
  ring.current().sent = ring.current().length;
  ring.finish_current(end_sequence);
}

std::vector<uint64_t> completed(RequestRing& ring, uint32_t acknowledged) {
  std::vector<uint64_t> ids;
  ring.complete(acknowledged, [&](const WorkRequest& request) { ids.push_back(request.id); });
  return ids;
}

TEST(RequestRing, TakesAsManyAsThePathMay) {
  RequestRing ring(3);
  EXPECT_FALSE(ring.unsent());
  for (uint64_t id = 0; id < 3; ++id) {
    EXPECT_FALSE(ring.full());
    ring.push(request_of(id, 10));
  }
  EXPECT_TRUE(ring.full());
  EXPECT_GE(ring.capacity(), 3U);
  send_current(ring, 1);
  EXPECT_TRUE(ring.full()) << "until it is acknowledged";
  EXPECT_EQ(completed(ring, 1), std::vector<uint64_t>{0});
  EXPECT_FALSE(ring.full());
  EXPECT_TRUE(ring.sound());
}

TEST(RequestRing, CompletesInOrderWhatIsAcknowledgedToItsEnd) {
  RequestRing ring(8);
  for (uint64_t id = 0; id < 4; ++id) {
    ring.push(request_of(id, 10, id == 1));
  }
  EXPECT_EQ(ring.current().id, 0U);
  send_current(ring, 2);
  const uint32_t number = ring.current_number();
  EXPECT_EQ(ring.current().id, 1U);
  send_current(ring, 3);
  send_current(ring, 7);
  EXPECT_EQ(ring.numbered(number).id, 1U) << "as long as its segments may go again";
  EXPECT_TRUE(completed(ring, 1).empty());
  EXPECT_EQ(completed(ring, 6), std::vector<uint64_t>{0}) << "nobody waits for the second one";
  EXPECT_EQ(completed(ring, 7), std::vector<uint64_t>{2});
  EXPECT_TRUE(completed(ring, 1000).empty()) << "the last one was not sent";
  EXPECT_TRUE(ring.unsent());
}

TEST(RequestRing, GivesBackAllOfThemInTheOrderOfTheirPosts) {
  RequestRing ring(4);
  for (uint64_t id = 0; id < 3; ++id) {
    ring.push(request_of(id, 10, id == 1));
  }
  send_current(ring, 1);
  std::vector<uint64_t> ids;
  ring.flush([&](const WorkRequest& request) { ids.push_back(request.id); });
  EXPECT_EQ(ids, (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_FALSE(ring.unsent());
  EXPECT_FALSE(ring.full());
}

TEST(RequestRing, SequenceNumbersWrap) {
  RequestRing ring(2);
  ring.push(request_of(1, 10));
  send_current(ring, 2);
  EXPECT_TRUE(completed(ring, UINT32_MAX - 1).empty());
  EXPECT_EQ(completed(ring, 2), std::vector<uint64_t>{1});
}

}  // namespace
}  // namespace nccl_ha::fabric
