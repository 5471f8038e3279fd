// Receives whose memory is polled while it is written (NCCL's LL protocols), and the full depth of
// grouped receives.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/support/plugin_fixture.h"

namespace nccl_ha::test {
namespace {

/// LL's word: data below, flag above, seen as a whole.
uint64_t word_of(size_t at, uint32_t flag) {
  const auto data = static_cast<uint32_t>(at * 2654435761U) ^ (flag * 40503U);
  return uint64_t{flag} << 32 | data;
}

class Polled : public PluginFixture {
 protected:
  void SetUp() override {
    setenv("HA_NCCL_DGRAM_FAULTS", "drop=0.02,dup=0.02,reorder=0.05,seed=5", 1);
    // Many small segments: the more places, the more wrong ones.
    setenv("HA_NCCL_DGRAM_MTU", "1500", 1);
    PluginFixture::SetUp();
  }
  void TearDown() override {
    PluginFixture::TearDown();
    unsetenv("HA_NCCL_DGRAM_FAULTS");
    unsetenv("HA_NCCL_DGRAM_MTU");
  }
};

TEST_P(Polled, AWordWithTheNewFlagHasTheNewData) {
  constexpr size_t words = 8192;  // 64 KiB, a step of LL
  constexpr uint32_t rounds = 100;
  Connection c = open_connection();
  TwiceMapped memory(words * 8);
  std::vector<uint64_t> out(words);
  auto recv_key = api().register_memory(c.recv, memory.written, memory.bytes);
  auto send_key = api().register_memory(c.send, out.data(), memory.bytes);
  ASSERT_TRUE(recv_key && send_key);
  std::atomic<uint32_t> announced{0};
  std::atomic<uint32_t> seen{0};
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0};
  std::thread reader([&] {
    const auto* view = static_cast<const uint64_t*>(memory.read);
    for (uint32_t round = 1; round <= rounds; ++round) {
      while (announced.load() < round && !stop.load()) {
        sched_yield();
      }
      // Over and over, so that what is at a place only for a moment is seen there.
      for (size_t arrived = 0; arrived < words;) {
        arrived = 0;
        for (size_t i = 0; i < words; ++i) {
          const uint64_t word = __atomic_load_n(view + i, __ATOMIC_ACQUIRE);
          if (word >> 32 == round) {
            ++arrived;
            if (word != word_of(i, round)) {
              wrong.fetch_add(1);
            }
          }
        }
        if (stop.load()) {
          return;
        }
      }
      seen.store(round);
    }
  });
  for (uint32_t round = 1; round <= rounds && !HasFailure(); ++round) {
    for (size_t i = 0; i < words; ++i) {
      out[i] = word_of(i, round);
    }
    announced.store(round);
    void* data = memory.written;
    size_t length = memory.bytes;
    int tag = 0;
    void* receive = reinterpret_cast<void*>(0x1);  // "I poll the data myself"
    NcclResult result = NcclResult::success;
    ASSERT_TRUE(until([&] {
      result = api().irecv(c.recv, 1, &data, &length, &tag, &*recv_key, &receive);
      return result != NcclResult::success || receive != nullptr;
    }));
    void* send = nullptr;
    EXPECT_TRUE(until([&] {
      result = api().isend(c.send, out.data(), length, 0, *send_key, &send);
      return result != NcclResult::success || send != nullptr;
    }));
    EXPECT_EQ(result, NcclResult::success);
    EXPECT_TRUE(send != nullptr && finish(send) && finish(receive));
    EXPECT_TRUE(until([&] { return seen.load() == round; })) << "round " << round;
  }
  stop.store(true);
  reader.join();
  EXPECT_EQ(wrong.load(), 0U) << "a reader saw data at a place where it did not belong";
  EXPECT_EQ(seen.load(), rounds);
}

INSTANTIATE_TEST_SUITE_P(Abi, Polled,
                         ::testing::Combine(::testing::Values(8, 12), ::testing::Bool()),
                         instance_name);

class Depth : public PluginFixture {};

TEST_P(Depth, ThirtyTwoGroupsOfEightAndAllTheirSendsAreOpenAtOnce) {
  constexpr size_t groups = 32;
  constexpr size_t width = 8;
  constexpr size_t length = 3000;
  Connection c = open_connection();
  auto in = make_buffer(c, groups * width * length);
  auto out = make_buffer(c, groups * width * length);
  for (size_t i = 0; i < out->bytes.size(); ++i) {
    out->bytes[i] = static_cast<unsigned char>(i / length * 7 + i);
  }
  std::vector<void*> receives;
  for (size_t group = 0; group < groups; ++group) {
    std::array<void*, width> data{};
    std::array<size_t, width> sizes{};
    std::array<int, width> tags{};
    std::array<void*, width> keys{};
    for (size_t i = 0; i < width; ++i) {
      data[i] = in->data() + (group * width + i) * length;
      sizes[i] = length;
      tags[i] = static_cast<int>(i);
      keys[i] = in->recv_key;
    }
    void* request = nullptr;
    ASSERT_TRUE(until([&] {
      EXPECT_EQ(
          api().irecv(c.recv, width, data.data(), sizes.data(), tags.data(), keys.data(), &request),
          NcclResult::success);
      return request != nullptr;
    }));
    receives.push_back(request);
  }
  std::vector<void*> sends;
  for (size_t message = 0; message < groups * width; ++message) {
    sends.push_back(
        post_send(c, *out, message * length, length, static_cast<int>(message % width)));
    ASSERT_NE(sends.back(), nullptr) << "send " << message << " of 256";
  }
  void* more = reinterpret_cast<void*>(0xBAD);
  ASSERT_EQ(api().isend(c.send, out->data(), 1, 0, out->send_key, &more), NcclResult::success);
  EXPECT_EQ(more, nullptr) << "every receive has its message";
  std::shuffle(sends.begin(), sends.end(), std::mt19937(1));
  std::shuffle(receives.begin(), receives.end(), std::mt19937(2));
  for (void* receive : receives) {
    std::array<int, width> sizes{};
    ASSERT_TRUE(finish(receive, sizes.data()));
    EXPECT_TRUE(std::all_of(sizes.begin(), sizes.end(), [](int size) { return size == length; }));
  }
  for (void* send : sends) {
    ASSERT_TRUE(finish(send));
  }
  EXPECT_TRUE(in->bytes == out->bytes);
}

INSTANTIATE_TEST_SUITE_P(Abi, Depth,
                         ::testing::Combine(::testing::Values(6, 12), ::testing::Bool()),
                         instance_name);

}  // namespace
}  // namespace nccl_ha::test
