// How ranks of nccl-ha perf meet and hear of each other's end.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <latch>
#include <thread>

#include "tools/common/bootstrap.h"
#include "tools/common/shared_barrier.h"

namespace nccl_ha::tools {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Instant in(Duration time) {
  SteadyClock clock;
  return clock.now() + time;
}

/// Ranks as threads, each with its own World.
class Ranks {
 public:
  explicit Ranks(uint32_t size) : size_(size) {
    auto listener = listen_on_loopback();
    EXPECT_TRUE(listener.ok());
    listener_ = *listener;
  }

  World::Options options(uint32_t rank) const {
    World::Options o;
    o.rank = rank;
    o.size = size_;
    o.host = "127.0.0.1";
    o.port = listener_.port;
    o.listen_fd = rank == 0 ? listener_.fd : -1;
    o.cookie = 99;
    o.join_deadline = in(seconds(20));
    o.deadline = in(seconds(30));
    return o;
  }

  using Body = std::function<void(Result<std::unique_ptr<World>>)>;
  void start(World::Options o, Body body) {
    threads_.emplace_back([o, body = std::move(body)]() mutable { body(World::join(o)); });
  }
  void start(uint32_t rank, Body body) { start(options(rank), std::move(body)); }

  void finish() {
    for (std::thread& thread : threads_) {
      thread.join();
    }
    threads_.clear();
  }
  ~Ranks() { finish(); }

  uint16_t port() const { return listener_.port; }

 private:
  uint32_t size_;
  LoopbackListener listener_;
  std::vector<std::thread> threads_;
};

TEST(World, gathers_and_broadcasts_by_rank) {
  Ranks ranks(4);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    ranks.start(rank, [rank](auto world) {
      ASSERT_TRUE(world.ok()) << world.error().message();
      for (int round = 0; round < 20; ++round) {
        const auto all = (*world)->all_gather(std::string(rank * 1000, 'a' + char(rank)));
        ASSERT_TRUE(all.ok()) << all.error().message();
        ASSERT_EQ(all->size(), 4U);
        EXPECT_EQ((*all)[3], std::string(3000, 'd'));
        const auto told = (*world)->broadcast(rank == 0 ? "go" : "ignored");
        ASSERT_TRUE(told.ok());
        EXPECT_EQ(*told, "go");
      }
    });
  }
}

TEST(World, only_rank_zero_gathers) {
  Ranks ranks(3);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ranks.start(rank, [rank](auto world) {
      ASSERT_TRUE(world.ok()) << world.error().message();
      // Together more than one message holds.
      const auto all = (*world)->gather(std::string(9U << 20, 'a' + char(rank)));
      ASSERT_TRUE(all.ok()) << all.error().message();
      ASSERT_EQ(all->size(), rank == 0 ? 3U : 0U);
      EXPECT_TRUE(rank != 0 || ((*all)[2][0] == 'c' && (*all)[2].size() == 9U << 20));
      EXPECT_TRUE((*world)->broadcast("done").ok());
    });
  }
}

TEST(World, what_is_too_long_to_be_told_is_refused_by_who_tells_it) {
  Ranks ranks(2);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.start(rank, [rank](auto world) {
      ASSERT_TRUE(world.ok()) << world.error().message();
      const auto all = (*world)->all_gather(std::string(9U << 20, 'a'));
      ASSERT_FALSE(all.ok());
      const std::string why = all.error().message();
      if (rank == 0) {
        EXPECT_NE(why.find("rank 0 has 18874376 bytes to tell rank 1"), std::string::npos) << why;
        (*world)->announce_failure(why);
      } else {
        EXPECT_NE(why.find("take fewer hosts"), std::string::npos) << why;
      }
    });
  }
}

TEST(World, a_rank_that_never_comes_is_named_in_time) {
  Ranks ranks(3);
  World::Options root = ranks.options(0);
  root.join_deadline = in(seconds(2));
  ranks.start(root, [](auto world) {
    ASSERT_FALSE(world.ok());
    EXPECT_EQ(world.code(), Errc::timed_out);
    EXPECT_NE(world.error().what.find("missing: 2"), std::string::npos) << world.error().what;
  });
  ranks.start(1, [](auto world) { EXPECT_FALSE(world.ok()); });
}

TEST(World, no_rank_zero_is_an_error_in_time) {
  World::Options options;
  options.rank = 1;
  options.size = 2;
  options.host = "127.0.0.1";
  const auto listener = listen_on_loopback();
  ASSERT_TRUE(listener.ok());
  close(listener->fd);  // a port where certainly nobody listens
  options.port = listener->port;
  options.join_deadline = in(milliseconds(200));
  options.deadline = in(seconds(30));
  const auto world = World::join(options);
  ASSERT_FALSE(world.ok());
  EXPECT_NE(world.error().what.find("cannot reach rank 0"), std::string::npos);
}

