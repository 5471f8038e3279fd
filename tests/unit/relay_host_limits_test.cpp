// What a process that has no descriptor for a moment does later.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "relay/mesh_client.h"
#include "runtime/base/key_file.h"
#include "runtime/engine/engine.h"
#include "runtime/streams/uv_streams.h"
#include "tests/support/process_limit.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::relay {
namespace {

TEST(RelayHostLimits, AKeyFileThatCouldNotBeReadIsReadLater) {
  const tests::TemporaryFolder folder;
  const std::string path = folder.path() + "/keys";
  const auto write = [&](const std::string& text) {
    std::ofstream(path) << text;
    chmod(path.c_str(), 0600);
  };
  write("1 " + std::string(64, 'a') + "\n");
  const auto key = KeyFile::open(path);
  ASSERT_TRUE(key);
  write("1 " + std::string(64, 'a') + "\n2 " + std::string(64, 'b') + "\n");
  {
    const test::ProcessLimit none(RLIMIT_NOFILE, 0);
    EXPECT_FALSE((*key)->refresh());
  }
  EXPECT_TRUE((*key)->refresh());
  EXPECT_EQ((*key)->current()->size(), 2U);
}

TEST(RelayHostLimits, AMeshClientWithoutASocketAsksLater) {
  const int node = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof place;
  ASSERT_EQ(bind(node, reinterpret_cast<sockaddr*>(&place), sizeof place), 0);
  ASSERT_EQ(getsockname(node, reinterpret_cast<sockaddr*>(&place), &length), 0);
  ManualClock clock;
  auto engine = Engine::start_virtual(Config{}, clock, 1, [] { return *make_uv_streams(); });
  MeshClient::Options options;
  options.port = ntohs(place.sin_port);
  options.board = std::make_shared<TopologyBoard>();
  std::array<std::byte, 2048> bytes;
  {
    const test::ProcessLimit none(RLIMIT_NOFILE, 0);
    ASSERT_TRUE(engine->worker(0).adopt(std::make_unique<MeshClient>(options)));
    clock.advance(std::chrono::milliseconds(1));
    engine->worker(0).turn();
    EXPECT_LT(recv(node, bytes.data(), bytes.size(), 0), 0) << "it had a socket";
  }
  clock.advance(options.interval + std::chrono::milliseconds(1));
  engine->worker(0).turn();
  EXPECT_GT(recv(node, bytes.data(), bytes.size(), 0), 0);
  engine.reset();
  close(node);
}

}  // namespace
}  // namespace nccl_ha::relay
