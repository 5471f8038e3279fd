// NCCL's own Socket transport, out of an installed libnccl.so.2, driven by nccl-ha perf.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/tool_runner.h"
#include "tools/common/elf_symbols.h"
#include "tools/common/net_library.h"

namespace nccl_ha::tests {
namespace {

using nlohmann::json;

json socket_report(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "perf");
  arguments.insert(arguments.end(), {"--plugin", "socket", "--libnccl", NHA_LIBNCCL_FILE, "--json",
                                     "-", "--timeout", "100"});
  const ToolRun run = run_program(NHA_TOOL_FILE, arguments);
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  const json report = json::parse(run.out, nullptr, false);
  return report.is_discarded() ? json::object() : report;
}

class Socket : public testing::TestWithParam<const char*> {};

TEST_P(Socket, carries_every_operation_exactly) {
  const json report = socket_report({GetParam(), "--ranks", "3", "-b", "0", "-e", "2000000", "-f",
                                     "37", "-d", "int8", "-I", "2"});
  ASSERT_TRUE(report.contains("results"));
  EXPECT_EQ(report["wrong"], 0);
  EXPECT_EQ(report["results"].size(), 6U);
  EXPECT_EQ(report["plugins"][0]["name"], "Socket");
}

INSTANTIATE_TEST_SUITE_P(all, Socket,
                         testing::Values("all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                         "alltoall", "sendrecv", "pt2pt", "latency"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(Libnccl, holds_each_transport_once_with_the_size_of_its_table) {
  for (const char* name : {"ncclNetSocket", "ncclNetIb"}) {
    const auto symbol = tools::find_single_symbol(NHA_LIBNCCL_FILE, name);
    ASSERT_TRUE(symbol.ok()) << symbol.error().message();
    EXPECT_EQ(symbol->size, 176U);
    EXPECT_TRUE(symbol->is_object);
  }
}

TEST(Libnccl, ib_opens_or_says_that_there_is_no_device) {
  const ToolRun run =
      run_program(NHA_TOOL_FILE, {"perf", "sendrecv", "-e", "8", "--plugin", "ib", "--libnccl",
                                  NHA_LIBNCCL_FILE, "--timeout", "60"});
  EXPECT_FALSE(run.timed_out);
  if (run.status != 0) {
    // Without rdma-core its init fails; with it, it finds nothing.
    const bool rdma_core = dlopen("libibverbs.so.1", RTLD_LAZY) != nullptr;
    EXPECT_NE(run.err.find(rdma_core ? "IB reports no device" : "of IB gave"), std::string::npos)
        << run.err;
  }
}

TEST(Libnccl, other_versions_than_its_own_are_refused) {
  const auto opened = tools::NetLibrary::open("socket", 8, NHA_LIBNCCL_FILE);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().what.find("only"), std::string::npos) << opened.error().what;
}

}  // namespace
}  // namespace nccl_ha::tests
