// One walk through each version of the interface: every entry of its table is called, and every
// argument that a version's adapter translates is one that a wrong translation would show.  What
// lies behind the adapters is the same for all; the traps go through the newest version.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

#include "plugin/nccl_abi.h"
#include "plugin/profiler_event.h"
#include "tests/support/plugin_fixture.h"

namespace nccl_ha::test {
namespace {

using namespace abi;

/// A grouped receive's arguments, in the widest types that a version has.
struct Group {
  int count = 0;
  std::array<void*, 9> data{};
  std::array<size_t, 9> sizes{};
  std::array<int, 9> tags{};
  std::array<void*, 9> keys{};
  std::array<void*, 9> events{};
};

/// What NCCL's profiler is told, kept by the handle that came with the buffer.
struct Event {
  TransferV1 started{};
  int stops = 0;
};
std::array<Event, 16> events;

NcclResult profile(void** event, int type, void* parent, int64_t, void* data) {
  auto* known = static_cast<Event*>(parent);
  if (static_cast<ProfilerEvent>(type) == ProfilerEvent::start) {
    known->started = *static_cast<const TransferV1*>(data);
    *event = known;
  } else {
    ++static_cast<Event*>(*event)->stops;
  }
  return NcclResult::success;
}

/// One version's calls behind one signature.  `table` is its ncclNet_vN_t.
struct Calls {
  int version;
  bool int_sizes;  ///< of isend and irecv
  NcclResult (*init)(const void* table, void** context, CommConfig* config);
  NcclResult (*devices)(const void* table, int* count);
  NcclResult (*properties)(const void* table, int device, std::string* name);
  NcclResult (*listen)(const void* table, void* context, void* handle, void** comm);
  NcclResult (*connect)(const void* table, void* context, void* handle, void** comm,
                        DeviceHandle** offload);
  NcclResult (*accept)(const void* table, void* listener, void** comm, DeviceHandle** offload);
  NcclResult (*reg_mr)(const void* table, void* comm, void* data, size_t size, int type,
                       void** key);
  NcclResult (*isend)(const void* table, void* comm, void* data, size_t size, int tag, void* key,
                      void* event, void** request);
  NcclResult (*irecv)(const void* table, void* comm, Group& group, void** request);
  NcclResult (*finalize)(const void* table, void* context);
  /// Those that a version lacks, and those that must be null.
  void (*others)(const void* table, void* context);
  /// The entries that all versions have alike.
  NcclResult (*reg_mr_dmabuf)(void*, void*, size_t, int, uint64_t, int, void**);
  NcclResult (*dereg_mr)(void*, void*);
  NcclResult (*iflush)(void*, int, void**, int*, void**, void**);
  NcclResult (*test)(void*, int*, int*);
  NcclResult (*close_send)(void*);
  NcclResult (*close_recv)(void*);
  NcclResult (*close_listen)(void*);
};

template <class Comm, class Data, class Size, class... Rest>
Size size_type_of(NcclResult (*)(Comm, Data, Size, Rest...));
template <class Properties>
Properties properties_of(NcclResult (*)(int, Properties*));

template <class Table>
struct Bound {
  static constexpr bool has_context = requires(Table t) { t.finalize; };
  static constexpr bool has_profiler = requires(const Table& t, void* p) {
    t.isend(p, p, 0, 0, p, p, &p);
  };
  static constexpr bool has_offload = requires(Table t) { t.get_device_mr; };
  using Size = decltype(size_type_of(Table{}.isend));
  using RegionSize = decltype(size_type_of(Table{}.reg_mr));

  static const Table& of(const void* table) { return *static_cast<const Table*>(table); }

