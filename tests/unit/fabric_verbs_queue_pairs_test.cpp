// How queue pairs are made, over simulated NICs: what both devices are told, and what it costs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "tests/support/verbs_sides.h"

namespace nccl_ha::test {
namespace {

using fabric::verbs::Library;

class QueuePairs : public VerbsSides {};

/// Of queue pairs that were told of their peers, by anybody.
std::vector<ibv_mtu> path_mtus;
decltype(Library{}.queue_pair.modify) modify_before = nullptr;

class Mtus : public VerbsSides, public testing::WithParamInterface<size_t> {};
INSTANTIATE_TEST_SUITE_P(Smaller, Mtus, testing::Values(0, 1));

/// A device takes no packet that is larger than its port's MTU.
TEST_P(Mtus, BothEndsTakeTheSmallerOne) {
  static Library library = sim::rdma_library();  // devices keep it
  modify_before = sim::rdma_library().queue_pair.modify;
  library.queue_pair.modify = [](ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
    if ((mask & IBV_QP_PATH_MTU) != 0) {
      path_mtus.push_back(attributes->path_mtu);
    }
    return modify_before(pair, attributes, mask);
  };
  path_mtus.clear();
  flushes_ = false;  // its queue pair is connected to itself
  traits_[GetParam()].mtu = 1024;
  traits_[1 - GetParam()].mtu = 4096;
  make(library);
  EXPECT_EQ(path_mtus, (std::vector{IBV_MTU_1024, IBV_MTU_1024}));
}

/// What devices were told and asked of enhanced connection establishment, by anybody: "asked",
/// "told 7", and "ready" for a queue pair that may receive.
std::vector<std::string> ece_steps;
/// So many questions are answered.
int ece_known = 0;

Library with_ece() {
  Library library = sim::rdma_library();
  modify_before = library.queue_pair.modify;
  library.queue_pair.modify = [](ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
    if ((mask & IBV_QP_DEST_QPN) != 0) {
      ece_steps.emplace_back("ready");
    }
    return modify_before(pair, attributes, mask);
  };
  library.queue_pair.query_ece = [](ibv_qp*, ibv_ece* ece) {
    const auto asked = static_cast<int>(std::ranges::count(ece_steps, "asked"));
    ece_steps.emplace_back("asked");
    *ece = {.vendor_id = 0x15b3, .options = static_cast<uint32_t>(asked + 1), .comp_mask = 0};
    return asked < ece_known ? 0 : EOPNOTSUPP;
  };
  library.queue_pair.set_ece = [](ibv_qp*, ibv_ece* ece) {
    EXPECT_EQ(ece->vendor_id, 0x15b3U);
    ece_steps.push_back("told " + std::to_string(ece->options));
    return 0;
  };
  return library;
}

class Ece : public VerbsSides {
 protected:
  void make_with(int known, bool wanted) {
    static const Library library = with_ece();  // devices keep it
    ece_known = known;
    ece_steps.clear();
    flushes_ = false;
    fabric::verbs::Options options;
    options.ece = wanted;
    make(library, options);
  }
};

/// The one that connects second hears what the first has agreed to.
TEST_F(Ece, EachDeviceIsToldThePeersBeforeItReceives) {
  make_with(100, true);
  const std::vector<std::string> all = {"asked", "asked",  "told 2", "ready",
                                        "asked", "told 3", "ready",  "asked"};
  EXPECT_EQ(ece_steps, all);
}

/// What it had said before would be more than its device can do together with the peer's.
TEST_F(Ece, ThePassiveSideHasAnAddressAgainWhenItsDeviceHasAgreed) {
  make_with(100, true);
  make_path(sides_[0], true);
  make_path(sides_[1], false);
  ece_steps.clear();
  VerbsSide& passive = sides_[1];
  passive.owner.addresses = 0;
  passive.nic->verbs().faults.slow = 1;
  passive.nic->verbs().faults.slowest = std::chrono::seconds(2);
  ASSERT_TRUE(passive.path->connect(sides_[0].path->local_address()));
  EXPECT_FALSE(passive.path->address_ready());
  EXPECT_FALSE(run([&] { return passive.path->address_ready(); }, std::chrono::milliseconds(20)));
  EXPECT_EQ(passive.owner.addresses, 0U);
  ASSERT_TRUE(run([&] { return passive.owner.addresses == 1; }, std::chrono::seconds(10)));
  EXPECT_TRUE(passive.path->address_ready());
  ASSERT_TRUE(sides_[0].path->connect(passive.path->local_address()));
  ASSERT_TRUE(run([&] { return sides_[0].path->state() == fabric::PathState::ready; }));
  EXPECT_EQ(ece_steps.size(), 6U);
  EXPECT_EQ(ece_steps[2], "asked") << "by the passive side";
  EXPECT_EQ(ece_steps[3], "told 1") << "which was the answer";
}

TEST_F(Ece, IsLeftOutWhereOneDeviceDoesNotKnowIt) {
  make_with(1, true);
  EXPECT_EQ(std::ranges::count(ece_steps, "ready"), 2);
  EXPECT_EQ(std::ranges::count_if(ece_steps, [](const auto& one) { return one[0] == 't'; }), 0);
}

TEST_F(Ece, IsNotAskedForWhereItIsNotWanted) {
  make_with(100, false);
  EXPECT_EQ(ece_steps, (std::vector<std::string>{"ready", "ready"}));
}

/// Those that devices were asked for.
int queues_made = 0;
decltype(Library{}.completion.create_queue) create_queue_before = nullptr;

TEST_F(QueuePairs, PathsThatComeAndGoNeedNoMoreCompletionQueues) {
  static Library library = sim::rdma_library();  // devices keep it
  create_queue_before = sim::rdma_library().completion.create_queue;
  library.completion.create_queue = [](ibv_context* context, int entries, auto... arguments) {
    queues_made += entries > 64 ? 1 : 0;  // a question's has no more
    return create_queue_before(context, entries, arguments...);
  };
  queues_made = 0;
  make(library);
  const int before = queues_made;
  EXPECT_GE(before, 2);
  for (int i = 0; i < 500; ++i) {
    sides_[0].path.reset();
    make_path(sides_[0], true);
    ASSERT_EQ(queues_made, before) << "after " << i;
  }
}

}  // namespace
}  // namespace nccl_ha::test
