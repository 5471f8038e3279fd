// The seven tables as NCCL finds them: read byte by byte at the published offsets, not through our
// own declarations, and called with what NCCL really passes and with what nobody should.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <climits>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <string>

#include "plugin/nccl_abi.h"
#include "tests/support/plugin_fixture.h"

namespace nccl_ha::test {
namespace {

/// Where the fields of a version's property struct lie; 0: the version lacks the field.
struct Layout {
  int version;
  size_t table_words;  ///< name and calls
  size_t properties_bytes;
  size_t reg_is_global;
  size_t force_flush;
  size_t speed;
  size_t port;
  size_t latency;
  size_t max_comms;
  size_t max_recvs;
  size_t device_type;
  size_t vprops;
  size_t devices_per_nic;
  size_t max_p2p;
  size_t max_coll;
  size_t multi_request;
  size_t rail;
  const char* absent;  ///< one letter per word: '1' there, '0' null
};

constexpr Layout layouts[] = {
    {6, 17, 48, 0, 0, 28, 32, 36, 40, 44, 0, 0, 0, 0, 0, 0, 0, "11111111111111111"},
    {7, 19, 56, 0, 0, 28, 32, 36, 40, 44, 48, 0, 0, 0, 0, 0, 0, "1111111111111111100"},
    {8, 19, 64, 28, 0, 32, 36, 40, 44, 48, 52, 0, 0, 0, 0, 0, 0, "1111111111111111100"},
    {9, 20, 104, 28, 32, 36, 40, 44, 48, 52, 56, 64, 4, 88, 96, 0, 0, "11111111111111111001"},
    {10, 20, 104, 28, 32, 36, 40, 44, 48, 52, 56, 64, 4, 88, 96, 0, 0, "11111111111111111001"},
    {11, 22, 112, 28, 32, 36, 40, 44, 48, 52, 56, 64, 4, 88, 96, 104, 0, "1111111111111111100111"},
    {12, 22, 128, 28, 32, 36, 40, 44, 48, 52, 56, 64, 8, 104, 112, 120, 124,
     "1111111111111111100111"},
};

template <class T>
T read_at(const unsigned char* base, size_t at) {
  T value{};
  std::memcpy(&value, base + at, sizeof value);
  return value;
}

/// The library as dlopen gives it, and one of its tables.
class Abi : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("HA_NCCL_USE_PROGRESS_THREAD", "1", 1);
    library_ = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
    const std::string symbol = "ncclNetPlugin_v" + std::to_string(GetParam().version);
    table_ = static_cast<const unsigned char*>(dlsym(library_, symbol.c_str()));
    ASSERT_NE(table_, nullptr) << symbol << " is not exported";
  }
  void TearDown() override {
    if (library_ != nullptr) {
      dlclose(library_);
    }
  }

  /// The call at a word of the table.
  template <class... Arguments>
  int call(size_t word, Arguments... arguments) const {
    auto* function = read_at<int (*)(Arguments...)>(table_, word * 8);
    return function(arguments...);
  }
  int init() const {
    if (GetParam().version >= 11) {
      void* context = nullptr;
      return call<void**, uint64_t, void*, void*, void*>(1, &context, 7, nullptr, nullptr, nullptr);
    }
    if (GetParam().version == 10) {
      return call<void*, void*>(1, nullptr, nullptr);
    }
    return call<void*>(1, nullptr);
  }

  void* library_ = nullptr;
  const unsigned char* table_ = nullptr;
};

TEST_P(Abi, TheTableHasItsNameAndItsCallsInTheRightPlaces) {
  EXPECT_STREQ(read_at<const char*>(table_, 0), "HA");
  const std::string expected = GetParam().absent;
  ASSERT_EQ(expected.size(), GetParam().table_words);
  for (size_t word = 0; word < expected.size(); ++word) {
    EXPECT_EQ(read_at<void*>(table_, word * 8) != nullptr, expected[word] == '1')
        << "word " << word << " of v" << GetParam().version;
  }
  Dl_info info{};
  for (size_t word = 1; word < expected.size(); ++word) {
    void* target = read_at<void*>(table_, word * 8);
    if (target != nullptr) {
      ASSERT_NE(dladdr(target, &info), 0);
      EXPECT_NE(std::string(info.dli_fname).find("libnccl-net-ha.so"), std::string::npos);
    }
  }
}

