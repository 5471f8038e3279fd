// The watch of a device's asynchronous events, on a device that exists only here.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/engine/engine.h"
#include "runtime/fabric/verbs/device_watch.h"

namespace nccl_ha::fabric::verbs {
namespace {

// Events come as packets over a socket pair, as they come over a descriptor from the kernel.
struct FakeDevice {
  ibv_context context{};
  ibv_pd pd{};
  ibv_cq queue{};
  ibv_qp pair{};
  std::vector<std::unique_ptr<ibv_mr>> regions;
  int deregistered = 0;
  int driver = -1;
  std::atomic<int> acknowledged{0};
  std::atomic<int> closed{0};
  std::atomic<bool> taken_away{false};  ///< and its descriptor does not say so
  ibv_comp_channel channel{};
  int channel_end = -1;                     ///< the kernel's, of the channel
  std::atomic<bool> channel_closed{false};  ///< for who reads, and poll() does not say so
  std::string order;                        ///< in which things were made and ended
};
FakeDevice* fake = nullptr;

Library fake_library() {
  Library library;
  library.device.get_name = [](ibv_device*) { return "fake0"; };
  library.device.open = [](ibv_device*) { return &fake->context; };
  library.device.close = [](ibv_context*) {
    ++fake->closed;
    fake->order += " -context";
    return 0;
  };
  library.device.query = [](ibv_context*, ibv_device_attr*) { return 0; };
  library.memory.alloc_domain = [](ibv_context*) {
    fake->order += " +domain";
    return &fake->pd;
  };
  library.memory.free_domain = [](ibv_pd*) {
    fake->order += " -domain";
    return 0;
  };
  library.completion.create_channel = [](ibv_context*) {
    fake->order += " +channel";
    return &fake->channel;
  };
  library.completion.destroy_channel = [](ibv_comp_channel*) {
    fake->order += " -channel";
    return 0;
  };
  library.completion.get_event = [](ibv_comp_channel*, ibv_cq**, void**) {
    errno = fake->channel_closed ? EIO : EAGAIN;
    return -1;
  };
  library.memory.reg = [](ibv_pd*, void* base, size_t length, int) {
    fake->regions.push_back(std::make_unique<ibv_mr>());
    fake->regions.back()->addr = base;
    fake->regions.back()->length = length;
    return fake->regions.back().get();
  };
  library.memory.dereg = [](ibv_mr*) {
    ++fake->deregistered;
    return 0;
  };
  library.event.type_text = [](ibv_event_type) { return "an event of the test"; };
  library.event.get = [](ibv_context* context, ibv_async_event* event) {
    if (fake->taken_away) {
      errno = EIO;
      return -1;
    }
    const ssize_t got = recv(context->async_fd, event, sizeof *event, MSG_DONTWAIT);
    errno = got == 0 ? EIO : errno;  // nobody is there any more
    return got == static_cast<ssize_t>(sizeof *event) ? 0 : -1;
  };
  library.event.ack = [](ibv_async_event*) { ++fake->acknowledged; };
  return library;
}

class DeviceWatching : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    device_of_test_.context.async_fd = ends[0];
    device_of_test_.driver = ends[1];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    device_of_test_.channel.fd = ends[0];
    device_of_test_.channel_end = ends[1];
    fake = &device_of_test_;
    config_.use_progress_thread = GetParam();
    auto device = Device::open(library_, nullptr, config_);
    ASSERT_TRUE(device) << device.error().message();
    device_ = *device;
    auto engine = Engine::start(config_);
    ASSERT_TRUE(engine);
    engine_ = std::move(*engine);
    device_->watched.store(true);
    DeviceWatch::Return back;
    back.open = [this] {
      const std::lock_guard lock(mutex_);
      ++looks_;
      return successor_ ? std::vector<UsablePort>{{std::exchange(successor_, nullptr), {}}}
                        : std::vector<UsablePort>();
    };
    back.take = [this](const std::vector<UsablePort>& found) {
      back_ += found.front().device != device_ ? 1 : 0;
    };
    ASSERT_TRUE(engine_->worker(0).adopt(std::make_unique<DeviceWatch>(
        device_,
        [this](EventEffect effect, unsigned) {
          lost_told_ += effect == EventEffect::device_lost ? 1 : 0;
        },
        std::move(back))));
  }
  void TearDown() override {
    engine_.reset();
    device_.reset();
    close(device_of_test_.context.async_fd);
    close(device_of_test_.driver);
    close(device_of_test_.channel.fd);
    close_channel();
    fake = nullptr;
  }
  /// The kernel does: poll() tells, and nothing can be read that would.
  void close_channel() {
    if (device_of_test_.channel_end >= 0) {
      close(std::exchange(device_of_test_.channel_end, -1));
    }
  }
  bool is_gone() { return device_->health.level() == DeviceHealth::Level::gone; }
  void happen(ibv_event_type type) {
    ibv_async_event event{};
    event.event_type = type;
    event.element.port_num = 1;
    if (type == IBV_EVENT_CQ_ERR) {
      event.element.cq = &device_of_test_.queue;
    } else if (type == IBV_EVENT_QP_FATAL) {
      event.element.qp = &device_of_test_.pair;
    }
    ASSERT_EQ(send(device_of_test_.driver, &event, sizeof event, 0),
              static_cast<ssize_t>(sizeof event));
  }
  template <typename Condition>
  bool until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) {
        return false;
      }
      engine_->assist_all();
      sched_yield();
    }
    return true;
  }

  FakeDevice device_of_test_;
  Library library_ = fake_library();
  Config config_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<Engine> engine_;
  std::atomic<int> lost_told_{0};
  std::mutex mutex_;
  std::shared_ptr<Device> successor_;  ///< to be found; under the mutex
  std::atomic<int> looks_{0};
  std::atomic<int> back_{0};
};

