// Options, sizes and launcher detection of nccl-ha perf.
#include <gtest/gtest.h>

#include <map>

#include "tools/common/environment.h"
#include "tools/perf/latency.h"
#include "tools/perf/options.h"
#include "tools/perf/report.h"

namespace nccl_ha::tools {
namespace {

TEST(ParseBytes, understands_suffixes) {
  EXPECT_EQ(*parse_bytes("0"), 0U);
  EXPECT_EQ(*parse_bytes("17"), 17U);
  EXPECT_EQ(*parse_bytes("8B"), 8U);
  EXPECT_EQ(*parse_bytes("512K"), 512U << 10);
  EXPECT_EQ(*parse_bytes("16m"), 16U << 20);
  EXPECT_EQ(*parse_bytes("1GiB"), 1U << 30);
  EXPECT_EQ(*parse_bytes("2GB"), 2ULL << 30);
}

TEST(ParseBytes, refuses_everything_else_and_quotes_it) {
  for (const char* text : {"", "x", "K", "-1", "8 K", "8X", "8KiBx", "8iB", "1.5M",
                           "99999999999999999999", "99999999999T"}) {
    const auto parsed = parse_bytes(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_NE(parsed.error().what.find(std::string("'") + text + "'"), std::string::npos);
  }
}

TEST(ParseAssignment, needs_a_name_and_a_value) {
  EXPECT_EQ(parse_assignment("A=b=c")->second, "b=c");
  EXPECT_EQ(parse_assignment("A=")->second, "");
  EXPECT_FALSE(parse_assignment("A").ok());
  EXPECT_FALSE(parse_assignment("=x").ok());
}

TEST(SizeSweep, multiplies_or_adds) {
  PerfOptions options;
  options.min_bytes = 8;
  options.max_bytes = 100;
  options.step_factor = 2;
  EXPECT_EQ(size_sweep(options), (std::vector<uint64_t>{8, 16, 32, 64}));
  options.step_bytes = 40;
  EXPECT_EQ(size_sweep(options), (std::vector<uint64_t>{8, 48, 88}));
}

TEST(SizeSweep, ends_at_the_edges) {
  PerfOptions options;
  options.min_bytes = 0;
  options.max_bytes = 10;
  options.step_factor = 2;
  EXPECT_EQ(size_sweep(options), (std::vector<uint64_t>{0, 4, 8}));
  options.min_bytes = options.max_bytes = UINT64_MAX;
  EXPECT_EQ(size_sweep(options).size(), 1U);
  options.min_bytes = UINT64_MAX - 1;
  options.step_bytes = 1;
  EXPECT_EQ(size_sweep(options).size(), 2U);
}

TEST(Settle, fills_in_what_depends_on_the_operation) {
  PerfOptions options;
  ASSERT_TRUE(settle(options, 2).ok());
  EXPECT_EQ(options.iterations, 20U);
  EXPECT_EQ(options.rounds, 1U);
  PerfOptions latency;
  latency.op = OpKind::latency;
  latency.against.name = "socket";
  ASSERT_TRUE(settle(latency, 2).ok());
  EXPECT_EQ(latency.iterations, 10000U);
  EXPECT_EQ(latency.rounds, 5U);
}

TEST(Settle, refuses_what_cannot_work_and_names_the_option) {
  const auto refused = [](auto change, const char* word, uint32_t ranks = 2) {
    PerfOptions options;
    change(options);
    const auto settled = settle(options, ranks);
    ASSERT_FALSE(settled.ok()) << word;
    EXPECT_NE(settled.error().what.find(word), std::string::npos) << settled.error().what;
  };
  refused([](auto&) {}, "--ranks", 1);
  refused([](auto& o) { o.min_bytes = o.max_bytes + 1; }, "--minbytes");
  refused([](auto& o) { o.step_factor = 1; }, "--stepfactor");
  refused([](auto& o) { o.root = 2; }, "--root");
  refused([](auto& o) { o.message_bytes = 2; }, "--step");
  refused([](auto& o) { o.depth = 33; }, "--depth");
  refused([](auto& o) { o.depth = 0; }, "--depth");
  refused([](auto& o) { o.group = 9; }, "--group");
  refused([](auto& o) { o.group = 2; }, "--group");  // all_reduce
  refused([](auto& o) { o.conns = 0; }, "--conns");
  refused([](auto& o) { o.bidirectional = true; }, "--bidirectional");
  refused([](auto& o) { o.reuse = true; }, "--reuse");
  refused([](auto& o) { o.pause_us = 1; }, "--pause");  // all_reduce
}

GetEnv table(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto at = values.find(name);
    return at == values.end() ? std::nullopt : std::optional(at->second);
  };
}

TEST(Launcher, none_means_local_ranks) {
  EXPECT_FALSE(detect_launcher(table({}), "")->has_value());
  // A batch script and a one-task shell under Slurm are no launch of ranks.
  EXPECT_FALSE(
      detect_launcher(table({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}), "")->has_value());
  EXPECT_FALSE(detect_launcher(table({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}), "")
                   ->has_value());
}

TEST(Launcher, torchrun_is_read_with_its_address) {
  const auto found = detect_launcher(table({{"RANK", "3"},
                                            {"WORLD_SIZE", "8"},
                                            {"LOCAL_RANK", "1"},
                                            {"LOCAL_WORLD_SIZE", "2"},
                                            {"MASTER_ADDR", "10.0.0.1"},
                                            {"MASTER_PORT", "29500"}}),
                                     "");
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->rank, 3U);
  EXPECT_EQ((*found)->world_size, 8U);
  EXPECT_EQ((*found)->local_rank, 1U);
  EXPECT_EQ((*found)->host, "10.0.0.1");
  EXPECT_NE((*found)->port, 29500);  // torchrun's own store may sit there
}

TEST(Launcher, slurm_ranks_meet_on_the_first_host) {
  const auto found = detect_launcher(table({{"SLURM_PROCID", "1"},
                                            {"SLURM_STEP_NUM_TASKS", "4"},
                                            {"SLURM_LOCALID", "1"},
                                            {"SLURM_STEP_NODELIST", "gpu[07-09]"},
                                            {"SLURM_JOB_ID", "4711"}}),
                                     "");
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->launcher, "Slurm");
  EXPECT_EQ((*found)->host, "gpu07");
  const auto other = detect_launcher(table({{"SLURM_PROCID", "2"},
                                            {"SLURM_STEP_NUM_TASKS", "4"},
                                            {"SLURM_STEP_NODELIST", "gpu[07-09]"},
                                            {"SLURM_JOB_ID", "4711"}}),
                                     "");
  EXPECT_EQ((*found)->port, (*other)->port) << "ranks of one job must agree";
}