TEST_P(Abi, PropertiesFillTheirStructAndNotAByteMore) {
  ASSERT_EQ(init(), 0);
  const Layout& at = GetParam();
  std::array<unsigned char, 256> raw;
  raw.fill(0xA5);
  ASSERT_EQ((call<int, void*>(3, 0, raw.data())), 0);
  for (size_t i = at.properties_bytes; i < raw.size(); ++i) {
    ASSERT_EQ(raw[i], 0xA5) << "byte " << i << " lies behind the struct";
  }
  const unsigned char* p = raw.data();
  EXPECT_STREQ(read_at<const char*>(p, 0), "lo");
  EXPECT_NE(read_at<uint64_t>(p, 16), 0U);
  EXPECT_EQ(read_at<int>(p, 24), 1) << "host memory only";
  EXPECT_GT(read_at<int>(p, at.speed), 0);
  EXPECT_EQ(read_at<int>(p, at.port), 1);
  EXPECT_EQ(read_at<float>(p, at.latency), 0.0F);
  EXPECT_EQ(read_at<int>(p, at.max_comms), 65536);
  EXPECT_EQ(read_at<int>(p, at.max_recvs), 8);
  if (at.reg_is_global != 0) {
    EXPECT_EQ(read_at<int>(p, at.reg_is_global), 0);
  }
  if (at.device_type != 0) {
    EXPECT_EQ(read_at<int>(p, at.device_type), 0);
    EXPECT_EQ(read_at<int>(p, at.device_type + 4), 0);
  }
  if (at.vprops != 0) {
    EXPECT_EQ(read_at<int>(p, at.force_flush), 0);
    EXPECT_EQ(read_at<int>(p, at.vprops), 1);
    EXPECT_EQ(read_at<int>(p, at.vprops + 4), 0) << "a plain device is its own only member";
    for (size_t i = 1; i < at.devices_per_nic; ++i) {
      EXPECT_NE(read_at<unsigned>(p, at.vprops + 4 + 4 * i), 0xA5A5A5A5U) << "not written";
    }
    EXPECT_EQ(read_at<size_t>(p, at.max_p2p), size_t{1} << 30);
    EXPECT_EQ(read_at<size_t>(p, at.max_coll), size_t{1} << 29);
  }
  if (at.multi_request != 0) {
    EXPECT_EQ(read_at<int>(p, at.multi_request), 1);
  }
  if (at.rail != 0) {
    EXPECT_EQ(read_at<int16_t>(p, at.rail), -1);
    EXPECT_EQ(read_at<int16_t>(p, at.rail + 2), -1);
  }
}

TEST_P(Abi, NullPointersAreRefusedBeforeInitAndAfter) {
  const bool context = GetParam().version >= 11;
  const auto refused = [&] {
    int done = 5;
    EXPECT_NE((call<int*>(2, nullptr)), 0) << "devices";
    EXPECT_NE((call<int, void*>(3, 0, nullptr)), 0) << "getProperties";
    std::array<std::byte, 128> handle{};
    void* comm = &done;
    void* mhandle = &done;
    void* request = &done;
    if (context) {
      EXPECT_NE((call<void*, int, void*, void**>(4, nullptr, 0, nullptr, &comm)), 0);
      EXPECT_NE((call<void*, int, void*, void**>(4, nullptr, 0, handle.data(), nullptr)), 0);
      EXPECT_NE((call<void*, int, void*, void**>(4, nullptr, 999, handle.data(), &comm)), 0);
    } else {
      EXPECT_NE((call<int, void*, void**>(4, 0, nullptr, &comm)), 0);
      EXPECT_NE((call<int, void*, void**>(4, 0, handle.data(), nullptr)), 0);
      EXPECT_NE((call<int, void*, void**>(4, 999, handle.data(), &comm)), 0);
    }
    EXPECT_NE((call<void*, void**, void**>(6, nullptr, &comm, nullptr)), 0) << "accept";
    EXPECT_NE((call<void*, void**, void**>(6, nullptr, nullptr, nullptr)), 0);
    EXPECT_NE((call<void*, void*, size_t, int, void**>(7, nullptr, handle.data(), 8, 1, &mhandle)),
              0);
    EXPECT_NE((call<void*, void*>(9, nullptr, nullptr)), 0) << "deregMr";
    if (GetParam().version >= 10) {
      EXPECT_NE((call<void*, void*, size_t, int, void*, void*, void**>(
                    10, nullptr, handle.data(), 8, 0, nullptr, nullptr, &request)),
                0);
    } else {
      EXPECT_NE((call<void*, void*, size_t, int, void*, void**>(10, nullptr, handle.data(), 8, 0,
                                                                nullptr, &request)),
                0);
    }
    EXPECT_EQ(request, nullptr) << "isend must write *request";
    EXPECT_NE((call<void*, int*, int*>(13, nullptr, &done, nullptr)), 0) << "test";
    EXPECT_EQ(done, 0) << "test must write *done";
    EXPECT_NE((call<void*, int*, int*>(13, nullptr, nullptr, nullptr)), 0);
    for (const size_t close : {14, 15, 16}) {
      EXPECT_NE((call<void*>(close, nullptr)), 0);
    }
    if (context) {
      EXPECT_EQ((call<void*>(20, nullptr)), 0) << "NCCL 2.28 finalizes null after a failed init";
      EXPECT_EQ((call<void*, void*>(21, nullptr, nullptr)), 0) << "setNetAttr gives hints only";
      EXPECT_NE(
          (call<void**, uint64_t, void*, void*, void*>(1, nullptr, 7, nullptr, nullptr, nullptr)),
          0);
    }
  };
  refused();
  ASSERT_EQ(init(), 0);
  refused();
}

