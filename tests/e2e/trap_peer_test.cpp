// Two processes, each with its own copy of the library: every pair of ABI versions understands each
// other, and a peer that is killed or stopped in the middle of a transfer is noticed in time.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "tests/support/other_process.h"
#include "tests/support/pipe_io.h"
#include "tests/support/plugin_fixture.h"

namespace nccl_ha::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// The times that docs/failover.md states, and more: everything here runs on a machine that may
/// be busy, under sanitizers too.
constexpr milliseconds busy_machine(5000);
constexpr milliseconds budget(1000);
constexpr milliseconds process_killed = milliseconds(500) + busy_machine;
/// HA_NCCL_DGRAM_DEAD_MS and the budget.  Three times HA_NCCL_RTO_MS would be less, but a path has
/// 0.2 us more for each byte of a message larger than any that it has carried.
constexpr milliseconds nothing_answers = milliseconds(10000) + budget + busy_machine;

unsigned char pattern(size_t at, size_t message) {
  return static_cast<unsigned char>(at * 31 + at / 253 + message * 17);
}

/// One message after another over one comm, up to `count`; for ever when 0.
bool send_messages(tools::NetApi& api, void* comm, size_t bytes, size_t count) {
  std::vector<unsigned char> memory(bytes);
  auto key = api.register_memory(comm, memory.data(), bytes);
  if (!key) {
    return false;
  }
  for (size_t message = 0; count == 0 || message < count; ++message) {
    for (size_t i = 0; i < bytes; ++i) {
      memory[i] = pattern(i, message);
    }
    void* request = nullptr;
    NcclResult result = NcclResult::success;
    const bool posted = until([&] {
      result = api.isend(comm, memory.data(), bytes, 1, *key, &request);
      return result != NcclResult::success || request != nullptr;
    });
    int done = 0;
    const bool finished = posted && result == NcclResult::success && until([&] {
                            result = api.test(request, &done, nullptr);
                            return result != NcclResult::success || done != 0;
                          });
    if (!finished || done == 0) {
      return false;
    }
  }
  return static_cast<bool>(api.deregister_memory(comm, *key));
}

/// The child's side: connects to the handle it reads from `fd`, sends, waits for a byte, closes.
int sender_role(int fd, int version, size_t bytes, size_t count) {
  auto library = load_library(version);
  tools::NetHandle handle{};
  if (!library || !read_all(fd, handle.data(), handle.size())) {
    return 2;
  }
  tools::NetApi& api = library->api();
  void* comm = nullptr;
  bool failed = false;
  const bool connected = until([&] {
    auto got = api.connect(0, handle);
    failed = !got;
    comm = got ? *got : nullptr;
    return failed || comm != nullptr;
  });
  if (!connected || failed || !send_messages(api, comm, bytes, count)) {
    return 3;
  }
  if (!api.close_send(comm) || !api.finalize()) {
    return 4;
  }
  library.reset();
  return plugin_threads() == 0 ? 0 : 5;
}

class TwoProcesses : public ::testing::TestWithParam<std::tuple<int, int, bool>> {
 protected:
  void SetUp() override {
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("HA_NCCL_USE_PROGRESS_THREAD", std::get<2>(GetParam()) ? "1" : "0", 1);
    setenv("HA_NCCL_RETRY_BUDGET_MS", std::to_string(budget.count()).c_str(), 1);
    ASSERT_EQ(plugin_threads(), 0U) << "the other process must be forked from a single thread";
  }
  void TearDown() override { unsetenv("HA_NCCL_RETRY_BUDGET_MS"); }

