// The traps of NCCL's contract that lie in the data calls, with progress threads and without.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <thread>

#include "tests/support/plugin_fixture.h"

namespace nccl_ha::test {
namespace {

class Transfer : public PluginFixture {};

TEST_P(Transfer, EverySizeArrives) {
  Connection c = open_connection();
  for (const size_t bytes : {0UL, 1UL, 8UL, 767UL, 769UL, 4096UL, 65536UL, 524288UL, 1048577UL}) {
    exchange(c, bytes, static_cast<unsigned char>(bytes % 251));
  }
}

/// Of messages that wait for their receive.
constexpr size_t above_eager = 10000;

TEST_P(Transfer, NoRequestBeforeThePeerHasPosted) {
  Connection c = open_connection();
  auto buffer = make_buffer(c, 2 * above_eager);
  for (int i = 0; i < 2000; ++i) {
    void* request = reinterpret_cast<void*>(0xBAD);
    ASSERT_EQ(api().isend(c.send, buffer->data(), above_eager, 0, buffer->send_key, &request),
              NcclResult::success);
    ASSERT_EQ(request, nullptr) << "there is no receive to send to; *request must be written";
  }
  void* receive = post_recv(c, *buffer, above_eager, above_eager);
  void* send = post_send(c, *buffer, 0, above_eager);
  EXPECT_TRUE(finish(send));
  EXPECT_TRUE(finish(receive));
}

TEST_P(Transfer, SmallMessagesLeaveBeforeThePeerHasPosted) {
  Connection c = open_connection();
  auto out = make_buffer(c, 64);
  auto in = make_buffer(c, 64);
  for (int i = 0; i < 3; ++i) {
    out->bytes[0] = static_cast<unsigned char>(i);
    ASSERT_TRUE(finish(post_send(c, *out, 0, 1)));  // and the memory is used for something else
  }
  for (int i = 0; i < 3; ++i) {
    int size = -1;
    ASSERT_TRUE(finish(post_recv(c, *in, 0, 64), &size));
    EXPECT_EQ(size, 1);
    EXPECT_EQ(in->bytes[0], i);
  }
}

TEST_P(Transfer, ASmallerSendReportsItsOwnSize) {
  Connection c = open_connection();
  auto buffer = make_buffer(c, 4096);
  std::fill(buffer->bytes.begin(), buffer->bytes.end(), 1);
  void* receive = post_recv(c, *buffer, 2048, 2048);
  void* send = post_send(c, *buffer, 0, 100);
  int sizes[1] = {-1};
  ASSERT_TRUE(finish(receive, sizes));
  EXPECT_EQ(sizes[0], 100);
  EXPECT_TRUE(finish(send));
}

TEST_P(Transfer, ALargerSendIsAnErrorOnBothSidesAndNobodyHangs) {
  Connection c = open_connection();
  auto buffer = make_buffer(c, 2 * above_eager);
  void* receive = post_recv(c, *buffer, 0, above_eager - 1);
  NcclResult result = NcclResult::success;
  void* request = nullptr;
  ASSERT_TRUE(until([&] {
    result = api().isend(c.send, buffer->data(), above_eager, 0, buffer->send_key, &request);
    return result != NcclResult::success || request != nullptr;
  }));
  EXPECT_EQ(result, NcclResult::invalid_usage);
  EXPECT_EQ(request, nullptr);
  EXPECT_EQ(finish_with_error(receive), NcclResult::remote_error)
      << "the receiver hears that its peer failed";
  // Sticky: every later call fails too.
  EXPECT_TRUE(until([&] {
    return api().isend(c.send, buffer->data(), 8, 0, buffer->send_key, &request) !=
           NcclResult::success;
  }));
  void* data = buffer->data();
  size_t bytes = 8;
  int tag = 0;
  EXPECT_NE(api().irecv(c.recv, 1, &data, &bytes, &tag, &buffer->recv_key, &request),
            NcclResult::success);
}

TEST_P(Transfer, ALargerSendThatLeftBeforeItsReceiveIsAnErrorOnBothSides) {
  Connection c = open_connection();
  auto buffer = make_buffer(c, 4096);
  ASSERT_TRUE(finish(post_send(c, *buffer, 0, 101)));
  void* receive = post_recv(c, *buffer, 0, 100);
  EXPECT_EQ(finish_with_error(receive), NcclResult::invalid_usage);
  void* request = nullptr;
  NcclResult result = NcclResult::success;
  EXPECT_TRUE(until([&] {
    result = api().isend(c.send, buffer->data(), 8, 0, buffer->send_key, &request);
    return result != NcclResult::success;
  })) << "the sender hears that its peer failed";
  EXPECT_EQ(result, NcclResult::remote_error);
}

TEST_P(Transfer, GroupsAreMatchedByTagWhateverTheOrder) {
  Connection c = open_connection();
  std::mt19937 random(7);
  for (int n = 1; n <= 8; ++n) {
    auto in = make_buffer(c, 8 * 1000);
    auto out = make_buffer(c, above_eager);
    for (size_t i = 0; i < out->bytes.size(); ++i) {
      out->bytes[i] = static_cast<unsigned char>(random());
    }
    std::array<void*, 8> data{};
    std::array<size_t, 8> bytes{};
    std::array<int, 8> tags{};
    std::array<void*, 8> keys{};
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      data[i] = in->data() + i * 1000;
      bytes[i] = 1000;
      tags[i] = static_cast<int>(100 + i);
      keys[i] = in->recv_key;
    }
    void* receive = nullptr;
    ASSERT_TRUE(until([&] {
      EXPECT_EQ(
          api().irecv(c.recv, n, data.data(), bytes.data(), tags.data(), keys.data(), &receive),
          NcclResult::success);
      return receive != nullptr;
    }));
    // A second group with one of the same tags: it may only fill once the first is complete.
    void* next = post_recv(c, *in, 0, 10, 100);
    std::vector<size_t> order(static_cast<size_t>(n));
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    std::shuffle(order.begin(), order.end(), random);
    std::vector<void*> sends;
    for (const size_t i : order) {
      // Wrong tags never match.
      void* wrong = nullptr;
      EXPECT_EQ(api().isend(c.send, out->data(), above_eager, 55, out->send_key, &wrong),
                NcclResult::success);
      EXPECT_EQ(wrong, nullptr);
      sends.push_back(post_send(c, *out, i * 1000, 1000 - i, static_cast<int>(100 + i)));
    }
    std::array<int, 8> sizes{};
    ASSERT_TRUE(finish(receive, sizes.data()));
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      EXPECT_EQ(sizes[i], static_cast<int>(1000 - i));
      EXPECT_TRUE(std::equal(out->bytes.begin() + static_cast<ptrdiff_t>(i * 1000),
                             out->bytes.begin() + static_cast<ptrdiff_t>(i * 1000 + 1000 - i),
                             in->bytes.begin() + static_cast<ptrdiff_t>(i * 1000)));
    }
    for (void* send : sends) {
      EXPECT_TRUE(finish(send));
    }
    void* last = post_send(c, *out, 0, 10, 100);
    EXPECT_TRUE(finish(next));
    EXPECT_TRUE(finish(last));
  }
}

