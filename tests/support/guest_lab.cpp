#include "tests/support/guest_lab.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace nccl_ha::tests {

ToolRun guests(const std::string& tool, std::vector<std::string> options, const std::string& script,
               const Environment& environment) {
  std::vector<std::string> all{"--timeout", guests_timeout};
  all.insert(all.end(), options.begin(), options.end());
  all.insert(all.end(), {"--", "bash", "-c", script});
  return run_program(beside(tool, "nha-guests"), all, environment, guests_limit);
}

ToolRun reduce_in_guests(const std::string& tool, const std::string& name, const char* rails,
                         std::vector<std::string> settings, const char* iterations,
                         const std::vector<std::vector<std::string>>& cuts) {
  std::vector<std::string> arguments{"guests",    "--rails",      rails,
                                     "--timeout", guests_timeout, "--no-check"};
  for (std::string& setting : settings) {
    arguments.insert(arguments.end(), {"--env", std::move(setting)});
  }
  arguments.insert(arguments.end(),
                   {"--", "bash", "-c",
                    std::string("nccl-ha perf all_reduce -b 1M -e 1M -w 0 --timeout 200 -I ") +
                        iterations + " 2>&1"});
  BackgroundLab lab(tool, name + std::to_string(getpid()), arguments, guests_limit);
  EXPECT_TRUE(lab.carried("rail0", 12'000'000));
  for (const auto& cut : cuts) {
    EXPECT_EQ(lab.ask(cut).status, 0);
  }
  return lab.wait();
}

void expect_whole_contract(const ToolRun& run, const std::string& program,
                           const std::vector<const char*>& providers) {
  const ToolRun listed = run_program(program, {"--gtest_list_tests", "--gtest_filter=*/udp"});
  const size_t tests = count(listed.out, "/udp ");
  EXPECT_GT(tests, 0U) << listed.out << listed.err;
  for (const char* provider : providers) {
    EXPECT_EQ(count(run.out, std::string("/") + provider + " ("), tests) << provider << '\n'
                                                                         << run.out;
  }
  EXPECT_EQ(count(run.out, "[  FAILED  ]"), 0U) << run.out;
}

}  // namespace nccl_ha::tests
