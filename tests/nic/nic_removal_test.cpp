// Emulated NICs that are taken away: by a driver that lets go of them in order, or after a reset;
// in the ways of both kernels, and what the product makes of it.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/parker.h"
#include "runtime/fabric/verbs/ud_io.h"
#include "tests/nic/nic_product.h"

namespace nccl_ha::test {
namespace {

using emulated::Control;
using emulated::Mode;

/// Whether poll() says that nothing comes there any more.
bool hangs_up(int fd) {
  pollfd asked{fd, POLLIN, 0};
  return poll(&asked, 1, 0) == 1 && (asked.revents & (POLLERR | POLLHUP)) != 0;
}

TEST(NicRemoval, MemoryGoesFirstTheNewestBeforeTheOthersThenQueuePairsThenTheRest) {
  with_nic("devices=2", [](Control& control) {
    QueuePairs older;
    older.connect(12, 1);
    QueuePairs newer;
    newer.connect(12, 1);
    ibv_comp_channel* channel = ibv_create_comp_channel(newer.b.context);
    control.remove(1, 1, 2'000'000'000);
    EXPECT_EQ(first_failure(newer), IBV_WC_REM_ACCESS_ERR);
    ibv_port_attr port{};
    EXPECT_EQ(ibv_query_port(older.b.context, 1, &port), EIO) << "no command is taken any more";
    EXPECT_EQ(ibv_dereg_mr(older.b.mr), EIO);
    ASSERT_EQ(older.a.post(IBV_WR_RDMA_WRITE, 2, older.b, 8), 0);
    const auto wc = older.a.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS) << "data moves still";
    EXPECT_FALSE(hangs_up(channel->fd));
    EXPECT_EQ(first_failure(older), IBV_WC_REM_ACCESS_ERR);
    EXPECT_GE(control.device(1, 1).counters.revoked.load(), 2U);
    EXPECT_EQ(newer.b.event(), IBV_EVENT_QP_ACCESS_ERR) << "of the write that was refused";
    EXPECT_EQ(older.b.event(), IBV_EVENT_QP_ACCESS_ERR) << "and of the other one";
    EXPECT_TRUE(await([&] { return hangs_up(channel->fd); }));
    EXPECT_EQ(control.device(1, 1).mode.load(), static_cast<uint32_t>(Mode::reset));
    EXPECT_EQ(newer.b.event(), IBV_EVENT_DEVICE_FATAL) << "nothing told of it before";
    EXPECT_EQ(newer.b.event(100), -1) << "once";
  });
}

TEST(NicRemoval, WhatIsSentFromMemoryThatWasTakenFailsWithItsOwner) {
  with_nic("devices=2", [](Control& control) {
    QueuePairs pairs;
    pairs.connect(12, 1);
    control.remove(1, 0, 200'000'000);
    EXPECT_EQ(first_failure(pairs), IBV_WC_LOC_PROT_ERR);
    EXPECT_GE(control.device(1, 0).counters.revoked.load(), 1U);
  });
}

TEST(NicRemoval, EachKernelTellsInItsOwnWay) {
  for (const bool old_kernel : {true, false}) {
    const std::string kernel = old_kernel ? "kernel=old" : "kernel=new";
    with_nic("removal=1500ms," + kernel, [&](Control& control) {
      QueueEnd end(0);
      ibv_comp_channel* channel = ibv_create_comp_channel(end.context);
      control.set_mode(1, 0, Mode::reset);
      EXPECT_EQ(end.event(), IBV_EVENT_DEVICE_FATAL);
      EXPECT_FALSE(hangs_up(channel->fd)) << "before its time";
      ibv_async_event event{};
      ibv_cq* cq = nullptr;
      void* context = nullptr;
      if (old_kernel) {
        EXPECT_TRUE(await([&] { return hangs_up(end.context->async_fd); }));
        EXPECT_EQ(ibv_get_async_event(end.context, &event), -1);
        EXPECT_EQ(errno, EIO);
        EXPECT_FALSE(hangs_up(channel->fd));
      } else {
        EXPECT_EQ(end.event(5000), IBV_EVENT_DEVICE_FATAL);
        EXPECT_TRUE(hangs_up(channel->fd)) << "it was younger";
        EXPECT_EQ(ibv_get_cq_event(channel, &cq, &context), -1);
        EXPECT_EQ(errno, EIO);
        EXPECT_FALSE(hangs_up(end.context->async_fd));
        EXPECT_EQ(end.event(0), -1);
      }
    });
  }
}

/// That of the second end.
template <class End>
void end_device(WatchedPair& pair, const End& end) {
  const auto& path = pair.paths[0].second;
  ASSERT_TRUE(pair.until([&] { return path->state() == PathState::ready; }));
  end();
  using Level = verbs::DeviceHealth::Level;
  EXPECT_TRUE(pair.until([&] { return pair.ends[1]->device->health.level() == Level::gone; }));
  EXPECT_TRUE(pair.fails(path));
}

TEST(NicRemoval, TheProductHearsThatADeviceIsGoneFromEitherKernel) {
  for (const char* kernel : {"kernel=old", "kernel=new"}) {
    for (const Mode mode : {Mode::reset, Mode::removing}) {
      with_nic(std::string("devices=2,") + kernel, [&](Control& control) {
        WatchedPair pair({});
        EXPECT_FALSE(pair.ends[1]->device->taken_away());
        end_device(pair, [&] {
          mode == Mode::removing ? control.remove(1, 1, 5'000'000)
                                 : control.set_mode(1, 1, Mode::reset);
        });
        EXPECT_TRUE(pair.ends[0]->device->health.usable()) << "the other device";
      });
    }
  }
}

TEST(NicRemoval, WhatADriverFailsToEndInTheFirstPassOutlivesTheChannels) {
  with_nic("devices=2,removal.rest=500ms", [](Control& control) {
    QueuePairs pairs;
    pairs.connect(12, 7);
    ibv_comp_channel* channel = ibv_create_comp_channel(pairs.b.context);
    control.remove(1, 1, 5'000'000);
    EXPECT_TRUE(await([&] { return hangs_up(channel->fd); }));
    ASSERT_EQ(pairs.a.post(IBV_WR_RDMA_WRITE, 1, pairs.b, 8), 0);
    const auto wc = pairs.a.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(pairs.b.memory[0], 0x5A) << "the device still writes";
    EXPECT_EQ(first_failure(pairs), IBV_WC_RETRY_EXC_ERR);
  });
}

TEST(NicRemoval, ADeviceIsNotGoneBeforeItsDriverHasEndedAllThatTheProductHadThere) {
  with_nic("devices=2,removal.rest=500ms", [](Control& control) {
    WatchedPair pair({});
    std::array<int, 2> fds{};
    ASSERT_EQ(pair.ends[1]->port->wait_fds(fds), 2U);
    const verbs::Device& device = *pair.ends[1]->device;
    bool too_early = false;
    uint64_t looks = 0;  // at a device that writes after its channels have gone
    control.remove(1, 1, 5'000'000);
    using Level = verbs::DeviceHealth::Level;
    EXPECT_TRUE(pair.until([&] {
      const bool gone = device.health.level() == Level::gone;
      const uint64_t since = control.device(1, 1).since.load();
      if (hangs_up(fds[1]) && emulated::now_ns() < since + 520'000'000) {
        ++looks;
        too_early |= gone;
      }
      return gone;
    }));
    EXPECT_FALSE(too_early);
    EXPECT_GT(looks, 0U);
    EXPECT_TRUE(device.taken_away());
  });
}

TEST(NicRemoval, WhatComesInPlaceOfADeviceIsOpenedWhenOneOfItsPortsIsUsable) {
  for (const char* more : {"", ",vf"}) {
    with_nic(std::string("devices=2") + more, [](Control& control) {
      const auto ports = ports_of({});
      ASSERT_EQ(ports.size(), 2U);
      const verbs::NicIdentity second = verbs::identity_of(ports[1]);
      const verbs::Library& library = ports[1].device->library();
      const auto look = [&] { return verbs::open_successor(library, second, {}); };
      control.set_mode(1, 1, Mode::reset);
      EXPECT_TRUE(look().empty()) << "it is not there";
      control.cut(1, 1, 1, emulated::cut_in | emulated::cut_out, true);
      control.bring_back(1, 1);
      EXPECT_TRUE(look().empty()) << "its port is down";
      control.cut(1, 1, 1, 0, true);
      const auto found = look();
      ASSERT_EQ(found.size(), 1U);
      EXPECT_EQ(found[0].info.device, "mlx5_1");
      EXPECT_EQ(verbs::identity_of(found[0]).pci_path, second.pci_path);
      int memory = 0;
      EXPECT_TRUE(found[0].device->add(&memory, sizeof memory, verbs::MemoryKind::host));
      EXPECT_FALSE(ports[1].device->add(&memory, sizeof memory, verbs::MemoryKind::host))
          << "the one before is another one";
    });
  }
}

// Its channel stays readable for ever, so that who sleeps on it does not sleep.
TEST(NicRemoval, AWorkerSleepsThoughItHasPathsOfADeviceThatIsGone) {
  with_nic("devices=2", [](Control& control) {
    WatchedPair pair({});
    verbs::Port& port = *pair.ends[1]->port;
    verbs::UdIo::Route route;
    route.gid = *verbs::gid_preference({}, pair.ports[1].info);
    const auto datagrams = verbs::UdIo::open(pair.ports[1].device, route, {});
    ASSERT_TRUE(datagrams) << datagrams.error().message();
    fabric::PacketIo& io = **datagrams;
    std::array<int, 2> fds{};
    ASSERT_EQ(port.wait_fds(fds), 2U);
    std::vector<int> before(fds.begin(), fds.end());
    before.push_back(io.wait_fd(fabric::Channel::command));
    before.push_back(io.wait_fd(fabric::Channel::data));
    EXPECT_FALSE(std::ranges::any_of(before, hangs_up));
    EXPECT_FALSE(port.take_waits_changed());
    end_device(pair, [&] { control.set_mode(1, 1, Mode::reset); });
    EXPECT_EQ(std::ranges::count_if(before, hangs_up), 3) << "all channels";
    const size_t count = port.wait_fds(fds);
    std::vector<int> now(fds.begin(), fds.begin() + static_cast<ptrdiff_t>(count));
    EXPECT_EQ(count, 1U);
    EXPECT_TRUE(port.take_waits_changed()) << "nobody would ask anew";
    EXPECT_EQ(io.wait_fd(fabric::Channel::command), -1);
    EXPECT_EQ(io.wait_fd(fabric::Channel::data), -1);
    EXPECT_TRUE(io.prepare_sleep());
    auto parker = Parker::make();
    ASSERT_TRUE(parker);
    (*parker)->watch(now);
    bool slept = false;
    for (int i = 0; i < 20 && !slept; ++i) {
      pair.ends[1]->turn();  // its conductor may have been through with something
      SteadyClock clock;
      const Instant start = clock.now();
      (*parker)->sleep(start + std::chrono::milliseconds(100), start);
      slept = clock.now() - start >= std::chrono::milliseconds(90);
    }
    EXPECT_TRUE(slept);
  });
}

}  // namespace
}  // namespace nccl_ha::test