TEST_P(Transfer, ThirtyTwoOpenRequestsAndTestsInAnyOrder) {
  Connection c = open_connection();
  auto in = make_buffer(c, 32 * 4096);
  auto out = make_buffer(c, 32 * 4096);
  for (int round = 0; round < 5; ++round) {
    for (size_t i = 0; i < out->bytes.size(); ++i) {
      out->bytes[i] = static_cast<unsigned char>(i / 4096 * 3 + i + static_cast<size_t>(round));
    }
    std::vector<void*> receives;
    for (size_t i = 0; i < 32; ++i) {
      receives.push_back(post_recv(c, *in, i * 4096, 4096));
    }
    // The 33rd does not fit, which is no error.
    void* data = in->data();
    size_t bytes = 1;
    int tag = 0;
    void* more = reinterpret_cast<void*>(0xBAD);
    ASSERT_EQ(api().irecv(c.recv, 1, &data, &bytes, &tag, &in->recv_key, &more),
              NcclResult::success);
    EXPECT_EQ(more, nullptr);
    std::vector<void*> sends;
    for (size_t i = 0; i < 32; ++i) {
      sends.push_back(post_send(c, *out, i * 4096, 4096 - i));
    }
    std::vector<size_t> order(64);
    for (size_t i = 0; i < 64; ++i) {
      order[i] = i;
    }
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(round)));
    for (const size_t i : order) {
      int sizes[1] = {-1};
      ASSERT_TRUE(finish(i < 32 ? receives[i] : sends[i - 32], sizes));
      EXPECT_EQ(sizes[0], static_cast<int>(4096 - i % 32));
    }
    for (size_t i = 0; i < 32; ++i) {
      EXPECT_TRUE(std::equal(in->data() + i * 4096, in->data() + i * 4096 + 4096 - i,
                             out->data() + i * 4096));
    }
  }
}

