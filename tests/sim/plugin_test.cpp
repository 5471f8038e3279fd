// The plugin on virtual time, by NCCL's table alone: what is asked, answered, closed and given
// back.
#include "tests/rig/runs/plugin.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "tests/rig/sim/rdma_objects.h"
#include "tests/support/log_lines.h"

namespace nccl_ha::test {
namespace {

using abi::NcclResult;
using rig::SimPlugin;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Table = SimPlugin::Table;
using NcclHandle = std::array<std::byte, abi::handle_max_bytes>;

/// Two processes with two rails each.
class SimPluginCalls : public testing::Test {
 protected:
  explicit SimPluginCalls(size_t rdma_nics = 0) {
    for (uint8_t host = 1; host <= 2; ++host) {
      hosts_.push_back(*world_.add_process({sim::ip(10, 0, 0, host), sim::ip(10, 1, 0, host)},
                                           config_, rdma_nics));
    }
    from_ = &SimPlugin::of(world_, *hosts_[0]);
    to_ = &SimPlugin::of(world_, *hosts_[1]);
  }
  ~SimPluginCalls() override {
    while (!open_.empty()) {
      close(open_.back().comm);
    }
  }
  void* listen(NcclHandle& handle) {
    void* comm = nullptr;
    EXPECT_EQ(to_->call(&Table::listen, to_->context(), 0, handle.data(), &comm),
              NcclResult::success);
    return note_open(*to_, &Table::close_listen, comm);
  }
  void* connect_once(NcclHandle& handle) {
    void* comm = nullptr;
    EXPECT_EQ(from_->call(&Table::connect, from_->context(), 0, handle.data(), &comm, nullptr),
              NcclResult::success);
    return note_open(*from_, &Table::close_send, comm);
  }
  void* accept_once(void* listener) {
    void* comm = nullptr;
    EXPECT_EQ(to_->call(&Table::accept, listener, &comm, nullptr), NcclResult::success);
    return note_open(*to_, &Table::close_recv, comm);
  }
  /// Null is allowed.
  void* note_open(SimPlugin& plugin, SimPlugin::Close how, void* comm) {
    if (comm != nullptr) {
      open_.push_back({&plugin, how, comm});
    }
    return comm;
  }
  void close(void* comm) {
    const auto one = std::ranges::find(open_, comm, &Open::comm);
    ASSERT_NE(one, open_.end());
    EXPECT_EQ(one->plugin->call(one->how, comm), NcclResult::success);
    open_.erase(one);
  }
  /// As NCCL does, which asks again; null: not in time.
  void* connect(NcclHandle& handle, Duration within = seconds(10)) {
    void* comm = nullptr;
    world_.run_until([&] { return again() && (comm = connect_once(handle)) != nullptr; }, within);
    return comm;
  }
  void* accept(void* listener, Duration within = seconds(10)) {
    void* comm = nullptr;
    world_.run_until([&] { return again() && (comm = accept_once(listener)) != nullptr; }, within);
    return comm;
  }
  struct Open {
    SimPlugin* plugin = nullptr;
    SimPlugin::Close how{};
    void* comm = nullptr;
  };
  struct Pair {
    void* send = nullptr;
    void* receive = nullptr;
  };
  Pair connected() {
    NcclHandle handle{};
    void* listener = listen(handle);
    Pair pair{connect(handle), accept(listener)};
    EXPECT_TRUE(pair.send != nullptr && pair.receive != nullptr);
    close(listener);
    return pair;
  }
  /// A caller looks every millisecond.
  bool again() {
    if (world_.now() < next_look_) {
      return false;
    }
    next_look_ = world_.now() + milliseconds(1);
    world_.network().stop_at(next_look_);
    return true;
  }
  static void* reg(SimPlugin& plugin, void* comm, std::vector<std::byte>& bytes) {
    void* memory = nullptr;
    EXPECT_EQ(plugin.call(&Table::reg_mr, comm, static_cast<void*>(bytes.data()), bytes.size(),
                          abi::ptr_host, &memory),
              NcclResult::success);
    return memory;
  }
  void* irecv(void* comm, std::vector<std::byte>& bytes, void* memory) {
    void* data = bytes.data();
    size_t size = bytes.size();
    int tag = 0;
    void* request = nullptr;
    EXPECT_EQ(to_->call(&Table::irecv, comm, 1, &data, &size, &tag, &memory, nullptr, &request),
              NcclResult::success);
    return request;
  }
  void* isend(void* comm, std::vector<std::byte>& bytes, void* memory) {
    void* request = nullptr;
    world_.run_until(
        [&] {
          return again() &&
                 (from_->call(&Table::isend, comm, static_cast<void*>(bytes.data()), bytes.size(),
                              0, memory, nullptr, &request) != NcclResult::success ||
                  request != nullptr);
        },
        seconds(1));
    return request;
  }
  /// How many bytes it was; -1: it is not done in time, or failed.
  int finish(SimPlugin& plugin, void* request) {
    int done = 0;
    int size = -1;
    NcclResult result{};
    world_.run_until(
        [&] {
          result = again() ? plugin.call(&Table::test, request, &done, &size) : result;
          return done != 0 || result != NcclResult::success;
        },
        seconds(5));
    return done != 0 && result == NcclResult::success ? size : -1;
  }
  /// One message; the first byte of what arrived, or -1.
  int carry(const Pair& pair, std::byte value) {
    std::vector<std::byte> source(100'000, value);
    std::vector<std::byte> target(source.size());
    void* to = reg(*to_, pair.receive, target);
    void* from = reg(*from_, pair.send, source);
    void* receive = irecv(pair.receive, target, to);
    void* send = isend(pair.send, source, from);
    const bool done = send != nullptr && finish(*from_, send) == 100'000 && receive != nullptr &&
                      finish(*to_, receive) == 100'000;
    EXPECT_EQ(from_->call(&Table::dereg_mr, pair.send, from), NcclResult::success);
    EXPECT_EQ(to_->call(&Table::dereg_mr, pair.receive, to), NcclResult::success);
    return done ? std::to_integer<int>(target.front()) : -1;
  }
  void close(const Pair& pair) {
    close(pair.send);
    close(pair.receive);
  }
  size_t actors(size_t host) const { return hosts_[host]->engine->worker(0).actor_count(); }
  void pass(Duration time) {
    static_cast<void>(world_.run_until([] { return false; }, time));
  }

  Config config_;
  sim::World world_{11};
  std::vector<sim::Process*> hosts_;
  SimPlugin* from_ = nullptr;
  SimPlugin* to_ = nullptr;
  std::vector<Open> open_;
  Instant next_look_{};
};

TEST_F(SimPluginCalls, AConnectThatIsUnderWayStaysOneConnection) {
  NcclHandle handle{};
  void* listener = listen(handle);
  pass(milliseconds(1));
  ASSERT_EQ(connect_once(handle), nullptr);
  pass(microseconds(10));
  const size_t before = actors(0);
  ASSERT_EQ(connect_once(handle), nullptr) << "the peer is not that near";
  pass(microseconds(10));
  ASSERT_EQ(actors(0), before);
  const Pair pair{connect(handle), accept(listener)};
  ASSERT_NE(pair.send, nullptr);
  ASSERT_NE(pair.receive, nullptr);
  EXPECT_EQ(carry(pair, std::byte{7}), 7);
  EXPECT_EQ(accept(listener, seconds(1)), nullptr) << "nobody else has connected";
}

/// One listener; what a caller holds belongs to one of them.
TEST_F(SimPluginCalls, AllWhoWaitAreAccepted) {
  NcclHandle handle{};
  void* listener = listen(handle);
  std::vector<NcclHandle> handles(3, handle);
  std::vector<void*> sends;
  for (NcclHandle& one : handles) {
    sends.push_back(connect(one));
    ASSERT_NE(sends.back(), nullptr);
  }
  std::vector<void*> receives;
  for (size_t i = 0; i < sends.size(); ++i) {
    receives.push_back(accept(listener, seconds(1)));
    ASSERT_NE(receives.back(), nullptr) << i << " of those who wait were accepted";
  }
  for (size_t i = 0; i < sends.size(); ++i) {
    EXPECT_EQ(carry({sends[i], receives[i]}, std::byte(i + 1)), static_cast<int>(i + 1))
        << "they are accepted in the order in which they came";
  }
}

TEST_F(SimPluginCalls, AHandleNamesAllAddresses) {
  sim::Link dark;
  dark.cut = true;
  for (const auto& [one, other] : {std::pair(0, 1), std::pair(1, 0)}) {
    world_.network().set_link(hosts_[static_cast<size_t>(one)]->addresses[0],
                              hosts_[static_cast<size_t>(other)]->addresses[0], dark);
  }
  NcclHandle handle{};
  void* listener = listen(handle);
  ASSERT_NE(connect(handle, seconds(20)), nullptr) << "the second rail leads there";
  EXPECT_NE(accept(listener), nullptr);
  EXPECT_GT(world_.network().counts().cut, 0U) << "the first one was not tried";
}

TEST_F(SimPluginCalls, DeregMrTakesBackThatMemoryAndNoOther) {
  const Pair pair = connected();
  std::vector<std::byte> kept(1000);
  std::vector<std::byte> given_back(1000);
  void* first = reg(*to_, pair.receive, kept);
  void* second = reg(*to_, pair.receive, given_back);
  ASSERT_EQ(to_->call(&Table::dereg_mr, pair.receive, second), NcclResult::success);
  std::vector<std::byte> source(1000, std::byte{9});
  void* receive = irecv(pair.receive, kept, first);
  void* from = reg(*from_, pair.send, source);
  void* send = isend(pair.send, source, from);
  ASSERT_NE(receive, nullptr);
  ASSERT_NE(send, nullptr);
  EXPECT_EQ(finish(*to_, receive), 1000);
  EXPECT_EQ(kept.front(), std::byte{9});
  EXPECT_EQ(to_->call(&Table::dereg_mr, pair.receive, second), NcclResult::invalid_argument);
  EXPECT_EQ(to_->call(&Table::dereg_mr, pair.receive, first), NcclResult::success);
}

TEST_F(SimPluginCalls, RequestsMayBeAskedForAsOftenAsTheyAreTested) {
  const Pair pair = connected();
  std::vector<std::byte> source(8, std::byte{1});
  std::vector<std::byte> target(8);
  void* to = reg(*to_, pair.receive, target);
  void* from = reg(*from_, pair.send, source);
  for (int i = 0; i < 3 * abi::requests_max * 8; ++i) {
    void* receive = irecv(pair.receive, target, to);
    ASSERT_NE(receive, nullptr) << i;
    void* send = isend(pair.send, source, from);
    ASSERT_NE(send, nullptr) << i;
    ASSERT_EQ(finish(*from_, send), 8);
    ASSERT_EQ(finish(*to_, receive), 8);
  }
}

/// Where its low-latency buffers are used, of which NCCL gives a hint for a single receive only.
TEST_F(SimPluginCalls, ReceivesOfAGroupMayBePolledWithoutAHint) {
  const Pair pair = connected();
  std::vector<std::byte> target(2000);
  void* memory = reg(*to_, pair.receive, target);
  const auto post = [&](int count, uintptr_t hint) {
    std::array<void*, 2> data{target.data(), target.data() + 1000};
    std::array<size_t, 2> sizes{1000, 1000};
    std::array<int, 2> tags{0, 1};
    std::array<void*, 2> memories{memory, memory};
    auto* request = reinterpret_cast<void*>(hint);
    EXPECT_EQ(to_->call(&Table::irecv, pair.receive, count, data.data(), sizes.data(), tags.data(),
                        memories.data(), nullptr, &request),
              NcclResult::success);
    EXPECT_NE(request, nullptr);
  };
  post(1, 0);
  post(2, 0);
  post(1, abi::optional_receive_completion);
  const SendChannel& sender = static_cast<plugin::SendComm*>(pair.send)->endpoint->channel;
  ASSERT_TRUE(world_.run_until([&] { return sender.published_groups() == 3; }, seconds(1)));
  const auto polled = [&](uint64_t group, size_t position) {
    const CtsEntry& entry = sender.entries_of(group)[position];
    EXPECT_EQ(entry.group, group);
    EXPECT_EQ(entry.position, position);
    return entry.no_speculative_placement != 0;
  };
  EXPECT_FALSE(polled(0, 0)) << "NCCL would have said so";
  EXPECT_TRUE(polled(1, 0));
  EXPECT_TRUE(polled(1, 1));
  EXPECT_TRUE(polled(2, 0)) << "it has said so";
}

/// The door is open for a connection that lives, and dialling it again would lead to nothing.
TEST_F(SimPluginCalls, AConnectToAListenThatWasClosedFailsAtOnce) {
  const Pair pair = connected();
  NcclHandle handle{};
  close(listen(handle));
  pass(milliseconds(1));
  const Instant begin = world_.now();
  const uint64_t refused = world_.network().tcp().counts().refused;
  NcclResult result{};
  void* comm = nullptr;
  world_.run_until(
      [&] {
        result = again() ? from_->call(&Table::connect, from_->context(), 0, handle.data(), &comm,
                                       nullptr)
                         : result;
        return result != NcclResult::success || comm != nullptr;
      },
      seconds(10));
  EXPECT_EQ(result, NcclResult::remote_error);
  EXPECT_LE(world_.now() - begin, seconds(1));
  EXPECT_EQ(world_.network().tcp().counts().refused, refused) << "the door was not open";
  EXPECT_EQ(carry(pair, std::byte{7}), 7);
}

/// closeListen with connections that nobody accepted, the connecting side knows some of them.
TEST_F(SimPluginCalls, NothingIsLeftOnceAllIsClosed) {
  close(connected());
  pass(seconds(1));
  const std::array before{actors(0), actors(1)};
  NcclHandle handle{};
  void* listener = listen(handle);
  NcclHandle other = handle;
  void* known = connect(handle);
  ASSERT_NE(known, nullptr);
  ASSERT_EQ(connect_once(other), nullptr);
  pass(seconds(1));  // it is there, but its caller has not asked again
  close(listener);
  pass(seconds(1));
  void* late = connect_once(other);
  ASSERT_NE(late, nullptr) << "the peer was there once";
  for (void* send : {known, late}) {
    close(send);
  }
  pass(seconds(2));
  EXPECT_EQ(actors(0), before[0]);
  EXPECT_EQ(actors(1), before[1]);
  for (size_t host = 0; host < 2; ++host) {
    sim::World::end_process(*hosts_[host]);
  }
  EXPECT_FALSE(from_->ended_in_use());
  EXPECT_FALSE(to_->ended_in_use());
}

TEST_F(SimPluginCalls, FinalizeEndsTheEngineAndThePeerHearsOfIt) {
  const Pair pair = connected();
  EXPECT_EQ(carry(pair, std::byte{3}), 3);
  to_->finalize();
  EXPECT_EQ(hosts_[1]->engine, nullptr);
  std::vector<std::byte> source(100'000);
  void* from = reg(*from_, pair.send, source);
  ASSERT_TRUE(world_.run_until(
      [&] {
        void* request = nullptr;
        return again() &&
               from_->call(&Table::isend, pair.send, static_cast<void*>(source.data()),
                           source.size(), 0, from, nullptr, &request) == NcclResult::remote_error;
      },
      seconds(1)))
      << "the peer has gone";
  close(pair);
}

class SimPluginOverRdma : public SimPluginCalls {
 protected:
  SimPluginOverRdma() : SimPluginCalls(2) {}
};

/// From v11 on a communicator says it when it begins.
TEST_F(SimPluginOverRdma, TheTrafficClassOfACommunicatorReachesBothQueuePairs) {
  abi::CommConfig config{104};
  void* context = nullptr;
  ASSERT_EQ(from_->call(&Table::init, &context, uint64_t{7}, &config, abi::Logger{}, nullptr),
            NcclResult::success);
  NcclHandle handle{};
  listen(handle);
  void* comm = nullptr;
  ASSERT_TRUE(world_.run_until(
      [&] {
        return again() && (from_->call(&Table::connect, context, 0, handle.data(), &comm,
                                       nullptr) != NcclResult::success ||
                           comm != nullptr);
      },
      seconds(10)));
  ASSERT_NE(note_open(*from_, &Table::close_send, comm), nullptr);
  for (const sim::Process* host : hosts_) {
    size_t ready = 0;
    for (const sim::RdmaQueuePair* pair : host->nics[0]->queue_pairs()) {
      if (pair->qp_type == IBV_QPT_RC && pair->state == IBV_QPS_RTS) {
        ++ready;
        EXPECT_EQ(pair->asked.ah_attr.grh.traffic_class, 104);
      }
    }
    EXPECT_GE(ready, 1U);
  }
  EXPECT_EQ(from_->call(&Table::finalize, context), NcclResult::success);
}

}  // namespace
}  // namespace nccl_ha::test