TEST_P(DeviceWatching, EveryEventIsReadAndAcknowledged) {
  // More than one turn takes.
  for (int i = 0; i < 50; ++i) {
    happen(i % 2 == 0 ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE);
  }
  EXPECT_TRUE(until([&] { return device_of_test_.acknowledged.load() == 50; }))
      << device_of_test_.acknowledged.load();
  EXPECT_TRUE(device_->health.usable()) << "a port that flaps is no lost device";
}

TEST_P(DeviceWatching, ALostDeviceIsMarkedAndWhenTheKernelHasTakenItAway) {
  happen(IBV_EVENT_DEVICE_FATAL);
  EXPECT_TRUE(until([&] { return !device_->health.usable(); }));
  EXPECT_EQ(device_->health.level(), DeviceHealth::Level::lost);
  ASSERT_EQ(shutdown(device_of_test_.driver, SHUT_RDWR), 0);
  EXPECT_TRUE(until([&] { return device_->health.level() == DeviceHealth::Level::gone; }));
}

// Kernels of before 2020 close the descriptor and do not tell who polls.
TEST_P(DeviceWatching, ALostDeviceIsLookedAtUntilItIsGone) {
  happen(IBV_EVENT_DEVICE_FATAL);
  EXPECT_TRUE(until([&] { return device_->health.level() == DeviceHealth::Level::lost; }));
  device_of_test_.taken_away = true;
  EXPECT_TRUE(until([&] { return device_->health.level() == DeviceHealth::Level::gone; }));
}

// Linux as of 5.7: the descriptor of events stays open, and ends with a second DEVICE_FATAL.
TEST_P(DeviceWatching, ALostDeviceIsGoneWhenItsOldestChannelIsClosed) {
  happen(IBV_EVENT_DEVICE_FATAL);
  EXPECT_TRUE(until([&] { return device_->health.level() == DeviceHealth::Level::lost; }));
  happen(IBV_EVENT_DEVICE_FATAL);
  EXPECT_TRUE(until([&] { return device_of_test_.acknowledged.load() == 2; }));
  EXPECT_FALSE(is_gone()) << "how many come says nothing";
  close_channel();
  EXPECT_TRUE(until([&] { return is_gone(); })) << "no event tells";
  EXPECT_EQ(lost_told_.load(), 1);
}

