// A process that closes its connection, finalizes and unloads the library at once: what it has to
// say gets through all the same, also when its control stream is dead, silently or not.
#include <dirent.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/other_process.h"
#include "tests/support/own_time.h"
#include "tests/support/pipe_io.h"

namespace nccl_ha::test {
namespace {

/// A close is heard by then; a peer that merely vanished is not found dead much sooner.
constexpr double heard_within_ms = 1000;
constexpr size_t message_bytes = 100000;

/// What happens to the control stream before the close.
enum class Stream {
  works,
  silent,  ///< neither end gets anything any more, nor notices
  ended,   ///< both ends are told that it is over
};

/// The TCP connections of this process.
std::vector<int> open_streams() {
  std::vector<int> found;
  DIR* all = opendir("/proc/self/fd");
  while (const dirent* entry = all == nullptr ? nullptr : readdir(all)) {
    const std::string_view name(entry->d_name);
    int fd = -1;
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (std::from_chars(name.data(), name.data() + name.size(), fd).ec == std::errc() &&
        getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
        (peer.ss_family == AF_INET || peer.ss_family == AF_INET6)) {
      found.push_back(fd);
    }
  }
  closedir(all);
  return found;
}

/// This end of all of them; false: there was nothing to break.
bool break_streams(Stream how) {
  const std::vector<int> all = open_streams();
  for (const int fd : all) {
    if (how == Stream::ended) {
      static_cast<void>(shutdown(fd, SHUT_RDWR));
    } else if (how == Stream::silent) {
      // What arrives for the socket is dropped before TCP sees it, acknowledgements too.
      sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
      const sock_fprog filter{1, &nothing};
      if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) != 0) {
        return false;
      }
    }
  }
  return !all.empty();
}

struct Case {
  bool threads;
  Stream stream;
};

/// Posts until there is a request; null after an error.
void* post(const std::function<NcclResult(void** request)>& call) {
  void* request = nullptr;
  static_cast<void>(
      until([&] { return call(&request) != NcclResult::success || request != nullptr; }));
  return request;
}

void* post_receive(tools::NetApi& api, void* comm, std::vector<unsigned char>& to, void* key) {
  void* data = to.data();
  size_t bytes = to.size();
  int tag = 1;
  return post(
      [&](void** request) { return api.irecv(comm, 1, &data, &bytes, &tag, &key, request); });
}

/// Closes, finalizes and unloads, without a pause; the exit status of its process.
int leave(std::unique_ptr<tools::NetLibrary> library, int fd, bool closed) {
  if (!closed || !library->api().finalize()) {
    return 11;
  }
  library.reset();
  if (plugin_threads() != 0 || plugin_mapped()) {
    return 12;
  }
  // The kernel ends what the process leaves behind only when the peer has seen what there was.
  char seen = 0;
  return read_all(fd, &seen, 1) ? 0 : 13;
}

class CloseAtOnce : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("HA_NCCL_USE_PROGRESS_THREAD", GetParam().threads ? "1" : "0", 1);
    ASSERT_EQ(plugin_threads(), 0U) << "the other process must be forked from a single thread";
    static_cast<void>(tools::take_plugin_warnings());
  }
  void load() {
    library_ = load_library(12);
    ASSERT_NE(library_, nullptr);
  }
  tools::NetApi& api() { return library_->api(); }
  /// The other side, which is ready for it, closes.  Where the stream is to be silent this end of
  /// it is broken as well.
  void let_close(const Child& child) {
    char ready = 0;
    ASSERT_TRUE(read_all(child.fd(), &ready, 1));
    if (GetParam().stream == Stream::silent) {
      ASSERT_TRUE(break_streams(Stream::silent));
    }
    since_close_.emplace(std::vector{child.pid(), getpid()});
    ASSERT_TRUE(write_all(child.fd(), "!", 1));
  }
  /// Heard of the close, in time; nobody had to find out that the peer is gone.
  void expect_heard() {
    EXPECT_LE(since_close_->ms(), heard_within_ms);
    for (const std::string& warning : tools::take_plugin_warnings()) {
      EXPECT_EQ(warning.find(" failed: "), std::string::npos) << warning;
    }
  }
  void part(Child& child) {
    ASSERT_TRUE(write_all(child.fd(), "!", 1));
    const int status = child.wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
    EXPECT_TRUE(api().finalize());
    library_.reset();
    EXPECT_EQ(plugin_threads(), 0U);
  }

  void let_receiver_close(bool& close_needed);

  std::unique_ptr<tools::NetLibrary> library_;
  std::optional<OwnTime> since_close_;
};