TEST(World, a_failure_reaches_everybody_with_its_reason) {
  Ranks ranks(4);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    ranks.start(rank, [rank](auto world) {
      ASSERT_TRUE(world.ok());
      if (rank == 2) {
        (*world)->announce_failure("rank 2 failed: the cable is cut");
        return;
      }
      const auto met = (*world)->barrier();
      ASSERT_FALSE(met.ok());
      EXPECT_EQ(met.code(), Errc::closed);
      EXPECT_NE(met.error().what.find("the cable is cut"), std::string::npos) << met.error().what;
      EXPECT_FALSE((*world)->check().ok());
    });
  }
}

TEST(World, a_rank_that_vanishes_is_noticed_by_all_who_look) {
  // Who has noticed stays until the other has too: leaving is noticed as well.
  std::latch noticed(2);
  Ranks ranks(3);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ranks.start(rank, [rank, &noticed](auto world) {
      ASSERT_TRUE(world.ok());
      if (rank == 1) {
        return;  // closes its connection without a word
      }
      Result<void> state;
      while (state.ok()) {
        state = (*world)->check();
        std::this_thread::yield();
      }
      EXPECT_EQ(state.code(), Errc::closed) << state.error().message();
      EXPECT_NE(state.error().what.find("rank 1 ended"), std::string::npos) << state.error().what;
      noticed.arrive_and_wait();
    });
  }
}

TEST(World, waits_end_at_the_deadline) {
  Ranks ranks(2);
  World::Options root = ranks.options(0);
  root.deadline = in(seconds(2));
  ranks.start(root, [](auto world) {
    ASSERT_TRUE(world.ok());
    const auto met = (*world)->barrier();
    ASSERT_FALSE(met.ok());
    EXPECT_EQ(met.code(), Errc::timed_out);
  });
  ranks.start(1, [](auto world) {
    ASSERT_TRUE(world.ok());
    Result<void> state;
    while (state.ok()) {  // until rank 0 has given up
      state = (*world)->check();
      std::this_thread::yield();
    }
  });
}

TEST(World, another_command_line_is_refused) {
  Ranks ranks(2);
  ranks.start(0, [](auto world) {
    ASSERT_FALSE(world.ok());
    EXPECT_NE(world.error().what.find("same command line"), std::string::npos);
  });
  World::Options other = ranks.options(1);
  other.cookie = 100;
  ranks.start(other, [](auto world) { EXPECT_FALSE(world.ok()); });
}

int call(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

TEST(World, who_is_first_does_not_own_the_door) {
  Ranks ranks(2);
  std::vector<int> crowd(300);
  for (int& fd : crowd) {
    fd = call(ranks.port());
  }
  const auto meets = [](auto world) { ASSERT_TRUE(world.ok()) << world.error().message(); };
  ranks.start(0, meets);
  char byte = 0;
  EXPECT_EQ(recv(crowd[300 - 256 - 1], &byte, 1, 0), 0) << "it gives way to a later one";
  EXPECT_LT(recv(crowd.back(), &byte, 1, MSG_DONTWAIT), 0) << "the newest stay";
  ranks.start(1, meets);
  ranks.finish();
  for (const int fd : crowd) {
    close(fd);
  }
}

TEST(World, unknown_peers_do_not_disturb) {
  Ranks ranks(2);
  std::vector<int> newcomers;
  const std::string texts[] = {"", "GET / HTTP/1.0\r\n\r\n", std::string(5, '\0'),
                               std::string(1000, '\xff')};
  for (const std::string& text : texts) {
    const int fd = call(ranks.port());
    ASSERT_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), ssize_t(text.size()));
    newcomers.push_back(fd);
  }
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.start(rank, [](auto world) {
      ASSERT_TRUE(world.ok()) << world.error().message();
      EXPECT_TRUE((*world)->barrier().ok());
    });
  }
  ranks.finish();
  for (const int fd : newcomers) {
    close(fd);
  }
}

TEST(SharedBarrier, lets_nobody_through_early) {
  constexpr uint32_t count = 3;
  constexpr int rounds = 2000;
  SharedBarrier barrier;
  std::atomic<int> arrivals{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < count; ++i) {
    threads.emplace_back([&] {
      for (int round = 1; round <= rounds; ++round) {
        arrivals.fetch_add(1);
        EXPECT_TRUE(barrier.wait(count, [] { return Result<void>(); }).ok());
        EXPECT_GE(arrivals.load(), round * int(count));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(SharedBarrier, gives_up_when_the_check_fails) {
  SharedBarrier barrier;
  const auto met = barrier.wait(2, [] { return Result<void>(fail(Errc::closed, "gone")); });
  ASSERT_FALSE(met.ok());
  EXPECT_EQ(met.error().what, "gone");
}

}  // namespace
}  // namespace nccl_ha::tools
