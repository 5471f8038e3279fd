// Mistakes planted into the failover protocol are found by the simulation, each within a number of
// seeds that is stated here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ha/mutation.h"
#include "tools/sim/failover_run.h"

namespace nccl_ha::test {
namespace {

using ha::Mutation;
using tools::FailoverRun;
using tools::FailoverTotals;
using tools::run_failovers;

struct Planted {
  Mutation mutation;
  const char* name;
  uint64_t seeds;
  bool rdma = false;  ///< two rails of RDMA instead of one of datagrams
};

FailoverRun run_of(uint64_t seed, bool rdma) {
  FailoverRun run;
  run.seed = seed;
  run.doubts = 0.7;
  run.rdma = rdma;
  run.rails = rdma ? 2 : 1;
  return run;
}

void PrintTo(const Planted& planted, std::ostream* out) { *out << planted.name; }

constexpr Planted all[] = {
    {Mutation::report_before_fence, "report_before_fence", 50},
    {Mutation::sender_goes_on, "sender_goes_on", 50},
    {Mutation::replay_everything, "replay_everything", 50},
    {Mutation::replay_nothing, "replay_nothing", 50},
    {Mutation::arrived_is_forgotten, "arrived_is_forgotten", 50},
    {Mutation::counter_for_bitmap, "counter_for_bitmap", 50},
    {Mutation::whole_groups_left_out, "whole_groups_left_out", 50},
    {Mutation::announcements_not_renewed, "announcements_not_renewed", 50},
    {Mutation::old_epoch_kept, "old_epoch_kept", 50},
    {Mutation::one_chunk_remembered, "one_chunk_remembered", 50},
    {Mutation::messages_taken_twice, "messages_taken_twice", 50, true},
    {Mutation::backlog_withheld, "backlog_withheld", 200, true},
    {Mutation::confirmed_too_early, "confirmed_too_early", 50, true},
    {Mutation::keys_of_own_nic, "keys_of_own_nic", 50, true},
    {Mutation::keys_not_awaited, "keys_not_awaited", 400, true},
    {Mutation::shadow_not_agreed, "shadow_not_agreed", 50, true},
    {Mutation::stream_not_made_anew, "stream_not_made_anew", 200, true},
};

class Mutants : public testing::TestWithParam<Planted> {
 protected:
  void TearDown() override { ha::planted = Mutation::none; }
};

TEST_P(Mutants, IsFoundWithinItsSeeds) {
  ha::planted = GetParam().mutation;
  FailoverTotals totals;
  for (uint64_t seed = 1; seed <= GetParam().seeds; ++seed) {
    const std::string outcome = run_failovers(run_of(seed, GetParam().rdma), &totals);
    if (!outcome.empty()) {
      RecordProperty("found_at_seed", std::to_string(seed));
      std::printf("found at seed %llu: %s\n", static_cast<unsigned long long>(seed),
                  outcome.c_str());
      if (!GetParam().rdma) {
        EXPECT_GT(totals.down, 0U) << "found without any failover";
      }
      return;
    }
  }
  ADD_FAILURE() << "not found in " << GetParam().seeds << " seeds, " << totals.down << " failovers";
}

INSTANTIATE_TEST_SUITE_P(All, Mutants, testing::ValuesIn(all),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(Mutants, NothingIsFoundWhereNothingIsPlanted) {
  FailoverTotals totals;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    for (const bool rdma : {false, true}) {
      ASSERT_EQ(run_failovers(run_of(seed, rdma), &totals), "") << "seed " << seed << rdma;
    }
  }
  EXPECT_GT(totals.down, 50U);
}

}  // namespace
}  // namespace nccl_ha::test