  static NcclResult init(const void* table, void** context, CommConfig* config) {
    if constexpr (has_context) {
      return of(table).init(context, 77, config, nullptr, profile);
    } else if constexpr (has_profiler) {
      return of(table).init(nullptr, profile);
    } else {
      return of(table).init(nullptr);
    }
  }
  static NcclResult devices(const void* table, int* count) { return of(table).devices(count); }
  static NcclResult properties(const void* table, int device, std::string* name) {
    decltype(properties_of(Table{}.get_properties)) p{};
    const NcclResult result = of(table).get_properties(device, &p);
    *name = p.name == nullptr ? "" : p.name;
    return result;
  }
  static NcclResult listen(const void* table, void* context, void* handle, void** comm) {
    if constexpr (has_context) {
      return of(table).listen(context, 0, handle, comm);
    } else {
      return of(table).listen(0, handle, comm);
    }
  }
  static NcclResult connect(const void* table, void* context, void* handle, void** comm,
                            DeviceHandle** offload) {
    if constexpr (has_context) {
      return of(table).connect(context, 0, handle, comm, offload);
    } else if constexpr (has_profiler) {
      // With a configuration and without: NCCL's own calls have one.
      CommConfig config{3};
      return of(table).connect(0, offload == nullptr ? nullptr : &config, handle, comm, offload);
    } else if constexpr (has_offload) {
      return of(table).connect(0, handle, comm, offload);
    } else {
      return of(table).connect(0, handle, comm);
    }
  }
  static NcclResult accept(const void* table, void* listener, void** comm, DeviceHandle** offload) {
    if constexpr (has_offload) {
      return of(table).accept(listener, comm, offload);
    } else {
      return of(table).accept(listener, comm);
    }
  }
  static NcclResult reg_mr(const void* table, void* comm, void* data, size_t size, int type,
                           void** key) {
    return of(table).reg_mr(comm, data, static_cast<RegionSize>(size), type, key);
  }
  static NcclResult isend(const void* table, void* comm, void* data, size_t size, int tag,
                          void* key, void* event, void** request) {
    if constexpr (has_profiler) {
      return of(table).isend(comm, data, size, tag, key, event, request);
    } else {
      return of(table).isend(comm, data, static_cast<Size>(size), tag, key, request);
    }
  }
  static NcclResult irecv(const void* table, void* comm, Group& group, void** request) {
    std::array<Size, 9> sizes;
    for (size_t i = 0; i < sizes.size(); ++i) {
      sizes[i] = static_cast<Size>(group.sizes[i]);
    }
    if constexpr (has_profiler) {
      return of(table).irecv(comm, group.count, group.data.data(), sizes.data(), group.tags.data(),
                             group.keys.data(), group.events.data(), request);
    } else {
      return of(table).irecv(comm, group.count, group.data.data(), sizes.data(), group.tags.data(),
                             group.keys.data(), request);
    }
  }
  static NcclResult finalize(const void* table, void* context) {
    if constexpr (has_context) {
      return of(table).finalize(context);
    } else {
      return NcclResult::success;
    }
  }
  static void others(const void* table, void* context) {
    if constexpr (has_offload) {
      EXPECT_EQ(of(table).get_device_mr, nullptr);
      EXPECT_EQ(of(table).irecv_consumed, nullptr);
    }
    if constexpr (requires(Table t) { t.make_vdevice; }) {
      int device = 7;
      EXPECT_NE(of(table).make_vdevice(&device, nullptr), NcclResult::success);
      std::conditional_t<std::is_same_v<Table, NetV12>, VDevicePropsV12, VDevicePropsV9> members{};
      members.ndevs = 2;  // twice the same one
      EXPECT_NE(of(table).make_vdevice(&device, &members), NcclResult::success);
      EXPECT_EQ(device, -1);
    }
    if constexpr (has_context) {
      NetAttr attributes{};
      attributes.op = 3;
      EXPECT_EQ(of(table).set_net_attr(context, &attributes), NcclResult::success);
    }
  }

  static Calls calls(const void* table, int version) {
    return {version,
            std::is_same_v<Size, int>,
            init,
            devices,
            properties,
            listen,
            connect,
            accept,
            reg_mr,
            isend,
            irecv,
            finalize,
            others,
            of(table).reg_mr_dmabuf,
            of(table).dereg_mr,
            of(table).iflush,
            of(table).test,
            of(table).close_send,
            of(table).close_recv,
            of(table).close_listen};
  }
};

Calls calls_of(const void* table, int version) {
  using Make = Calls (*)(const void*, int);
  constexpr std::array<Make, 7> makers = {
      Bound<NetV6>::calls,  Bound<NetV7>::calls,  Bound<NetV8>::calls, Bound<NetV9>::calls,
      Bound<NetV10>::calls, Bound<NetV11>::calls, Bound<NetV12>::calls};
  return makers[static_cast<size_t>(version - 6)](table, version);
}

/// One connection over a version's own table; its parameters are the version and the progress mode.
class Walk : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  void SetUp() override {
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("HA_NCCL_USE_PROGRESS_THREAD", std::get<1>(GetParam()) ? "1" : "0", 1);
    library_ = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
    const int version = std::get<0>(GetParam());
    table_ = dlsym(library_, ("ncclNetPlugin_v" + std::to_string(version)).c_str());
    ASSERT_NE(table_, nullptr);
    calls_ = calls_of(table_, version);
    events = {};
    CommConfig config{3};
    ASSERT_EQ(calls_.init(table_, &context_, &config), NcclResult::success);
  }
  void TearDown() override {
    EXPECT_EQ(calls_.finalize(table_, context_), NcclResult::success);
    if (calls_.version >= 11) {
      EXPECT_EQ(plugin_threads(), 0U) << "threads after the last finalize";
    }
    dlclose(library_);
    EXPECT_EQ(plugin_threads(), 0U) << "threads after dlclose";
    EXPECT_FALSE(plugin_mapped());
  }