  /// Loads our side and accepts the child.
  void meet(const Child& child) {
    library_ = load_library(std::get<1>(GetParam()));
    ASSERT_NE(library_, nullptr);
    tools::NetHandle handle{};
    auto listening = api().listen(0, handle);
    ASSERT_TRUE(listening);
    ASSERT_TRUE(write_all(child.fd(), handle.data(), handle.size()));
    ASSERT_TRUE(until([&] {
      auto got = api().accept(*listening);
      EXPECT_TRUE(got);
      comm_ = got ? *got : nullptr;
      return HasFailure() || comm_ != nullptr;
    }));
    EXPECT_TRUE(api().close_listen(*listening));
  }
  void part() {
    if (comm_ != nullptr) {
      EXPECT_TRUE(api().close_recv(comm_));
    }
    EXPECT_TRUE(api().finalize());
    library_.reset();
    EXPECT_EQ(plugin_threads(), 0U);
    EXPECT_FALSE(plugin_mapped());
  }
  /// Posts a receive and tests it to its end; the error, or success.
  NcclResult receive(void* data, size_t bytes, void* key, seconds limit) {
    void* request = nullptr;
    int tag = 1;
    NcclResult result = NcclResult::success;
    int done = 0;
    const bool ended = until(
        [&] {
          if (request == nullptr) {
            result = api().irecv(comm_, 1, &data, &bytes, &tag, &key, &request);
          }
          if (result == NcclResult::success && request != nullptr) {
            result = api().test(request, &done, nullptr);
          }
          return result != NcclResult::success || done != 0;
        },
        limit);
    EXPECT_TRUE(ended) << "neither done nor an error in " << limit.count() << " s";
    return result;
  }
  tools::NetApi& api() { return library_->api(); }

  std::unique_ptr<tools::NetLibrary> library_;
  void* comm_ = nullptr;
};

TEST_P(TwoProcesses, UnderstandEachOther) {
  constexpr size_t bytes = 300001;
  Child child([&](int fd) { return sender_role(fd, std::get<0>(GetParam()), bytes, 10); });
  ASSERT_NO_FATAL_FAILURE(meet(child));
  std::vector<unsigned char> memory(bytes);
  auto key = api().register_memory(comm_, memory.data(), bytes);
  ASSERT_TRUE(key);
  for (size_t message = 0; message < 10; ++message) {
    std::fill(memory.begin(), memory.end(), static_cast<unsigned char>(0));
    ASSERT_EQ(receive(memory.data(), bytes, *key, seconds(30)), NcclResult::success);
    for (size_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(memory[i], pattern(i, message)) << "byte " << i << " of message " << message;
    }
  }
  const int status = child.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  part();
}

class LostPeer : public TwoProcesses {};

TEST_P(LostPeer, ASenderKilledInMidTransferIsNoticed) {
  // Messages without end, so that the blow always falls into one.
  constexpr size_t bytes = 8 << 20;
  Child child([&](int fd) { return sender_role(fd, std::get<0>(GetParam()), bytes, 0); });
  ASSERT_NO_FATAL_FAILURE(meet(child));
  TwiceMapped memory(bytes);
  auto key = api().register_memory(comm_, memory.written, bytes);
  ASSERT_TRUE(key);
  ASSERT_EQ(receive(memory.written, bytes, *key, seconds(60)), NcclResult::success);
  // A message's first bytes show that it is under way; then the peer dies.  One that was over
  // before anybody looked (this process was off its processor) proves nothing: the next one then.
  void* request = nullptr;
  void* data = memory.written;
  size_t length = bytes;
  int tag = 1;
  void* key_value = *key;
  int done = 1;
  for (size_t message = 1; done != 0 && message < 200; ++message) {
    *static_cast<unsigned char*>(memory.written) = static_cast<unsigned char>(~pattern(0, message));
    request = nullptr;
    done = 0;
    ASSERT_TRUE(until([&] {
      if (request == nullptr) {
        EXPECT_EQ(api().irecv(comm_, 1, &data, &length, &tag, &key_value, &request),
                  NcclResult::success);
      } else {
        EXPECT_EQ(api().test(request, &done, nullptr), NcclResult::success);
      }
      return HasFailure() || done != 0 || memory.first() == pattern(0, message);
    }));
    ASSERT_FALSE(HasFailure());
  }
  ASSERT_EQ(done, 0) << "every message was over before its peer could die";
  child.signal_child(SIGKILL);
  const int status = child.wait();
  ASSERT_TRUE(WIFSIGNALED(status)) << "the peer ended by itself: " << status;
  const auto before = std::chrono::steady_clock::now();
  NcclResult result = NcclResult::success;
  ASSERT_TRUE(until(
      [&] {
        result = done != 0 ? receive(memory.written, bytes, *key, seconds(20))
                           : api().test(request, &done, nullptr);
        return result != NcclResult::success;
      },
      seconds(20)))
      << "the death went unnoticed";
  EXPECT_EQ(result, NcclResult::remote_error);
  EXPECT_LT(std::chrono::steady_clock::now() - before, process_killed);
  EXPECT_EQ(receive(memory.written, bytes, *key, seconds(5)), NcclResult::remote_error)
      << "errors are sticky";
  part();
}

