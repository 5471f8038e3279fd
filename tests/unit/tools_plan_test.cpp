// The message plans of nccl-ha perf, carried out in memory without any plugin.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <tuple>

#include "tools/perf/plan.h"

namespace nccl_ha::tools {
namespace {

/// All ranks of an operation in one process; messages travel through queues.
class MemoryRun {
 public:
  MemoryRun(PlanOptions options, uint64_t bytes)
      : options_(options), size_(geometry(options.op, options.type, options.ranks, bytes)) {
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
      options_.rank = rank;
      auto& node = nodes_.emplace_back();
      node.plan = make_plan(options_, size_);
      const auto sizes = buffer_sizes(options_, size_);
      for (size_t i = 0; i < sizes.size(); ++i) {
        node.memory[i].resize(sizes[i], std::byte{0xee});
      }
      fill_stream(node.memory[0], 0, stream_key(1, rank, 0), encoding());
      node.sent.resize(node.plan.sends.size());
      node.received.resize(node.plan.recvs.size());
      for (const LocalCopy& copy : node.plan.copies) {
        if (copy.bytes != 0) {  // an empty buffer has no address to copy from
          std::memcpy(node.memory[1].data() + copy.out_offset,
                      node.memory[0].data() + copy.in_offset, copy.bytes);
        }
      }
    }
  }

  /// Runs to the end; false when nothing moves although something is left.
  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (uint32_t rank = 0; rank < nodes_.size(); ++rank) {
        moved |= send_some(rank) | receive_some(rank);
      }
    }
    for (const Node& node : nodes_) {
      for (size_t i = 0; i < node.sent.size(); ++i) {
        if (node.sent[i] != node.plan.sends[i].messages.size()) {
          return false;
        }
      }
      for (size_t i = 0; i < node.received.size(); ++i) {
        if (node.received[i] != node.plan.recvs[i].messages.size()) {
          return false;
        }
      }
    }
    return queues_empty();
  }

  uint64_t wrong() const {
    uint64_t wrong = 0;
    PlanOptions options = options_;
    for (options.rank = 0; options.rank < options.ranks; ++options.rank) {
      const Checker checker(1, options.type, ReduceOp::sum, encoding());
      CheckResult result;
      for (const Expected& part : expected_output(options, size_)) {
        checker.check(nodes_[options.rank].memory[1], part, 0, result);
      }
      wrong += result.wrong;
    }
    return wrong;
  }

  size_t largest_message() const { return largest_; }
  Geometry size() const { return size_; }

 private:
  struct Node {
    Plan plan;
    std::array<std::vector<std::byte>, buffers> memory;
    std::vector<size_t> sent;
    std::vector<size_t> received;
  };
  using Key = std::tuple<uint32_t, uint32_t, uint32_t>;  // from, to, channel

  Encoding encoding() const {
    return encoding_for(options_.type, reduces(options_.op), ReduceOp::sum, options_.ranks);
  }

  bool queues_empty() const {
    for (const auto& [key, queue] : queues_) {
      if (!queue.empty()) {
        return false;
      }
    }
    return true;
  }

  bool send_some(uint32_t rank) {
    Node& node = nodes_[rank];
    bool moved = false;
    for (size_t i = 0; i < node.sent.size(); ++i) {
      const PlannedFlow& flow = node.plan.sends[i];
      while (node.sent[i] < flow.messages.size()) {
        const PlannedMessage& m = flow.messages[node.sent[i]];
        if (flow.gate >= 0 && node.received[static_cast<size_t>(flow.gate)] < m.after) {
          break;
        }
        const auto& memory = node.memory[static_cast<size_t>(m.buffer)];
        EXPECT_LE(m.offset + m.bytes, memory.size());
        largest_ = std::max(largest_, m.bytes);
        const auto* at = memory.data() + m.offset;
        queues_[{rank, flow.peer, flow.channel}].emplace_back(at, at + m.bytes);
        ++node.sent[i];
        moved = true;
      }
    }
    return moved;
  }

  bool receive_some(uint32_t rank) {
    Node& node = nodes_[rank];
    bool moved = false;
    for (size_t i = 0; i < node.received.size(); ++i) {
      const PlannedFlow& flow = node.plan.recvs[i];
      auto& queue = queues_[{flow.peer, rank, flow.channel}];
      while (node.received[i] < flow.messages.size() && !queue.empty()) {
        const PlannedMessage& m = flow.messages[node.received[i]];
        auto& memory = node.memory[static_cast<size_t>(m.buffer)];
        EXPECT_EQ(queue.front().size(), m.bytes) << "sender and receiver disagree";
        EXPECT_LE(m.offset + m.bytes, memory.size());
        std::copy(queue.front().begin(), queue.front().end(),
                  memory.begin() + static_cast<long>(m.offset));
        if (m.reduces) {
          reduce(node.memory[static_cast<size_t>(m.result)].data() + m.result_offset,
                 node.memory[0].data() + m.operand_offset, memory.data() + m.offset, m.bytes,
                 options_.type, ReduceOp::sum);
        }
        queue.pop_front();
        ++node.received[i];
        moved = true;
      }
    }
    return moved;
  }

  PlanOptions options_;
  Geometry size_;
  std::vector<Node> nodes_;
  std::map<Key, std::deque<std::vector<std::byte>>> queues_;
  size_t largest_ = 0;
};