TEST_P(Transfer, FlushNeedsNoRequest) {
  Connection c = open_connection();
  auto buffer = make_buffer(c, 16);
  void* data = buffer->data();
  int size = 16;
  void* request = reinterpret_cast<void*>(0xBAD);
  ASSERT_EQ(api().iflush(c.recv, 1, &data, &size, &buffer->recv_key, &request),
            NcclResult::success);
  EXPECT_EQ(request, nullptr);
}

TEST_P(Transfer, CloseWithRequestsOutstandingOnBothSides) {
  for (const bool sender_first : {true, false}) {
    Connection c = open_connection();
    auto in = make_buffer(c, 4 << 20);
    auto out = make_buffer(c, 4 << 20);
    for (int i = 0; i < 4; ++i) {
      ASSERT_NE(post_recv(c, *in, 0, 4 << 20), nullptr);
    }
    for (int i = 0; i < 3; ++i) {
      ASSERT_NE(post_send(c, *out, 0, 4 << 20), nullptr);
    }
    if (sender_first) {
      EXPECT_TRUE(api().close_send(c.send));
      EXPECT_TRUE(api().close_recv(c.recv));
    } else {
      EXPECT_TRUE(api().close_recv(c.recv));
      EXPECT_TRUE(api().close_send(c.send));
    }
    open_.clear();
  }
}

TEST_P(Transfer, PeerThatClosesEndsOpenReceivesWithAnError) {
  Connection c = open_connection();
  auto buffer = make_buffer(c, 64);
  void* receive = post_recv(c, *buffer, 0, 64);
  EXPECT_TRUE(api().close_send(c.send));
  open_.back().send = nullptr;
  EXPECT_EQ(finish_with_error(receive), NcclResult::remote_error);
  void* data = buffer->data();
  size_t bytes = 8;
  int tag = 0;
  void* request = nullptr;
  EXPECT_EQ(api().irecv(c.recv, 1, &data, &bytes, &tag, &buffer->recv_key, &request),
            NcclResult::remote_error)
      << "errors are sticky";
}

TEST_P(Transfer, ASendReportedDoneHasArrivedEvenIfTheSenderClosesAtOnce) {
  for (int i = 0; i < 20; ++i) {
    Connection c = open_connection();
    auto in = make_buffer(c, 100000);
    auto out = make_buffer(c, 100000);
    std::fill(out->bytes.begin(), out->bytes.end(), static_cast<unsigned char>(i + 1));
    void* receive = post_recv(c, *in, 0, 100000);
    void* send = post_send(c, *out, 0, 100000);
    ASSERT_TRUE(finish(send));
    EXPECT_TRUE(api().close_send(c.send));
    open_.back().send = nullptr;
    int sizes[1] = {-1};
    ASSERT_TRUE(finish(receive, sizes));
    EXPECT_EQ(sizes[0], 100000);
    EXPECT_EQ(in->bytes, out->bytes);
    EXPECT_TRUE(api().close_recv(c.recv));
    open_.clear();
  }
}

