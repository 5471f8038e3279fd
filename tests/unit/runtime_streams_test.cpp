#include <errno.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <vector>

#include "runtime/streams/uv_streams.h"
#include "tests/support/in_fork.h"
#include "tests/support/until.h"

namespace nccl_ha {
namespace {

using test::until;

struct Owner final : StreamOwner {
  void on_stream_open(Stream& stream) override { (void)stream; }
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override {
    (void)stream;
    if (std::exchange(out_of_memory, false)) {
      throw std::bad_alloc();
    }
    received += bytes.size();
  }
  void on_stream_closed(Stream& stream, const Error& error) override {
    (void)stream;
    ended = true;
    why = error;
  }
  size_t received = 0;
  bool out_of_memory = false;
  bool ended = false;
  Error why;
};

/// From now on the kernel watches no further descriptor of this process.
bool refuse_watches() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, EPOLL_CTL_ADD, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(steps)), steps};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

std::array<int, 2> socket_pair() {
  std::array<int, 2> ends{-1, -1};
  socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data());
  return ends;
}

struct Unheard final : FdWatchOwner, DatagramOwner {
  void on_readable(int) override {}
  void on_datagram(std::span<const std::byte>, const sockaddr*) override {}
};

/// libuv would end the process when its loop runs.
TEST(UvStreamsRoom, WhatTheKernelDoesNotWatchIsRefusedAndTheRestGoesOn) {
  const int status = test::in_fork([] {
    const auto streams = *make_uv_streams();
    Owner owner;
    const std::array<int, 2> early = socket_pair();
    const auto stream = streams->adopt_fd(early[0], &owner);
    streams->turn();
    const std::array<int, 2> late = socket_pair();
    const int own = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (!stream || !refuse_watches()) {
      return false;
    }
    Owner others;
    Unheard unheard;
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(1);
    const auto* const name = reinterpret_cast<const sockaddr*>(&to);
    const auto dialled = streams->connect_tcp(name, nullptr, &others);
    to.sin_port = 0;
    const bool refused =
        !dialled && dialled.error().sys == ENOSPC && !streams->connect_unix("/nowhere", &others) &&
        !streams->adopt_fd(late[0], &others) && !streams->watch_fd(own, &unheard) &&
        !streams->bind_datagram(name, &unheard) && !make_uv_streams();
    const bool written = write(early[1], "123", 3) == 3;
    return refused && written && until([&] {
             streams->turn();
             return owner.received == 3;
           });
  });
  EXPECT_EQ(status, 0);
}

class UvStreamsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> pair{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()), 0);
    peer_ = pair[1];
    streams_ = *make_uv_streams();
    stream_ = *streams_->adopt_fd(pair[0], &owner_);
  }
  void TearDown() override {
    if (peer_ >= 0) {
      close(peer_);
    }
  }
  bool turn_until(const std::function<bool()>& done) {
    return until([&] {
      streams_->turn();
      return done();
    });
  }

  Owner owner_;
  int peer_ = -1;
  std::unique_ptr<StreamFactory> streams_;
  std::unique_ptr<Stream> stream_;
};

// In inline mode this thread is the application's, which may not know of SIGPIPE.
TEST_F(UvStreamsTest, WritingToAPeerThatIsGoneDoesNotEndTheProcess) {
  ASSERT_NE(signal(SIGPIPE, SIG_DFL), SIG_ERR);
  close(std::exchange(peer_, -1));
  const std::array<std::byte, 16> bytes{};
  static_cast<void>(stream_->write(bytes));
  static_cast<void>(stream_->write(bytes));
  EXPECT_TRUE(turn_until([&] { return owner_.ended; }));
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0) << "it is left for the application";
}

TEST_F(UvStreamsTest, AnOwnerWithoutMemoryEndsTheTurnAndNothingElse) {
  owner_.out_of_memory = true;
  ASSERT_EQ(write(peer_, "12345", 5), 5);
  const auto turns = [&] {
    streams_->turn();
    return false;
  };
  EXPECT_THROW(until(turns), std::bad_alloc);
  ASSERT_EQ(write(peer_, "678", 3), 3);
  EXPECT_TRUE(turn_until([&] { return owner_.received == 3; }));
}