class AllOperations : public testing::TestWithParam<OpKind> {};

TEST_P(AllOperations, compute_the_right_result_for_any_size_and_number_of_ranks) {
  for (const uint32_t ranks : {2U, 3U, 4U, 7U}) {
    for (const uint32_t channels : {1U, 3U}) {
      for (const uint64_t bytes : {0ULL, 4ULL, 12ULL, 100ULL, 1000ULL, 4096ULL, 70001ULL}) {
        PlanOptions options;
        options.op = GetParam();
        options.type = DataType::int32;
        options.ranks = ranks;
        options.root = ranks - 1;
        options.channels = channels;
        options.message_bytes = 256;
        MemoryRun run(options, bytes);
        ASSERT_TRUE(run.run()) << ranks << " ranks, " << bytes << " bytes: it stalls";
        ASSERT_EQ(run.wrong(), 0U)
            << ranks << " ranks, " << channels << " channels, " << bytes << " bytes";
        ASSERT_LE(run.largest_message(), 256U);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(all, AllOperations,
                         testing::Values(OpKind::all_reduce, OpKind::all_gather,
                                         OpKind::reduce_scatter, OpKind::broadcast,
                                         OpKind::alltoall, OpKind::sendrecv, OpKind::pt2pt),
                         [](const auto& parameter) {
                           return std::string(to_text(parameter.param));
                         });

// The check of this test itself: a run whose last message never leaves must not look right.
TEST(Plan, an_untouched_output_is_wrong) {
  PlanOptions options;
  options.type = DataType::int32;
  const MemoryRun run(options, 4096);
  EXPECT_GT(run.wrong(), 0U);
}

TEST(Plan, reuse_goes_round_a_ring_of_steps) {
  PlanOptions options;
  options.op = OpKind::pt2pt;
  options.type = DataType::uint8;
  options.depth = 4;
  options.message_bytes = 100;
  options.reuse = true;
  const Geometry size = geometry(options.op, options.type, 2, 1000);
  EXPECT_EQ(buffer_sizes(options, size)[0], 400U);
  const Plan plan = make_plan(options, size);
  ASSERT_EQ(plan.sends.size(), 1U);
  ASSERT_EQ(plan.sends[0].messages.size(), 10U);
  EXPECT_EQ(plan.sends[0].messages[5].offset, 100U);
  options.rank = 1;
  const Plan receiver = make_plan(options, size);
  EXPECT_TRUE(receiver.recvs[0].messages[9].compares);
  EXPECT_EQ(reuse_source(options), 0);
}

TEST(Geometry, columns_are_those_of_nccl_tests) {
  const Geometry reduce = geometry(OpKind::all_reduce, DataType::float32, 4, 1024);
  EXPECT_EQ(reduce.count, 256U);
  EXPECT_EQ(reduce.bytes, 1024U);
  const Geometry gather = geometry(OpKind::all_gather, DataType::float32, 4, 1024);
  EXPECT_EQ(gather.count, 64U);
  EXPECT_EQ(gather.bytes, 1024U);
  EXPECT_EQ(gather.in_bytes, 256U);
  EXPECT_EQ(gather.out_bytes, 1024U);
  const Geometry scatter = geometry(OpKind::reduce_scatter, DataType::float32, 4, 1024);
  EXPECT_EQ(scatter.out_bytes, 256U);
}

TEST(BusFactor, is_the_share_of_data_on_the_wire) {
  EXPECT_DOUBLE_EQ(bus_factor(OpKind::all_reduce, 4, false), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(OpKind::all_reduce, 2, false), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(OpKind::all_gather, 4, false), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(OpKind::reduce_scatter, 4, false), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(OpKind::alltoall, 4, false), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(OpKind::broadcast, 4, false), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(OpKind::sendrecv, 4, false), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(OpKind::pt2pt, 2, true), 2.0);
}

TEST(Links, connect_exactly_the_ranks_that_talk) {
  EXPECT_EQ(links(OpKind::all_reduce, 3, false).size(), 3U);
  EXPECT_EQ(links(OpKind::alltoall, 4, false).size(), 12U);
  EXPECT_EQ(links(OpKind::pt2pt, 4, false).size(), 1U);
  EXPECT_EQ(links(OpKind::pt2pt, 4, true).size(), 2U);
}

}  // namespace
}  // namespace nccl_ha::tools
