#include "tests/support/plugin_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace nccl_ha::test {

const char* plugin_path = "libnccl-net-ha.so";

size_t plugin_threads() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream in(entry.path() / "comm");
    std::string name;
    std::getline(in, name);
    count += name.starts_with("nccl-ha-") ? 1 : 0;
  }
  return count;
}

std::set<uint16_t> own_udp_ports() {
  std::set<std::string> inodes;
  for (int fd = 0; fd < 1024; ++fd) {
    char target[64] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (readlink(link.c_str(), target, sizeof target - 1) > 0) {
      inodes.insert(target);
    }
  }
  std::set<uint16_t> ports;
  std::ifstream in("/proc/net/udp");
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retries, uid, timeout, inode;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retries >> uid >> timeout >>
        inode;
    if (inodes.contains("socket:[" + inode + "]")) {
      ports.insert(
          static_cast<uint16_t>(std::stoul(local.substr(local.find(':') + 1), nullptr, 16)));
    }
  }
  return ports;
}

bool plugin_mapped() {
  std::ifstream in("/proc/self/maps");
  std::string line;
  while (std::getline(in, line)) {
    if (line.find("libnccl-net-ha.so") != std::string::npos) {
      return true;
    }
  }
  return false;
}

uint16_t handle_port(const tools::NetHandle& handle) {
  uint16_t port = 0;
  std::memcpy(&port, handle.data() + 6, sizeof port);
  return port;
}

int connect_tcp(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close(fd);
    return -1;
  }
  const timeval receive_limit{20, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &receive_limit, sizeof receive_limit);
  return fd;
}

TwiceMapped::TwiceMapped(size_t size) : bytes(size) {
  const int fd = memfd_create("twice", MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(size)), 0);
  written = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  read = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  EXPECT_TRUE(written != MAP_FAILED && read != MAP_FAILED);
  close(fd);
}

void TwiceMapped::unmap_written() {
  if (written != nullptr) {
    EXPECT_EQ(munmap(written, bytes), 0);
    written = nullptr;
  }
}

TwiceMapped::~TwiceMapped() {
  unmap_written();
  munmap(read, bytes);
}

std::string instance_name(const ::testing::TestParamInfo<std::tuple<int, bool>>& instance) {
  return "v" + std::to_string(std::get<0>(instance.param)) +
         (std::get<1>(instance.param) ? "_threads" : "_inline");
}

void PluginFixture::SetUp() {
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("HA_NCCL_USE_PROGRESS_THREAD", std::get<1>(GetParam()) ? "1" : "0", 1);
  load();
}

void PluginFixture::load() {
  auto opened = tools::NetLibrary::open(plugin_path, version());
  ASSERT_TRUE(opened) << opened.error().message();
  library_ = std::move(*opened);
  auto initialized = api().init();
  ASSERT_TRUE(initialized) << initialized.error().message();
}

void PluginFixture::unload() {
  for (Connection& connection : open_) {
    close_connection(connection);
  }
  open_.clear();
  if (library_) {
    EXPECT_TRUE(api().finalize());
    if (version() >= 11) {
      EXPECT_EQ(plugin_threads(), 0U) << "threads after the last finalize";
    }
    library_.reset();
  }
  EXPECT_EQ(plugin_threads(), 0U) << "threads after dlclose";
  EXPECT_FALSE(plugin_mapped()) << "dlclose did not unload the library";
}

void PluginFixture::TearDown() { unload(); }

PluginFixture::Connection PluginFixture::open_connection() {
  Connection connection;
  tools::NetHandle handle{};
  auto listening = api().listen(0, handle);
  EXPECT_TRUE(listening);
  if (!listening) {
    return connection;
  }
  // One thread, both ends in turn: neither may wait for the other.
  bool failed = false;
  const bool connected = until([&] {
    if (connection.send == nullptr) {
      auto got = api().connect(0, handle);
      failed = failed || !got;
      connection.send = got ? *got : nullptr;
    }
    if (connection.recv == nullptr) {
      auto got = api().accept(*listening);
      failed = failed || !got;
      connection.recv = got ? *got : nullptr;
    }
    return failed || (connection.send != nullptr && connection.recv != nullptr);
  });
  EXPECT_TRUE(connected && !failed);
  EXPECT_TRUE(api().close_listen(*listening));
  open_.push_back(connection);
  return connection;
}

