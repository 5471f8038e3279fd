// The real library behind NCCL's ABI, loaded the way NCCL loads it, over loopback.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/until.h"
#include "tools/common/net_library.h"

namespace nccl_ha::test {

using abi::NcclResult;

/// The library under test; the suite's build says where it is, or the environment (tests/mutants).
extern const char* plugin_path;
#ifdef NHA_PLUGIN_FILE
inline const bool plugin_path_known = [] {
  const char* other = std::getenv("NHA_PLUGIN");
  plugin_path = other == nullptr ? NHA_PLUGIN_FILE : other;
  return true;
}();
#endif

/// Threads of this process whose name begins with "nccl-ha".
size_t plugin_threads();
/// UDP ports that this process has bound.
std::set<uint16_t> own_udp_ports();
/// Is the library mapped into this process?
bool plugin_mapped();
/// The TCP port in a handle (plugin/handle.h).
uint16_t handle_port(const tools::NetHandle& handle);
/// A blocking TCP connection to a port on 127.0.0.1; -1 on failure.
int connect_tcp(uint16_t port);

/// One memory mapped twice: the plugin writes at one address, the test looks at the other while it
/// does, as a GPU would; so no tool takes the intended race for a mistake.
class TwiceMapped {
 public:
  explicit TwiceMapped(size_t size);
  ~TwiceMapped();
  TwiceMapped(const TwiceMapped&) = delete;
  TwiceMapped& operator=(const TwiceMapped&) = delete;

  /// Takes the plugin's mapping away.
  void unmap_written();
  /// The first byte, as it is at this moment.
  unsigned char first() const { return *static_cast<const volatile unsigned char*>(read); }

  size_t bytes;
  void* written = nullptr;
  void* read = nullptr;
};

/// A loaded plugin with one connection, for one ABI version and progress mode.
class PluginFixture : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  struct Connection {
    void* send = nullptr;
    void* recv = nullptr;
  };
  struct Buffer {
    explicit Buffer(size_t size) : bytes(size) {}
    std::vector<unsigned char> bytes;
    void* send_key = nullptr;
    void* recv_key = nullptr;
    unsigned char* data() { return bytes.data(); }
  };

  void SetUp() override;
  void TearDown() override;
  void load();
  /// Closes everything that is open, finalizes and unloads.
  void unload();

  tools::NetApi& api() { return library_->api(); }
  int version() const { return std::get<0>(GetParam()); }

  Connection open_connection();
  void close_connection(Connection& connection);
  std::unique_ptr<Buffer> make_buffer(const Connection& connection, size_t bytes);

  /// Posts until there is a request; null and a test failure on error or timeout.
  void* post_send(const Connection& c, Buffer& buffer, size_t offset, size_t bytes, int tag = 0);
  void* post_recv(const Connection& c, Buffer& buffer, size_t offset, size_t bytes, int tag = 0);
  /// Tests until done; `sizes` may be null.
  bool finish(void* request, int* sizes = nullptr);
  /// Tests until an error comes; the error, or success when none came in time.
  NcclResult finish_with_error(void* request);
  /// One send and one receive of `bytes`, checked.
  void exchange(const Connection& c, size_t bytes, unsigned char seed);

  std::unique_ptr<tools::NetLibrary> library_;
  std::vector<Connection> open_;
};

/// Versions differ in thin adapters (abi_walk_test.cpp goes through all): traps of what lies behind
/// them take the newest.
inline constexpr int abi_of_traps = 12;
/// The newest version that has no contexts and no finalize, for the ends of a process' use.
inline constexpr int abi_without_contexts = 10;

std::string instance_name(const ::testing::TestParamInfo<std::tuple<int, bool>>& instance);

}  // namespace nccl_ha::test