TEST_P(LostPeer, AReceiverThatStopsForGoodIsDeclaredDead) {
  // A stopped process keeps its sockets: TCP says nothing, only the missing acknowledgements do.
  // Here the child receives, so that we are the sender.
  constexpr size_t bytes = 64 << 20;
  const int version = std::get<0>(GetParam());
  Child child([&](int fd) {
    auto library = load_library(version);
    tools::NetHandle handle{};
    auto listening = library->api().listen(0, handle);
    if (!listening || !write_all(fd, handle.data(), handle.size())) {
      return 2;
    }
    void* comm = nullptr;
    until([&] {
      auto got = library->api().accept(*listening);
      comm = got ? *got : nullptr;
      return comm != nullptr;
    });
    TwiceMapped memory(bytes);
    auto key = library->api().register_memory(comm, memory.written, bytes);
    void* request = nullptr;
    void* data = memory.written;
    size_t length = bytes;
    int tag = 1;
    until([&] {
      return library->api().irecv(comm, 1, &data, &length, &tag, &*key, &request) !=
                 NcclResult::success ||
             request != nullptr;
    });
    until([&] {
      int done = 0;
      static_cast<void>(library->api().test(request, &done, nullptr));
      return memory.first() == 0x77;
    });
    // Bytes have arrived: says so and stops, all threads at once.
    static_cast<void>(write_all(fd, "!", 1));
    raise(SIGSTOP);
    return 0;
  });
  library_ = load_library(std::get<1>(GetParam()));
  ASSERT_NE(library_, nullptr);
  tools::NetHandle handle{};
  ASSERT_TRUE(read_all(child.fd(), handle.data(), handle.size()));
  void* comm = nullptr;
  ASSERT_TRUE(until([&] {
    auto got = api().connect(0, handle);
    EXPECT_TRUE(got);
    comm = got ? *got : nullptr;
    return HasFailure() || comm != nullptr;
  }));
  std::vector<unsigned char> memory(bytes, 0x77);
  auto key = api().register_memory(comm, memory.data(), bytes);
  ASSERT_TRUE(key);
  void* request = nullptr;
  ASSERT_TRUE(until([&] {
    EXPECT_EQ(api().isend(comm, memory.data(), bytes, 1, *key, &request), NcclResult::success);
    return request != nullptr;
  }));
  NcclResult result = NcclResult::success;
  int done = 0;
  // The peer says when it stops; requests are tested meanwhile, as NCCL does it.
  pollfd stopping{child.fd(), POLLIN, 0};
  std::optional<std::chrono::steady_clock::time_point> stopped;
  EXPECT_TRUE(until(
      [&] {
        if (!stopped && poll(&stopping, 1, 0) != 0) {
          stopped = std::chrono::steady_clock::now();
        }
        result = api().test(request, &done, nullptr);
        return result != NcclResult::success || done != 0;
      },
      seconds(20)));
  EXPECT_EQ(done, 0) << "the whole message arrived before the peer stopped";
  EXPECT_EQ(result, NcclResult::remote_error);
  ASSERT_TRUE(stopped) << "the peer never saw a byte";
  EXPECT_LT(std::chrono::steady_clock::now() - *stopped, nothing_answers);
  EXPECT_TRUE(api().close_send(comm));
  part();
}