// One that is removed in order has one event, which is the last.
TEST_P(DeviceWatching, ADeviceThatWasRemovedInOrderIsGoneWithItsOnlyEvent) {
  happen(IBV_EVENT_GID_CHANGE);  // by then it is watched
  ASSERT_TRUE(until([&] { return device_of_test_.acknowledged.load() == 1; }));
  close_channel();
  happen(IBV_EVENT_DEVICE_FATAL);
  EXPECT_TRUE(until([&] { return is_gone(); }));
  EXPECT_EQ(lost_told_.load(), 1);
}

TEST_P(DeviceWatching, AChannelThatIsClosedForWhoReadsIsEnough) {
  happen(IBV_EVENT_DEVICE_FATAL);
  EXPECT_TRUE(until([&] { return device_->health.level() == DeviceHealth::Level::lost; }));
  device_of_test_.channel_closed = true;
  EXPECT_TRUE(until([&] { return is_gone(); }));
}

// No DEVICE_FATAL has come yet.
TEST_P(DeviceWatching, AFailedDeviceIsLookedAtUntilItIsGone) {
  happen(IBV_EVENT_CQ_ERR);
  EXPECT_TRUE(until([&] { return device_->health.level() == DeviceHealth::Level::failed; }));
  close_channel();
  EXPECT_TRUE(until([&] { return is_gone(); }));
}

// The kernel destroys the newest first.
TEST_P(DeviceWatching, TheChannelThatTellsIsOlderThanAllElseThatIsMade) {
  EXPECT_EQ(device_of_test_.order, " +channel +domain");
  engine_.reset();
  device_.reset();
  EXPECT_EQ(device_of_test_.order, " +channel +domain -domain -channel -context");
}

// Whoever sees that a device answers nothing marks it, and tells nobody.
TEST_P(DeviceWatching, AllAreToldOnceWhoeverFoundOutFirst) {
  device_->health.worsen(DeviceHealth::Level::lost);
  happen(IBV_EVENT_DEVICE_FATAL);
  EXPECT_TRUE(until([&] { return lost_told_.load() == 1; }));
  device_of_test_.taken_away = true;
  EXPECT_TRUE(until([&] { return device_->health.level() == DeviceHealth::Level::gone; }));
  EXPECT_EQ(lost_told_.load(), 1);
}

// The descriptor is closed for good whatever came before.
TEST_P(DeviceWatching, ADeviceThatIsTakenAwayWithoutAWordIsGone) {
  ASSERT_EQ(shutdown(device_of_test_.driver, SHUT_RDWR), 0);
  EXPECT_TRUE(until([&] { return device_->health.level() == DeviceHealth::Level::gone; }));
}

TEST_P(DeviceWatching, WhatComesInPlaceOfADeviceThatIsGoneIsWatchedFromThenOn) {
  EXPECT_EQ(looks_.load(), 0);
  happen(IBV_EVENT_DEVICE_FATAL);
  EXPECT_TRUE(until([&] { return device_->health.level() == DeviceHealth::Level::lost; }));
  EXPECT_EQ(looks_.load(), 0) << "it is not gone";
  device_of_test_.taken_away = true;
  EXPECT_TRUE(until([&] { return looks_.load() > 1; }));
  device_of_test_.taken_away = false;
  auto next = Device::open(library_, nullptr, config_);
  ASSERT_TRUE(next) << next.error().message();
  {
    const std::lock_guard lock(mutex_);
    successor_ = *next;
  }
  EXPECT_TRUE(until([&] { return back_.load() == 1; }));
  happen(IBV_EVENT_PORT_ERR);
  EXPECT_TRUE(until([&] { return device_of_test_.acknowledged.load() == 2; }));
  EXPECT_TRUE((*next)->watched.load());
  EXPECT_FALSE(device_->watched.load());
  EXPECT_TRUE((*next)->health.usable());
  EXPECT_FALSE(device_->health.usable());
  happen(IBV_EVENT_DEVICE_FATAL);
  EXPECT_TRUE(until([&] { return lost_told_.load() == 2; })) << "it may fail as the first one did";
}

TEST_P(DeviceWatching, QueuesThatFailAreNamedToTheirPorts) {
  int port = 0;
  device_of_test_.queue.cq_context = &port;
  happen(IBV_EVENT_QP_FATAL);
  happen(IBV_EVENT_CQ_ERR);
  EXPECT_TRUE(until([&] { return device_->faults.count() == 2; }));
  uint64_t seen = 1;
  EXPECT_EQ(device_->faults.since(&seen), (std::vector<const void*>{&device_of_test_.queue}));
  seen = 0;
  EXPECT_EQ(device_->faults.since(&seen).front(), &device_of_test_.pair);
  EXPECT_TRUE(device_->faults.since(&seen).empty());
  EXPECT_TRUE(device_->health.usable());
}