  /// `offload`: the arguments that NCCL has for device offload; null where it has none.
  void open(DeviceHandle** offload) {
    std::array<std::byte, 128> handle;
    handle.fill(std::byte{0xEE});
    void* listener = nullptr;
    ASSERT_EQ(calls_.listen(table_, context_, handle.data(), &listener), NcclResult::success);
    EXPECT_EQ(handle[127], std::byte{0}) << "listen writes the whole handle";
    ASSERT_TRUE(until([&] {
      if (send_ == nullptr) {
        EXPECT_EQ(calls_.connect(table_, context_, handle.data(), &send_, offload),
                  NcclResult::success);
      }
      if (recv_ == nullptr) {
        EXPECT_EQ(calls_.accept(table_, listener, &recv_, offload), NcclResult::success);
      }
      return HasFailure() || (send_ != nullptr && recv_ != nullptr);
    }));
    EXPECT_EQ(calls_.close_listen(send_), NcclResult::internal_error) << "of the wrong kind";
    EXPECT_EQ(calls_.close_listen(listener), NcclResult::success);
  }
  void close() {
    EXPECT_NE(calls_.close_send(recv_), NcclResult::success);
    EXPECT_NE(calls_.close_recv(send_), NcclResult::success);
    EXPECT_EQ(calls_.close_send(send_), NcclResult::success);
    EXPECT_EQ(calls_.close_recv(recv_), NcclResult::success);
    send_ = recv_ = nullptr;
  }

  void* key_of(void* comm, void* data, size_t size) {
    void* key = nullptr;
    EXPECT_EQ(calls_.reg_mr(table_, comm, data, size, ptr_host, &key), NcclResult::success);
    EXPECT_NE(key, nullptr);
    return key;
  }
  void* receive(Group& group) {
    void* request = reinterpret_cast<void*>(optional_receive_completion);
    EXPECT_TRUE(until([&] {
      EXPECT_EQ(calls_.irecv(table_, recv_, group, &request), NcclResult::success);
      return HasFailure() || request != nullptr;
    }));
    return request;
  }
  void* send(void* data, size_t size, int tag, void* key, void* event) {
    void* request = nullptr;
    EXPECT_TRUE(until([&] {
      EXPECT_EQ(calls_.isend(table_, send_, data, size, tag, key, event, &request),
                NcclResult::success);
      return HasFailure() || request != nullptr;
    }));
    return request;
  }
  void finish(void* request, int* sizes) {
    ASSERT_NE(request, nullptr);
    int done = 0;
    ASSERT_TRUE(until([&] {
      EXPECT_EQ(calls_.test(request, &done, sizes), NcclResult::success);
      return HasFailure() || done == 1;
    }));
  }