/// Takes so many connections in turn, and closes each when the peer says so.
int acceptor_role(int fd, int version, int count) {
  auto library = load_library(version);
  for (int i = 0; library && i < count; ++i) {
    tools::NetHandle handle{};
    auto listening = library->api().listen(0, handle);
    if (!listening || !write_all(fd, handle.data(), handle.size())) {
      return 2;
    }
    void* comm = nullptr;
    bool failed = false;
    until(
        [&] {
          auto got = library->api().accept(*listening);
          failed = !got;
          comm = got ? *got : nullptr;
          return failed || comm != nullptr;
        },
        seconds(25));
    char go_on = 0;
    if (comm == nullptr || !read_all(fd, &go_on, 1) || !library->api().close_recv(comm) ||
        !library->api().close_listen(*listening)) {
      return 3;
    }
  }
  return 0;
}

/// For longer than HA_NCCL_RTO_MS, after which a ready side gives up a path that is silent, and
/// than the budget.
TEST_P(LostPeer, AProcessThatStandsStillWhileAConnectionIsMadeCostsOnlyTime) {
  constexpr int rounds = 8;
  Child child([&](int fd) { return acceptor_role(fd, std::get<0>(GetParam()), rounds); });
  library_ = load_library(std::get<1>(GetParam()));
  ASSERT_NE(library_, nullptr);
  int held_up = 0;
  for (int round = 0; round < rounds; ++round) {
    tools::NetHandle handle{};
    ASSERT_TRUE(read_all(child.fd(), handle.data(), handle.size())) << "round " << round;
    // Somewhere in the handshake, which takes a millisecond or two.
    const auto begun = std::chrono::steady_clock::now();
    const auto stop_at = begun + std::chrono::microseconds(round * 250);
    if (round == 0) {
      child.signal_child(SIGSTOP);  // whatever runs first
    }
    std::thread stopper([&] {
      until([&] { return std::chrono::steady_clock::now() >= stop_at; });
      child.signal_child(SIGSTOP);
      static_cast<void>(until([] { return false; }, std::chrono::milliseconds(1500)));
      child.signal_child(SIGCONT);
    });
    void* comm = nullptr;
    bool failed = false;
    EXPECT_TRUE(until(
        [&] {
          auto got = api().connect(0, handle);
          failed = !got;
          comm = got ? *got : nullptr;
          return failed || comm != nullptr;
        },
        seconds(25)));
    held_up += std::chrono::steady_clock::now() - begun > seconds(1) ? 1 : 0;
    stopper.join();
    ASSERT_FALSE(failed) << "round " << round;
    ASSERT_TRUE(write_all(child.fd(), "!", 1));
    EXPECT_TRUE(api().close_send(comm));
  }
  EXPECT_GE(held_up, 1) << "it stood still when all connections had been made";
  EXPECT_EQ(child.wait(), 0) << "accept() failed";
  part();
}

std::string pair_name(const ::testing::TestParamInfo<std::tuple<int, int, bool>>& instance) {
  std::string name("v");
  name += std::to_string(std::get<0>(instance.param));
  name += "_to_v";
  name += std::to_string(std::get<1>(instance.param));
  name += std::get<2>(instance.param) ? "_threads" : "_inline";
  return name;
}
INSTANTIATE_TEST_SUITE_P(Abi, TwoProcesses,
                         ::testing::Combine(::testing::Values(6, 12), ::testing::Values(9, 12),
                                            ::testing::Bool()),
                         pair_name);
INSTANTIATE_TEST_SUITE_P(Abi, LostPeer,
                         ::testing::Combine(::testing::Values(12), ::testing::Values(12),
                                            ::testing::Bool()),
                         pair_name);

}  // namespace
}  // namespace nccl_ha::test