TEST_P(Abi, AForeignHandleIsRefusedWithAWord) {
  ASSERT_EQ(init(), 0);
  for (const int fill : {0x00, 0xFF, 0x41}) {
    std::array<unsigned char, 128> handle;
    handle.fill(static_cast<unsigned char>(fill));
    void* comm = &handle;
    int result = 0;
    // A filled scratch area looks like a connect that is under way; either way it is an error.
    if (GetParam().version >= 11) {
      result =
          call<void*, int, void*, void**, void**>(5, nullptr, 0, handle.data(), &comm, nullptr);
    } else if (GetParam().version == 10) {
      result =
          call<int, void*, void*, void**, void**>(5, 0, nullptr, handle.data(), &comm, nullptr);
    } else {
      result = call<int, void*, void**, void**>(5, 0, handle.data(), &comm, nullptr);
    }
    EXPECT_NE(result, 0);
    EXPECT_EQ(comm, nullptr) << "*sendComm must be written";
  }
}

std::string instance_of_layout(const ::testing::TestParamInfo<Layout>& instance) {
  std::string name("v");
  name += std::to_string(instance.param.version);
  return name;
}
INSTANTIATE_TEST_SUITE_P(Tables, Abi, ::testing::ValuesIn(layouts), instance_of_layout);

// ---- arguments of data calls on a live connection ----------------------------------------------

class Arguments : public PluginFixture {};

TEST_P(Arguments, ImpossibleGroupsAndKeysAreErrorsAndWriteTheRequest) {
  Connection c = open_connection();
  auto buffer = make_buffer(c, 64);
  std::array<void*, 9> data;
  std::array<size_t, 9> bytes;
  std::array<int, 9> tags{};
  std::array<void*, 9> keys;
  data.fill(buffer->data());
  bytes.fill(1);
  keys.fill(buffer->recv_key);
  for (const int n : {0, -1, INT_MIN, 9}) {
    void* request = nullptr;
    EXPECT_NE(api().irecv(c.recv, n, data.data(), bytes.data(), tags.data(), keys.data(), &request),
              NcclResult::success)
        << n << " buffers";
  }
  // Data calls on the wrong end of a connection.
  void* request = reinterpret_cast<void*>(0x1);
  EXPECT_NE(api().isend(c.recv, buffer->data(), 1, 0, buffer->send_key, &request),
            NcclResult::success);
  EXPECT_EQ(request, nullptr);
  request = reinterpret_cast<void*>(0x1);
  EXPECT_NE(api().irecv(c.send, 1, data.data(), bytes.data(), tags.data(), keys.data(), &request),
            NcclResult::success);
  EXPECT_EQ(request, nullptr);
  // None of it did the connection any harm.
  exchange(c, 1000, 3);
}

TEST_P(Arguments, ATestAfterTheLastOneIsAnErrorAndNotACrash) {
  Connection c = open_connection();
  auto buffer = make_buffer(c, 64);
  void* receive = post_recv(c, *buffer, 0, 8);
  void* send = post_send(c, *buffer, 8, 8);
  ASSERT_TRUE(finish(receive));
  ASSERT_TRUE(finish(send));
  int done = 9;
  EXPECT_NE(api().test(receive, &done, nullptr), NcclResult::success);
  EXPECT_EQ(done, 0);
}

TEST_P(Arguments, ClosingTheWrongKindIsRefused) {
  Connection c = open_connection();
  EXPECT_FALSE(api().close_recv(c.send));
  EXPECT_FALSE(api().close_send(c.recv));
  EXPECT_FALSE(api().close_listen(c.send));
  exchange(c, 100, 1);
}

INSTANTIATE_TEST_SUITE_P(Abi, Arguments,
                         ::testing::Combine(::testing::Values(abi_of_traps), ::testing::Bool()),
                         instance_name);

}  // namespace
}  // namespace nccl_ha::test