  void* library_ = nullptr;
  const void* table_ = nullptr;
  Calls calls_{};
  void* context_ = nullptr;
  void* send_ = nullptr;
  void* recv_ = nullptr;
};

constexpr size_t slot_bytes = 1000;

/// `count` buffers of their own sizes and tags in `memory`.
Group group_in(unsigned char* memory, void* key, int count) {
  Group group;
  group.count = count;
  for (size_t i = 0; i < group.data.size(); ++i) {
    group.data[i] = memory + i * slot_bytes;
    group.sizes[i] = slot_bytes - i;
    group.tags[i] = static_cast<int>(100 + 7 * i);
    group.keys[i] = key;
  }
  return group;
}

TEST_P(Walk, DevicesAndWhatAVersionLacks) {
  int count = 0;
  ASSERT_EQ(calls_.devices(table_, &count), NcclResult::success);
  ASSERT_EQ(count, 1);
  std::string name;
  EXPECT_EQ(calls_.properties(table_, 0, &name), NcclResult::success);
  EXPECT_EQ(name, "lo");
  EXPECT_NE(calls_.properties(table_, 1, &name), NcclResult::success);
  EXPECT_NE(calls_.properties(table_, -1, &name), NcclResult::success);
  calls_.others(table_, context_);
  // A version without contexts begins again as often as NCCL has communicators.
  void* second = nullptr;
  ASSERT_EQ(calls_.init(table_, &second, nullptr), NcclResult::success);
  EXPECT_EQ(second != nullptr, calls_.version >= 11);
  EXPECT_EQ(second != context_, calls_.version >= 11) << "another traffic class, another context";
  EXPECT_EQ(calls_.finalize(table_, second), NcclResult::success);
}

TEST_P(Walk, AGroupOfEightWithSizesTagsKeysAndEvents) {
  DeviceHandle untouched{};
  DeviceHandle* offload = &untouched;
  open(&offload);
  EXPECT_EQ(offload, &untouched) << "host transports leave it as NCCL set it";
  std::vector<unsigned char> in(9 * slot_bytes);
  std::vector<unsigned char> out(9 * slot_bytes);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<unsigned char>(1 + i * 7 + i / 256);
  }
  void* in_key = key_of(recv_, in.data(), in.size());
  void* out_key = key_of(send_, out.data(), out.size());
  Group group = group_in(in.data(), in_key, 8);
  for (size_t i = 1; i < 8; ++i) {
    group.events[i] = &events[i];  // the first has none
  }
  void* received = receive(group);
  std::array<void*, 8> sent{};
  for (size_t i = 8; i-- > 0;) {
    sent[i] = send(out.data() + i * slot_bytes, 500 + i, group.tags[i], out_key,
                   i == 0 ? nullptr : &events[8 + i]);
  }
  std::array<int, 9> sizes;
  sizes.fill(-1);
  finish(received, sizes.data());
  EXPECT_EQ(sizes[8], -1) << "one size for each buffer and no more";
  for (size_t i = 0; i < 8; ++i) {
    int size = -1;
    finish(sent[i], &size);
    EXPECT_EQ(size, static_cast<int>(500 + i));
    EXPECT_EQ(sizes[i], static_cast<int>(500 + i));
    EXPECT_TRUE(std::equal(out.data() + i * slot_bytes, out.data() + i * slot_bytes + 500 + i,
                           in.data() + i * slot_bytes));
    EXPECT_EQ(in[i * slot_bytes + 500 + i], 0) << "no byte more";
    const bool seen = calls_.version >= 10 && i != 0;
    EXPECT_EQ(events[i].stops, seen ? 1 : 0);
    EXPECT_EQ(events[8 + i].stops, seen ? 1 : 0);
    if (seen) {
      EXPECT_EQ(events[i].started.kind, TransferKind::receive);
      EXPECT_EQ(events[i].started.position, i);
      EXPECT_EQ(events[i].started.tag, group.tags[i]);
      EXPECT_EQ(events[i].started.bytes, group.sizes[i]);
      EXPECT_EQ(events[8 + i].started.kind, TransferKind::send);
      EXPECT_EQ(events[8 + i].started.tag, group.tags[i]);
      EXPECT_EQ(events[8 + i].started.bytes, 500 + i);
    }
  }
  std::array<int, 8> flushed;
  flushed.fill(500);
  void* request = &flushed;
  EXPECT_EQ(calls_.iflush(recv_, 8, group.data.data(), flushed.data(), group.keys.data(), &request),
            NcclResult::success);
  EXPECT_EQ(request, nullptr) << "host memory needs no flush";
  EXPECT_NE(calls_.iflush(recv_, 8, group.data.data(), flushed.data(), group.keys.data(), nullptr),
            NcclResult::success);
  EXPECT_EQ(calls_.dereg_mr(send_, out_key), NcclResult::success);
  EXPECT_EQ(calls_.dereg_mr(recv_, in_key), NcclResult::success);
  EXPECT_NE(calls_.dereg_mr(recv_, in_key), NcclResult::success) << "it is gone";
  close();
}

