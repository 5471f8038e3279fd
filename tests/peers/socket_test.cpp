// NCCL's own Socket transport, out of an installed libnccl.so.2, driven by nha-peers perf.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/rig/peers/nccl_nets.h"
#include "tests/support/tool_runner.h"
#include "tools/common/elf_symbols.h"
#include "tools/common/net_library.h"

namespace nccl_ha::tests {
namespace {

using nlohmann::json;

ToolRun run_peers(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "perf");
  setenv("LIBNCCL", NHA_LIBNCCL_FILE, 1);
  ToolRun run = run_program(NHA_PEERS_FILE, arguments);
  unsetenv("LIBNCCL");
  return run;
}

json socket_report(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--plugin", "socket", "--json", "-", "--timeout", "100"});
  const ToolRun run = run_peers(std::move(arguments));
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
  const ToolRun run = run_peers({"sendrecv", "-e", "8", "--plugin", "ib", "--timeout", "60"});
  EXPECT_FALSE(run.timed_out);
  if (run.status != 0) {
    // Without rdma-core its init fails; with it, it finds nothing.
    const bool rdma_core = dlopen("libibverbs.so.1", RTLD_LAZY) != nullptr;
    EXPECT_NE(run.err.find(rdma_core ? "IB reports no device" : "of IB gave"), std::string::npos)
        << run.err;
  }
}

std::string refusal_of_socket(const char* libnccl, int abi) {
  setenv("LIBNCCL", libnccl, 1);
  tools::know_nets(&rig::nccl_nets);
  const auto opened = tools::NetLibrary::open("socket", abi);
  tools::know_nets(nullptr);
  unsetenv("LIBNCCL");
  return opened ? "opened" : opened.error().what;
}

TEST(Libnccl, wrong_ones_are_refused) {
  EXPECT_NE(refusal_of_socket(NHA_LIBNCCL_FILE, 8).find("only"), std::string::npos);
  EXPECT_NE(refusal_of_socket("/no/such/libnccl.so.2", 0).find("/no/such/libnccl.so.2"),
            std::string::npos);
  EXPECT_NE(refusal_of_socket("libm.so.6", 0).find("not NCCL"), std::string::npos);
  EXPECT_FALSE(rig::nccl_nets("Socket").has_value());
}

TEST(Libnccl, nccl_ha_itself_knows_no_transport_of_nccls_but_files) {
  const ToolRun run =
      run_program(NHA_TOOL_FILE, {"perf", "sendrecv", "-e", "8", "--plugin", "socket"});
  EXPECT_NE(run.status, 0);
  EXPECT_NE(run.err.find("libnccl-net-socket.so"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace nccl_ha::tests