/// Connects to the handle that it reads; closes when it is told to.
int closing_sender(int fd, Stream stream) {
  auto library = load_library(12);
  tools::NetHandle handle{};
  if (!library || !read_all(fd, handle.data(), handle.size())) {
    return 2;
  }
  void* comm = nullptr;
  static_cast<void>(until([&] {
    auto got = library->api().connect(0, handle);
    comm = got ? *got : nullptr;
    return !got || comm != nullptr;
  }));
  char go = 0;
  if (comm == nullptr || !write_all(fd, "r", 1) || !read_all(fd, &go, 1) ||
      !break_streams(stream)) {
    return 3;
  }
  const bool closed = static_cast<bool>(library->api().close_send(comm));
  return leave(std::move(library), fd, closed);
}

TEST_P(CloseAtOnce, OfASenderFailsTheReceiveThatWaits) {
  Child child([](int fd) { return closing_sender(fd, GetParam().stream); });
  ASSERT_NO_FATAL_FAILURE(load());
  tools::NetHandle handle{};
  auto listening = api().listen(0, handle);
  ASSERT_TRUE(listening);
  ASSERT_TRUE(write_all(child.fd(), handle.data(), handle.size()));
  void* comm = nullptr;
  ASSERT_TRUE(until([&] {
    auto got = api().accept(*listening);
    EXPECT_TRUE(got);
    comm = got ? *got : nullptr;
    return HasFailure() || comm != nullptr;
  }));
  ASSERT_TRUE(api().close_listen(*listening));
  std::vector<unsigned char> memory(message_bytes);
  auto key = api().register_memory(comm, memory.data(), memory.size());
  ASSERT_TRUE(key);
  void* request = post_receive(api(), comm, memory, *key);
  ASSERT_NE(request, nullptr);
  int done = 0;
  ASSERT_EQ(api().test(request, &done, nullptr), NcclResult::success);
  ASSERT_NO_FATAL_FAILURE(let_close(child));
  NcclResult result = NcclResult::success;
  EXPECT_TRUE(until([&] {
    result = api().test(request, &done, nullptr);
    return result != NcclResult::success || done != 0;
  }));
  EXPECT_EQ(done, 0);
  EXPECT_EQ(result, NcclResult::remote_error);
  expect_heard();
  EXPECT_TRUE(api().close_recv(comm));
  part(child);
}

/// Takes one message, of whose arrival its acknowledgements say nothing, and closes.
int closing_receiver(int fd, Stream stream) {
  setenv("HA_NCCL_DGRAM_FAULTS", "ack_loss=1", 1);
  setenv("HA_NCCL_HEARTBEAT_MS", "0", 1);  // they acknowledge as well
  auto library = load_library(12);
  tools::NetHandle handle{};
  auto listening = library ? library->api().listen(0, handle) : Result<void*>(nullptr);
  if (!library || !listening || !write_all(fd, handle.data(), handle.size())) {
    return 2;
  }
  tools::NetApi& api = library->api();
  void* comm = nullptr;
  static_cast<void>(until([&] {
    auto got = api.accept(*listening);
    comm = got ? *got : nullptr;
    return !got || comm != nullptr;
  }));
  std::vector<unsigned char> memory(message_bytes);
  auto key = comm != nullptr ? api.register_memory(comm, memory.data(), memory.size())
                             : Result<void*>(nullptr);
  if (comm == nullptr || !api.close_listen(*listening) || !key) {
    return 3;
  }
  void* request = post_receive(api, comm, memory, *key);
  int done = 0;
  static_cast<void>(until([&] {
    return request == nullptr || api.test(request, &done, nullptr) != NcclResult::success ||
           done != 0;
  }));
  // The stream breaks no earlier: who looks for a lost one asks over the paths, and that
  // acknowledges as well.
  char go = 0;
  if (done == 0 || memory != std::vector<unsigned char>(message_bytes, 0x5A) ||
      !write_all(fd, "a", 1) || !read_all(fd, &go, 1) || !break_streams(stream)) {
    return 4;
  }
  const bool closed = api.deregister_memory(comm, *key) && static_cast<bool>(api.close_recv(comm));
  return leave(std::move(library), fd, closed);
}