TEST_P(Walk, CountsAndSizesThatCannotBe) {
  open(nullptr);
  std::vector<unsigned char> memory(9 * slot_bytes);
  void* in_key = key_of(recv_, memory.data(), memory.size());
  void* out_key = key_of(send_, memory.data(), memory.size());
  for (const int count : {0, -1, INT_MIN, 9}) {
    Group group = group_in(memory.data(), in_key, count);
    void* request = nullptr;
    EXPECT_EQ(calls_.irecv(table_, recv_, group, &request), NcclResult::invalid_argument) << count;
  }
  Group none = group_in(memory.data(), nullptr, 2);
  void* request = &none;
  EXPECT_EQ(calls_.irecv(table_, recv_, none, &request), NcclResult::invalid_argument);
  EXPECT_EQ(request, nullptr);
  // As an int it is negative; as a size it is more than can be, and 100 where half of it is lost.
  const size_t wrong = calls_.int_sizes ? static_cast<size_t>(-5) : (size_t{1} << 32) + 100;
  Group large = group_in(memory.data(), in_key, 2);
  large.sizes[1] = wrong;
  EXPECT_EQ(calls_.irecv(table_, recv_, large, &request), NcclResult::invalid_argument);
  if (calls_.version <= 7) {
    void* key = nullptr;
    EXPECT_EQ(calls_.reg_mr(table_, send_, memory.data(), static_cast<size_t>(-5), ptr_host, &key),
              NcclResult::invalid_argument);
  }
  void* key = &none;
  EXPECT_EQ(calls_.reg_mr(table_, send_, memory.data(), 8, ptr_dmabuf, &key),
            NcclResult::invalid_usage);
  EXPECT_EQ(key, nullptr);
  key = &none;
  EXPECT_EQ(calls_.reg_mr_dmabuf(send_, memory.data(), 8, ptr_cuda, 0, 0, &key),
            NcclResult::invalid_usage)
      << "not over datagrams";
  EXPECT_EQ(key, nullptr);
  // None of it did the connection any harm.
  Group group = group_in(memory.data(), in_key, 1);
  void* received = receive(group);
  void* sent = send(memory.data() + slot_bytes, 8, group.tags[0], out_key, nullptr);
  finish(received, nullptr);
  finish(sent, nullptr);
  // A send of the wrong size, once there is a receive for it.
  static_cast<void>(receive(group));
  NcclResult result = NcclResult::success;
  ASSERT_TRUE(until([&] {
    result = calls_.isend(table_, send_, memory.data(), wrong, group.tags[0], out_key, nullptr,
                          &request);
    return result != NcclResult::success || request != nullptr;
  }));
  EXPECT_EQ(result, calls_.int_sizes ? NcclResult::invalid_argument : NcclResult::invalid_usage);
  close();
}

/// From v8 on; before that a region's size is an int.
class WideRegions : public Walk {};

TEST_P(WideRegions, MemoryBeyondFourGigabytes) {
  open(nullptr);
  constexpr size_t far = size_t{1} << 32;
  void* memory = mmap(nullptr, far + 4096, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* end = static_cast<unsigned char*>(memory) + far;
  std::vector<unsigned char> out(100, 0x5A);
  void* in_key = key_of(recv_, memory, far + 4096);
  void* out_key = key_of(send_, out.data(), out.size());
  Group group = group_in(end, in_key, 1);
  void* received = receive(group);
  void* sent = send(out.data(), out.size(), group.tags[0], out_key, nullptr);
  finish(received, nullptr);
  finish(sent, nullptr);
  EXPECT_EQ(end[99], 0x5A);
  EXPECT_EQ(calls_.dereg_mr(recv_, in_key), NcclResult::success);
  EXPECT_EQ(calls_.dereg_mr(send_, out_key), NcclResult::success);
  close();
  munmap(memory, far + 4096);
}

INSTANTIATE_TEST_SUITE_P(Abi, WideRegions,
                         ::testing::Combine(::testing::Range(8, 13), ::testing::Bool()),
                         instance_name);
INSTANTIATE_TEST_SUITE_P(Abi, Walk, ::testing::Combine(::testing::Range(6, 13), ::testing::Bool()),
                         instance_name);

}  // namespace
}  // namespace nccl_ha::test
