// Mistakes planted into the product are found: by the simulation, each within a number of seeds of
// a named kind of run, or by a named test of another suite, which is run with the mistake planted.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <vector>

#include "tests/mutants/mutation.h"
#include "tests/mutants/table.h"
#include "tests/rig/runs/failover_run.h"
#include "tests/rig/runs/mesh_run.h"

namespace nccl_ha::test {
namespace {

using rig::FailoverRun;
using rig::FailoverTotals;
using rig::run_failovers;

rig::RunKind kind_of(By by) {
  switch (by) {
    case By::paths:
      return rig::RunKind::paths;
    case By::streams:
      return rig::RunKind::streams;
    case By::pauses:
      return rig::RunKind::pauses;
    case By::deaths:
      return rig::RunKind::deaths;
    case By::closes:
      return rig::RunKind::closes;
    case By::volume:
      return rig::RunKind::volume;
    case By::devices:
      return rig::RunKind::devices;
    default:
      return rig::RunKind::classic;
  }
}

FailoverRun run_of(uint64_t seed, By by) {
  FailoverRun run = rig::mixed_run(seed);
  run.kind = kind_of(by);
  if (run.kind == rig::RunKind::classic) {
    run.suspicions = 0.7;
    run.rdma = by == By::rdma || by == By::spare;
    run.spare = by == By::spare;
    run.rails = by == By::datagrams ? 1 : 2;
  }
  return run;
}

std::string run_one(uint64_t seed, By by, FailoverTotals* totals) {
  if (by == By::mesh) {
    rig::MeshRun run;
    run.seed = seed;
    rig::MeshTotals meshes;
    return rig::run_mesh(run, &meshes);
  }
  return run_failovers(run_of(seed, by), totals);
}

double ms_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) * 1e-3;
}
/// Processor time of this process, or of its children that have ended.
double cpu_ms(int who) {
  rusage usage{};
  getrusage(who, &usage);
  return ms_of(usage.ru_utime) + ms_of(usage.ru_stime);
}

/// Runs tests of other suites with a mistake planted; the exit status, or minus the signal.
int run_checks(By by, const std::string& filter, Mutation mutation) {
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("GTEST_TOTAL_SHARDS");  // of this suite
    unsetenv("GTEST_SHARD_INDEX");
    setenv("NHA_MUTANT", std::to_string(static_cast<int>(mutation)).c_str(), 1);
    alarm(60);
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    const std::string option = "--gtest_filter=" + filter;
    setenv("NHA_PLUGIN", NHA_PLUGIN_FILE, 1);
    const char* program = by == By::edge ? NHA_E2E_FILE : NHA_CHECKS_FILE;
    execl(program, program, option.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child
             ? WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status)
             : 127;
}