TEST_F(UvStreamsTest, AStreamMayBeKeptLongAfterItWasClosed) {
  stream_->shutdown_then_close();
  EXPECT_TRUE(turn_until([&] { return streams_->open_handles() == 0; }));
  const std::array<std::byte, 16> bytes{};
  EXPECT_FALSE(stream_->write(bytes));
  EXPECT_FALSE(stream_->local_address());
  stream_->shutdown_then_close();
  stream_.reset();
  EXPECT_EQ(streams_->open_handles(), 0U);
}

TEST_F(UvStreamsTest, ClosingWhatThePeerHasEndedIsNoMatter) {
  close(std::exchange(peer_, -1));
  EXPECT_TRUE(turn_until([&] { return owner_.ended; }));
  stream_->shutdown_then_close();
  EXPECT_TRUE(turn_until([&] { return streams_->open_handles() == 0; }));
  EXPECT_FALSE(stream_->write(std::array<std::byte, 1>{}));
}

TEST_F(UvStreamsTest, WhatThePeerSaidBeforeItClosedIsReadFirst) {
  const std::array<std::byte, 16> bytes{};
  ASSERT_EQ(write(peer_, bytes.data(), bytes.size()), 16);
  close(std::exchange(peer_, -1));
  static_cast<void>(stream_->write(bytes));  // fails
  EXPECT_TRUE(turn_until([&] { return owner_.ended; }));
  EXPECT_EQ(owner_.received, 16U);
}

/// Of a dial: when there is a stream; of bytes: when the peer's kernel has them.
TEST_F(UvStreamsTest, TellsWhetherAllHasArrivedAtThePeersHost) {
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof to;
  ASSERT_EQ(bind(listening, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  ASSERT_EQ(listen(listening, 0), 0);  // one waits, and who comes then is not answered
  ASSERT_EQ(getsockname(listening, reinterpret_cast<sockaddr*>(&to), &length), 0);
  Owner owner;
  const auto dial = [&] {
    return *streams_->connect_tcp(reinterpret_cast<const sockaddr*>(&to), nullptr, &owner);
  };
  const auto stream = dial();
  EXPECT_FALSE(stream->all_arrived()) << "the dial itself";
  ASSERT_TRUE(turn_until([&] { return stream->all_arrived(); }));
  const auto unanswered = dial();
  const std::vector<std::byte> bytes(1 << 20);
  ASSERT_TRUE(stream->write(std::span(bytes).first(100)));
  EXPECT_TRUE(turn_until([&] { return stream->all_arrived(); })) << "nobody need read it";
  EXPECT_FALSE(unanswered->all_arrived());
  while (stream->write(bytes)) {
    streams_->turn();
  }
  EXPECT_FALSE(stream->all_arrived()) << "more than the peer's kernel takes";
  close(listening);
  EXPECT_TRUE(turn_until([&] { return owner.ended; }));
}

TEST_F(UvStreamsTest, ListensOnAPortThatItTells) {
  struct Accepts final : AcceptorOwner {
    void on_accept(int fd) override {
      close(fd);
      ++count;
    }
    void on_acceptor_error(const Error& error) override { FAIL() << error.message(); }
    int count = 0;
  } accepts;
  const auto listening = streams_->open_listener("0");
  ASSERT_TRUE(listening) << listening.error().message();
  ASSERT_NE(listening->port, 0);
  auto acceptor = streams_->adopt_listener(listening->fd, &accepts);
  ASSERT_TRUE(acceptor) << acceptor.error().message();
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(listening->port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Owner dialler;
  auto dialled = streams_->connect_tcp(reinterpret_cast<const sockaddr*>(&to), nullptr, &dialler);
  ASSERT_TRUE(dialled);
  EXPECT_TRUE(turn_until([&] { return accepts.count == 1; }));
}

}  // namespace
}  // namespace nccl_ha