TEST_P(Transfer, ASendWhoseReceiverClosedAfterTheLastByteIsDone) {
  for (int i = 0; i < 20; ++i) {
    Connection c = open_connection();
    auto in = make_buffer(c, 1000);
    auto out = make_buffer(c, 1000);
    void* receive = post_recv(c, *in, 0, 1000);
    void* send = post_send(c, *out, 0, 1000);
    ASSERT_TRUE(finish(receive));
    EXPECT_TRUE(api().close_recv(c.recv));
    open_.back().recv = nullptr;
    ASSERT_TRUE(finish(send)) << "round " << i;
    EXPECT_TRUE(api().close_send(c.send));
    open_.clear();
  }
}

TEST_P(Transfer, DeregisteredMemoryMayVanishWhileThePeerStillSends) {
  constexpr size_t bytes = 8 << 20;
  for (const bool receiver : {true, false}) {
    // On a busy machine all may have arrived before anybody looks: then once more.
    bool in_the_midst = false;
    for (int attempt = 0; attempt < 10 && !in_the_midst && !HasFailure(); ++attempt) {
      const Connection c = open_connection();
      TwiceMapped memory(bytes);
      void* map = memory.written;
      auto other = make_buffer(c, bytes);
      std::fill(other->bytes.begin(), other->bytes.end(), 0x5A);
      void* comm = receiver ? c.recv : c.send;
      auto key = api().register_memory(comm, map, bytes);
      ASSERT_TRUE(key);
      void* request = nullptr;
      size_t length = bytes;
      int tag = 0;
      void* data = receiver ? map : static_cast<void*>(other->data());
      void* recv_key = receiver ? *key : other->recv_key;
      ASSERT_TRUE(until([&] {
        EXPECT_EQ(api().irecv(c.recv, 1, &data, &length, &tag, &recv_key, &request),
                  NcclResult::success);
        return request != nullptr;
      }));
      void* send = nullptr;
      ASSERT_TRUE(until([&] {
        EXPECT_EQ(api().isend(c.send, receiver ? other->data() : map, bytes, 0,
                              receiver ? other->send_key : *key, &send),
                  NcclResult::success);
        return send != nullptr;
      }));
      int arrived = 0;
      int done = 0;
      // Bytes really are arriving when the memory goes.
      ASSERT_TRUE(!receiver || until([&] {
        EXPECT_EQ(api().test(request, &arrived, nullptr), NcclResult::success);
        if (arrived == 0) {
          EXPECT_EQ(api().test(send, &done, nullptr), NcclResult::success);
        }
        return arrived != 0 || done != 0 || memory.first() == 0x5A;
      }));
      ASSERT_TRUE(api().deregister_memory(comm, *key));
      memory.unmap_written();
      // Whatever is still on its way must not touch the hole; the transfer ends with an error.
      EXPECT_TRUE(until([&] {
        return done != 0 || api().test(send, &done, nullptr) != NcclResult::success || done != 0;
      }));
      in_the_midst = !receiver || done == 0;
      close_connection(open_.back());
      open_.clear();
    }
    EXPECT_TRUE(in_the_midst) << "all had arrived each time";
  }
}

TEST_P(Transfer, RegistrationsBesideTraffic) {
  Connection c = open_connection();
  std::atomic<bool> stop{false};
  std::thread service([&] {
    // NCCL registers user buffers from its service thread while its progress thread moves data.
    std::vector<unsigned char> memory(1 << 16);
    while (!stop.load()) {
      auto one = api().register_memory(c.send, memory.data(), memory.size());
      auto two = api().register_memory(c.recv, memory.data(), memory.size());
      ASSERT_TRUE(one && two);
      ASSERT_TRUE(api().deregister_memory(c.send, *one));
      ASSERT_TRUE(api().deregister_memory(c.recv, *two));
    }
  });
  for (int i = 0; i < 50; ++i) {
    exchange(c, 50000, static_cast<unsigned char>(i));
  }
  stop.store(true);
  service.join();
  EXPECT_TRUE(api().deregister_memory(c.send, nullptr)) << "a null handle is fine";
}

INSTANTIATE_TEST_SUITE_P(Abi, Transfer,
                         ::testing::Combine(::testing::Values(abi_of_traps), ::testing::Bool()),
                         instance_name);

}  // namespace
}  // namespace nccl_ha::test