std::vector<Planted> found_here() {
  std::vector<Planted> found;
  std::copy_if(std::begin(all_planted), std::end(all_planted), std::back_inserter(found),
               [](const Planted& one) { return one.by != By::survives; });
  return found;
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The values of the enumeration behind `none`, as mutation.h has them.
std::vector<std::string> names_in_the_header() {
  const std::filesystem::path header =
      std::filesystem::path(NHA_SOURCE_DIR) / "tests/mutants/mutation.h";
  const std::string text = text_of(header);
  const size_t begin = text.find("none,");
  const std::string list = text.substr(begin + 5, text.find("};", begin) - begin - 5);
  const std::regex value("\n  ([a-z_]+),");
  std::vector<std::string> names;
  for (std::sregex_iterator it(list.begin(), list.end(), value), end; it != end; ++it) {
    names.push_back((*it)[1]);
  }
  return names;
}

class Mutants : public testing::TestWithParam<Planted> {
 protected:
  void TearDown() override { planted = Mutation::none; }
};

TEST_P(Mutants, IsFound) {
  const Planted& mistake = GetParam();
  if (mistake.by == By::check || mistake.by == By::edge) {
    const double begin = cpu_ms(RUSAGE_CHILDREN);
    // A test failed, or an assertion of the code; a wait without end finds nothing by itself.
    const int status = run_checks(mistake.by, mistake.check, mistake.mutation);
    EXPECT_TRUE(status == 1 || status == -SIGABRT || status == -SIGSEGV)
        << mistake.check << " ended with " << status;
    std::printf("found by %s after %.0f ms of processor time\n", mistake.check,
                cpu_ms(RUSAGE_CHILDREN) - begin);
    return;
  }
  planted = mistake.mutation;
  const double begin = cpu_ms(RUSAGE_SELF);
  FailoverTotals totals;
  for (uint64_t seed = 1; seed <= mistake.seeds; ++seed) {
    const std::string outcome = run_one(seed, mistake.by, &totals);
    if (!outcome.empty()) {
      std::printf("found at seed %llu of %llu after %.0f ms of processor time: %s\n",
                  static_cast<unsigned long long>(seed),
                  static_cast<unsigned long long>(mistake.seeds), cpu_ms(RUSAGE_SELF) - begin,
                  outcome.c_str());
      return;
    }
  }
  ADD_FAILURE() << "not found in " << mistake.seeds << " seeds, " << totals.down << " failovers";
}

INSTANTIATE_TEST_SUITE_P(All, Mutants, testing::ValuesIn(found_here()),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(Mutants, EachIsPlantedAndHasARowAndIsDescribed) {
  const std::filesystem::path top = NHA_SOURCE_DIR;
  std::string patches;
  for (const auto& file :
       std::filesystem::recursive_directory_iterator(top / "tests/mutants/planted")) {
    if (file.is_regular_file()) {
      patches += text_of(file.path());
    }
  }
  const std::vector<std::string> names = names_in_the_header();
  ASSERT_GE(names.size(), 104U);
  EXPECT_EQ(names.size(), std::size(all_planted));
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string planted_as = "Mutation::" + names[i];
    EXPECT_TRUE(patches.find(planted_as + ")") != std::string::npos ||
                patches.find(planted_as + ",") != std::string::npos)
        << names[i] << " is planted nowhere";
    const auto row = std::find_if(std::begin(all_planted), std::end(all_planted),
                                  [&](const Planted& one) { return names[i] == one.name; });
    ASSERT_NE(row, std::end(all_planted)) << names[i] << " has no row";
    EXPECT_EQ(static_cast<size_t>(row->mutation), i + 1) << names[i];
  }
  EXPECT_EQ(std::system((top / "tests/mutants/list >/dev/null").c_str()), 0)
      << "each has a comment behind its name: tests/mutants/list";
}

/// A part of them at a time, as each has the time of a check.
class NothingPlanted : public testing::TestWithParam<size_t> {};
constexpr size_t parts_of_checks = 8;

TEST_P(NothingPlanted, ChecksPass) {
  for (const By by : {By::check, By::edge}) {
    std::string filter;
    size_t next = 0;
    for (const Planted& one : all_planted) {
      if (one.by == by && next++ % parts_of_checks == GetParam()) {
        filter += std::string(one.check) + ":";
      }
    }
    ASSERT_NE(next, 0U);
    EXPECT_EQ(filter.empty() ? 0 : run_checks(by, filter, Mutation::none), 0) << filter;
  }
}

INSTANTIATE_TEST_SUITE_P(All, NothingPlanted, testing::Range<size_t>(0, parts_of_checks));

TEST(Mutants, NothingIsFoundWhereNothingIsPlanted) {
  FailoverTotals totals;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    for (const By by : {By::datagrams, By::rdma}) {
      ASSERT_EQ(run_failovers(run_of(seed, by), &totals), "") << "seed " << seed;
    }
  }
  EXPECT_GT(totals.down, 50U);
}

}  // namespace
}  // namespace nccl_ha::test