/// `close_needed`: nothing but the close can have told that the data arrived.  On a busy machine
/// something else of the receiver's may acknowledge before.
void CloseAtOnce::let_receiver_close(bool& close_needed) {
  Child child([](int fd) { return closing_receiver(fd, GetParam().stream); });
  ASSERT_NO_FATAL_FAILURE(load());
  tools::NetHandle handle{};
  ASSERT_TRUE(read_all(child.fd(), handle.data(), handle.size()));
  void* comm = nullptr;
  ASSERT_TRUE(until([&] {
    auto got = api().connect(0, handle);
    EXPECT_TRUE(got);
    comm = got ? *got : nullptr;
    return HasFailure() || comm != nullptr;
  }));
  std::vector<unsigned char> memory(message_bytes, 0x5A);
  auto key = api().register_memory(comm, memory.data(), memory.size());
  ASSERT_TRUE(key);
  const auto send = [&](void** request) {
    return api().isend(comm, memory.data(), memory.size(), 1, *key, request);
  };
  void* request = post(send);
  ASSERT_NE(request, nullptr);
  // Until the other side says that all has arrived the request is tested as NCCL would do it.
  int done = 0;
  pollfd arrived{child.fd(), POLLIN, 0};
  ASSERT_TRUE(until([&] {
    EXPECT_EQ(api().test(request, &done, nullptr), NcclResult::success);
    return HasFailure() || done != 0 || poll(&arrived, 1, 0) != 0;
  }));
  close_needed = done == 0;
  ASSERT_NO_FATAL_FAILURE(let_close(child));
  NcclResult result = NcclResult::success;
  EXPECT_TRUE(until([&] {
    result = done != 0 ? result : api().test(request, &done, nullptr);
    return result != NcclResult::success || done != 0;
  }));
  EXPECT_EQ(done, 1) << "its data had arrived";
  EXPECT_EQ(result, NcclResult::success);
  EXPECT_TRUE(until([&] {
    void* next = nullptr;
    result = send(&next);
    return result != NcclResult::success || next != nullptr;
  }));
  EXPECT_EQ(result, NcclResult::remote_error);
  expect_heard();
  EXPECT_TRUE(api().close_send(comm));
  part(child);
}

TEST_P(CloseAtOnce, OfAReceiverCompletesTheSendWhoseDataArrived) {
  bool close_needed = false;
  for (int attempt = 0; attempt < 5 && !close_needed; ++attempt) {
    ASSERT_NO_FATAL_FAILURE(let_receiver_close(close_needed));
  }
  EXPECT_TRUE(close_needed) << "an acknowledgement got through each time";
}

std::string case_name(const testing::TestParamInfo<Case>& instance) {
  const Case& one = instance.param;
  return std::string(one.threads ? "threads" : "inline") + (one.stream == Stream::works ? ""
                                                            : one.stream == Stream::silent
                                                                ? "_silent_stream"
                                                                : "_ended_stream");
}
INSTANTIATE_TEST_SUITE_P(Modes, CloseAtOnce,
                         testing::Values(Case{true, Stream::works}, Case{true, Stream::silent},
                                         Case{true, Stream::ended}, Case{false, Stream::works},
                                         Case{false, Stream::silent}, Case{false, Stream::ended}),
                         case_name);

}  // namespace
}  // namespace nccl_ha::test