TEST(Launcher, open_mpi_on_one_host_needs_no_address) {
  const auto values = [](const char* local) {
    return table({{"OMPI_COMM_WORLD_RANK", "1"},
                  {"OMPI_COMM_WORLD_SIZE", "2"},
                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", local}});
  };
  const auto one_host = detect_launcher(values("2"), "");
  ASSERT_TRUE(one_host.ok() && one_host->has_value());
  EXPECT_EQ((*one_host)->host, "127.0.0.1");
  const auto two_hosts = detect_launcher(values("1"), "");
  ASSERT_FALSE(two_hosts.ok());
  EXPECT_NE(two_hosts.error().what.find("--rendezvous"), std::string::npos);
  const auto told = detect_launcher(values("1"), "node1:4000");
  ASSERT_TRUE(told.ok() && told->has_value());
  EXPECT_EQ((*told)->host, "node1");
  EXPECT_EQ((*told)->port, 4000);
}

TEST(Launcher, a_rendezvous_without_a_launcher_is_told) {
  for (const char* text : {"foo", "node1:4000"}) {
    const auto found = detect_launcher(table({}), text);
    ASSERT_FALSE(found.ok()) << text;
    EXPECT_NE(found.error().what.find("no launcher"), std::string::npos) << found.error().what;
  }
  const auto alone = detect_launcher(table({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "node1:4000");
  ASSERT_TRUE(alone.ok()) << "a launch of one rank has nobody to meet";
  EXPECT_FALSE(alone->has_value());
}

TEST(Launcher, mpich_style_variables_work) {
  const auto found = detect_launcher(table({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}), "[::1]:99");
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->host, "::1");
}

TEST(Launcher, mpi_between_hosts_meets_where_the_job_or_mpirun_says) {
  const std::map<std::string, std::string> open_mpi{{"OMPI_COMM_WORLD_RANK", "3"},
                                                    {"OMPI_COMM_WORLD_SIZE", "4"},
                                                    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  const auto host_with = [&](const std::string& name, const std::string& value) {
    auto all = open_mpi;
    all[name] = value;
    const auto place = detect_launcher(table(all), "");
    return place ? (*place)->host : "refused: " + place.error().message();
  };
  EXPECT_EQ(host_with("SLURM_JOB_NODELIST", "gpu[03-05]"), "gpu03");
  EXPECT_EQ(host_with("OMPI_MCA_orte_hnp_uri", "312475648.0;tcp://10.0.0.5,192.168.1.5:45343"),
            "10.0.0.5");
  EXPECT_EQ(host_with("OMPI_MCA_orte_hnp_uri", "312475648.0;tcp://10.0.0.5:45343"), "10.0.0.5");
  for (const char* odd : {"", ";tcp://", ";tcp://,", "x;tcp://:1", "312475648.0;ud://1.2:3"}) {
    EXPECT_NE(host_with("OMPI_MCA_orte_hnp_uri", odd).find("pass --rendezvous"), std::string::npos)
        << odd;
  }
  EXPECT_EQ(host_with("OMPI_MCA_orte_hnp_uri", "312475648.0;tcp6://[fd00::5,fd01::5]:45343"),
            "fd00::5");
  EXPECT_EQ(host_with("MASTER_ADDR", "head"), "head") << "it wins";
  EXPECT_EQ(host_with("MASTER_ADDR", "[fe80::1%eth0]"), "fe80::1%eth0");
}

TEST(Launcher, nonsense_is_an_error_that_names_the_variable) {
  for (const auto& [rank, size] :
       {std::pair("x", "2"), std::pair("0", "two"), std::pair("2", "2"), std::pair("-1", "2")}) {
    const auto found = detect_launcher(table({{"RANK", rank}, {"WORLD_SIZE", size}}), "");
    ASSERT_FALSE(found.ok()) << rank << " of " << size;
    EXPECT_NE(found.error().what.find(rank), std::string::npos);
  }
  EXPECT_FALSE(detect_launcher(table({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), "nowhere").ok());
  EXPECT_FALSE(detect_launcher(table({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), "a:70000").ok());
}

TEST(SlurmHosts, first_of_every_notation) {
  EXPECT_EQ(first_slurm_host("a"), "a");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("gpu[03-05,9],x1"), "gpu03");
  EXPECT_EQ(first_slurm_host("gpu[7]"), "gpu7");
  EXPECT_EQ(first_slurm_host("r[1-2]n-ib,x"), "r1n-ib");
  EXPECT_EQ(first_slurm_host("a,gpu[1-2]"), "a");
  EXPECT_EQ(first_slurm_host("gpu["), "gpu");
}

TEST(Summary, percentiles_are_nearest_rank) {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) {
    samples.push_back(i);
  }
  const LatencySummary summary = summarize(samples);
  EXPECT_DOUBLE_EQ(summary.min_us, 1);
  EXPECT_DOUBLE_EQ(summary.p50_us, 50);
  EXPECT_DOUBLE_EQ(summary.p99_us, 99);
  EXPECT_DOUBLE_EQ(summary.max_us, 100);
  EXPECT_DOUBLE_EQ(summary.mean_us, 50.5);
  EXPECT_DOUBLE_EQ(summarize({}).p50_us, 0);
}

TEST(Report, ratio_of_bandwidth_and_of_latency_point_the_right_way) {
  PerfOptions options;
  Row row;
  row.bytes = 1000;
  row.cells.resize(2);
  row.cells[0].rounds.resize(1);
  row.cells[1].rounds.resize(1);
  row.cells[0].rounds[0].time_s = 1;
  row.cells[1].rounds[0].time_s = 2;
  EXPECT_DOUBLE_EQ(ratio(options, row), 2.0);  // A is twice as fast
  options.op = OpKind::latency;
  row.cells[0].rounds[0].p50_us = 3;
  row.cells[1].rounds[0].p50_us = 6;
  EXPECT_DOUBLE_EQ(ratio(options, row), 0.5);
}

TEST(Report, bandwidth_follows_from_size_and_median_time) {
  PerfOptions options;
  Row row;
  row.bytes = 2000000000;
  row.cells.resize(1);
  for (const double time : {9.0, 1.0, 2.0}) {
    Round& round = row.cells[0].rounds.emplace_back();
    round.time_s = time;
    round.cpu_s = 4;
  }
  const Speeds s = speeds(options, 4, row, row.cells[0]);
  EXPECT_DOUBLE_EQ(s.algbw_gigabytes_per_s, 1.0);
  EXPECT_DOUBLE_EQ(s.busbw_gigabytes_per_s, 1.5);
  EXPECT_DOUBLE_EQ(s.cpu_s_per_gb, 2.0);
  EXPECT_DOUBLE_EQ(median({1, 2, 3, 10}), 2.5);
}

}  // namespace
}  // namespace nccl_ha::tools