TEST_P(DeviceWatching, ChangesOfAddressesAreCounted) {
  happen(IBV_EVENT_GID_CHANGE);
  happen(IBV_EVENT_LID_CHANGE);
  happen(IBV_EVENT_PORT_ACTIVE);
  EXPECT_TRUE(until([&] { return device_of_test_.acknowledged.load() == 3; }));
  EXPECT_EQ(device_->address_changes.load(), 2U);
}

TEST_P(DeviceWatching, AQueueOfDatagramsThatIsLostIsNoLostDevice) {
  happen(IBV_EVENT_CQ_ERR);
  EXPECT_TRUE(until([&] { return device_->health.level() == DeviceHealth::Level::failed; }));
}

TEST_P(DeviceWatching, StopsWithTheEngineAndLetsTheDeviceGo) {
  happen(IBV_EVENT_GID_CHANGE);
  ASSERT_TRUE(until([&] { return device_of_test_.acknowledged.load() == 1; }));
  EXPECT_TRUE(device_->watched.load());
  engine_.reset();
  EXPECT_FALSE(device_->watched.load());
  EXPECT_EQ(device_.use_count(), 1);
  device_.reset();
  EXPECT_EQ(device_of_test_.closed.load(), 1);
}

INSTANTIATE_TEST_SUITE_P(Every, DeviceWatching, ::testing::Bool(),
                         [](const auto& p) { return p.param ? "threads" : "inline_turns"; });

TEST_P(DeviceWatching, MemoryIsSharedByExactRangeAndGoesWithItsLastUser) {
  std::vector<char> memory(8192);
  auto first = device_->add(memory.data(), 8192, MemoryKind::host);
  auto same = device_->add(memory.data(), 8192, MemoryKind::host);
  auto inside = device_->add(memory.data() + 4096, 1024, MemoryKind::host);
  auto shorter = device_->add(memory.data(), 4096, MemoryKind::host);
  ASSERT_TRUE(first && same && inside && shorter);
  EXPECT_EQ(first->mr, same->mr);
  EXPECT_NE(first->mr, inside->mr) << "a part of a wider range has a life of its own";
  EXPECT_NE(first->mr, shorter->mr);
  EXPECT_EQ(device_of_test_.regions.size(), 3U);
  device_->remove(*first);
  EXPECT_EQ(device_of_test_.deregistered, 0);
  device_->remove(*same);
  EXPECT_EQ(device_of_test_.deregistered, 1);
  auto* const last = reinterpret_cast<void*>(UINTPTR_MAX - 10);
  EXPECT_EQ(device_->add(last, 100, MemoryKind::host).code(), Errc::invalid_argument);
  EXPECT_EQ(device_->add(memory.data(), 0, MemoryKind::host).code(), Errc::invalid_argument);
  EXPECT_EQ(device_->add_dmabuf(memory.data(), 100, 0, -1).code(), Errc::invalid_usage);
}

TEST(EventEffects, TellAFlapFromALoss) {
  EXPECT_EQ(effect_of(IBV_EVENT_PORT_ERR), EventEffect::port_down);
  EXPECT_EQ(effect_of(IBV_EVENT_PORT_ACTIVE), EventEffect::port_up);
  EXPECT_EQ(effect_of(IBV_EVENT_GID_CHANGE), EventEffect::addresses);
  EXPECT_EQ(effect_of(IBV_EVENT_QP_FATAL), EventEffect::queue_fault);
  EXPECT_EQ(effect_of(IBV_EVENT_CQ_ERR), EventEffect::queue_lost);
  EXPECT_EQ(effect_of(IBV_EVENT_DEVICE_FATAL), EventEffect::device_lost);
  EXPECT_EQ(effect_of(IBV_EVENT_COMM_EST), EventEffect::none);
}

}  // namespace
}  // namespace nccl_ha::fabric::verbs