void PluginFixture::close_connection(Connection& connection) {
  if (connection.send != nullptr) {
    EXPECT_TRUE(api().close_send(connection.send));
  }
  if (connection.recv != nullptr) {
    EXPECT_TRUE(api().close_recv(connection.recv));
  }
  for (Connection& other : open_) {
    if (&other != &connection && other.send == connection.send) {
      other = {};
    }
  }
  connection = {};
}

std::unique_ptr<PluginFixture::Buffer> PluginFixture::make_buffer(const Connection& connection,
                                                                  size_t bytes) {
  auto buffer = std::make_unique<Buffer>(bytes);
  auto send_key = api().register_memory(connection.send, buffer->data(), bytes);
  auto recv_key = api().register_memory(connection.recv, buffer->data(), bytes);
  EXPECT_TRUE(send_key && recv_key);
  buffer->send_key = send_key ? *send_key : nullptr;
  buffer->recv_key = recv_key ? *recv_key : nullptr;
  return buffer;
}

void* PluginFixture::post_send(const Connection& c, Buffer& buffer, size_t offset, size_t bytes,
                               int tag) {
  void* request = reinterpret_cast<void*>(0xDEAD);  // a stale pointer, as NCCL leaves it
  NcclResult result = NcclResult::success;
  const bool posted = until([&] {
    result = api().isend(c.send, buffer.data() + offset, bytes, tag, buffer.send_key, &request);
    return result != NcclResult::success || request != nullptr;
  });
  EXPECT_TRUE(posted) << "isend never got a request";
  EXPECT_EQ(result, NcclResult::success);
  return result == NcclResult::success ? request : nullptr;
}

void* PluginFixture::post_recv(const Connection& c, Buffer& buffer, size_t offset, size_t bytes,
                               int tag) {
  void* data = buffer.data() + offset;
  void* request = reinterpret_cast<void*>(0x1);  // the hint that LL receives carry
  NcclResult result = NcclResult::success;
  const bool posted = until([&] {
    result = api().irecv(c.recv, 1, &data, &bytes, &tag, &buffer.recv_key, &request);
    return result != NcclResult::success || request != nullptr;
  });
  EXPECT_TRUE(posted) << "irecv never got a request";
  EXPECT_EQ(result, NcclResult::success);
  return result == NcclResult::success ? request : nullptr;
}

bool PluginFixture::finish(void* request, int* sizes) {
  NcclResult result = NcclResult::success;
  int done = 0;
  const bool finished = until([&] {
    done = 77;  // NCCL's variable is not initialised
    result = api().test(request, &done, sizes);
    EXPECT_TRUE(done == 0 || done == 1) << "*done was not written";
    return result != NcclResult::success || done == 1;
  });
  EXPECT_EQ(result, NcclResult::success);
  return finished && result == NcclResult::success;
}

NcclResult PluginFixture::finish_with_error(void* request) {
  NcclResult result = NcclResult::success;
  until([&] {
    int done = 0;
    result = api().test(request, &done, nullptr);
    return result != NcclResult::success || done == 1;
  });
  return result;
}

void PluginFixture::exchange(const Connection& c, size_t bytes, unsigned char seed) {
  auto out = make_buffer(c, bytes + 1);
  auto in = make_buffer(c, bytes + 1);
  for (size_t i = 0; i < bytes; ++i) {
    out->bytes[i] = static_cast<unsigned char>(seed + i * 7 + i / 256);
  }
  void* receive = post_recv(c, *in, 0, bytes);
  void* send = post_send(c, *out, 0, bytes);
  int sizes[1] = {-1};
  ASSERT_TRUE(send != nullptr && receive != nullptr);
  ASSERT_TRUE(finish(receive, sizes));
  EXPECT_EQ(sizes[0], static_cast<int>(bytes));
  sizes[0] = -1;
  ASSERT_TRUE(finish(send, sizes));
  EXPECT_EQ(sizes[0], static_cast<int>(bytes));
  EXPECT_TRUE(std::equal(in->bytes.begin(), in->bytes.end() - 1, out->bytes.begin()));
  EXPECT_TRUE(api().deregister_memory(c.send, out->send_key));
  EXPECT_TRUE(api().deregister_memory(c.recv, out->recv_key));
  EXPECT_TRUE(api().deregister_memory(c.send, in->send_key));
  EXPECT_TRUE(api().deregister_memory(c.recv, in->recv_key));
}

}  // namespace nccl_ha::test
