// What the software above an RDMA device costs for each message: both ends of some connections on
// one thread, in turn, as NCCL's proxy serves them.  It needs a device that carries out a post at
// once and whose two ends may be in one process; what is left is the plugin and this driver.
//
// Two copies of a plugin's file share nothing, so that a profiler tells the sender's instructions
// from the receiver's:
//   valgrind --tool=callgrind --toggle-collect='*move_messages*' message_cost ...
//
// usage: message_cost SENDER RECEIVER [CONNECTIONS [OUTSTANDING [BYTES [MESSAGES]]]]
//        (plugins as in nccl-ha perf; OUTSTANDING and MESSAGES of each connection)
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "runtime/base/clock.h"
#include "tests/rig/peers/nccl_nets.h"
#include "tools/common/net_library.h"

namespace {

using nccl_ha::abi::NcclResult;
using nccl_ha::tools::NetApi;
using nccl_ha::tools::NetHandle;
using nccl_ha::tools::NetLibrary;

constexpr int rounds = 7;
constexpr size_t outstanding_max = 8;

struct Options {
  size_t connections = 1;
  size_t outstanding = 4;
  size_t bytes = 64;
  size_t messages = 2000;
};

/// One end of a connection.
struct End {
  void* comm = nullptr;
  void* key = nullptr;
  std::vector<char> memory;
  std::array<void*, outstanding_max> requests{};
  size_t posted = 0;
  size_t done = 0;
};

/// All ends of one side.
class Side {
 public:
  Side(NetApi& api, bool sends, const Options& options)
      : api_(api), sends_(sends), options_(options), ends_(options.connections) {}

  std::vector<End>& ends() { return ends_; }
  bool prepare() {
    for (End& end : ends_) {
      end.memory.resize(std::max<size_t>(options_.bytes * options_.outstanding, 1));
      auto key = api_.register_memory(end.comm, end.memory.data(), end.memory.size());
      if (!key) {
        return false;
      }
      end.key = *key;
    }
    return true;
  }
  bool close() {
    return std::ranges::all_of(ends_, [&](const End& end) {
      return api_.deregister_memory(end.comm, end.key).ok() &&
             (sends_ ? api_.close_send(end.comm) : api_.close_recv(end.comm)).ok();
    });
  }
  void begin() {
    for (End& end : ends_) {
      end.posted = end.done = 0;
    }
  }
  bool finished() const {
    return std::ranges::all_of(ends_,
                               [&](const End& end) { return end.done == options_.messages; });
  }
  /// Tests what is open and posts what there is room for, once on each connection.
  bool serve() {
    for (End& end : ends_) {
      for (size_t place = 0; place < options_.outstanding; ++place) {
        void*& request = end.requests[place];
        if ((request != nullptr && !test(end, request)) ||
            (request == nullptr && end.posted != options_.messages && !post(end, place))) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  bool test(End& end, void*& request) {
    int done = 0;
    std::array<int, 8> sizes{};
    if (api_.test(request, &done, sizes.data()) != NcclResult::success) {
      return false;
    }
    if (done != 0) {
      request = nullptr;
      ++end.done;
    }
    return done == 0 || static_cast<size_t>(sizes[0]) == options_.bytes;
  }
  bool post(End& end, size_t place) {
    void* data = end.memory.data() + place * options_.bytes;
    const int tag = 0;
    void*& request = end.requests[place];
    const NcclResult result =
        sends_ ? api_.isend(end.comm, data, options_.bytes, tag, end.key, &request)
               : api_.irecv(end.comm, 1, &data, &options_.bytes, &tag, &end.key, &request);
    end.posted += request != nullptr ? 1 : 0;
    return result == NcclResult::success;
  }

  NetApi& api_;
  const bool sends_;
  const Options options_;
  std::vector<End> ends_;
};

bool connect(NetApi& to, NetApi& from, End& sender, End& receiver) {
  NetHandle handle{};
  auto listening = from.listen(0, handle);
  while (listening && (sender.comm == nullptr || receiver.comm == nullptr)) {
    auto connected =
        sender.comm != nullptr ? nccl_ha::Result<void*>(sender.comm) : to.connect(0, handle);
    auto accepted =
        receiver.comm != nullptr ? nccl_ha::Result<void*>(receiver.comm) : from.accept(*listening);
    if (!connected || !accepted) {
      return false;
    }
    sender.comm = *connected;
    receiver.comm = *accepted;
  }
  return listening.ok() && from.close_listen(*listening).ok();
}

/// By this name a profiler finds what is measured.
[[gnu::noinline]] bool move_messages(Side& sender, Side& receiver) {
  while (!sender.finished() || !receiver.finished()) {
    if (!receiver.serve() || !sender.serve()) {
      return false;
    }
  }
  return true;
}

/// Nanoseconds for each message; negative when something failed.
double measure(NetApi& to, NetApi& from, const Options& options) {
  Side sender(to, true, options);
  Side receiver(from, false, options);
  for (size_t i = 0; i < options.connections; ++i) {
    if (!connect(to, from, sender.ends()[i], receiver.ends()[i])) {
      return -1;
    }
  }
  if (!sender.prepare() || !receiver.prepare()) {
    return -1;
  }
  nccl_ha::SteadyClock clock;
  std::vector<double> all;
  for (int round = 0; round < rounds; ++round) {
    sender.begin();
    receiver.begin();
    const auto begin = clock.now();
    if (!move_messages(sender, receiver)) {
      return -1;
    }
    all.push_back(std::chrono::duration<double, std::nano>(clock.now() - begin).count() /
                  static_cast<double>(options.connections * options.messages));
  }
  if (!sender.close() || !receiver.close()) {
    return -1;
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  nccl_ha::tools::know_nets(&nccl_ha::rig::nccl_nets);
  setenv("HA_NCCL_USE_PROGRESS_THREAD", "0", 0);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  Options options;
  const std::array<size_t*, 4> numbers{&options.connections, &options.outstanding, &options.bytes,
                                       &options.messages};
  for (size_t i = 0; i < numbers.size() && static_cast<int>(i) + 3 < argc; ++i) {
    *numbers[i] = std::strtoul(argv[i + 3], nullptr, 10);
  }
  if (argc < 3 || options.outstanding > outstanding_max) {
    std::fprintf(stderr, "see the head of message_cost.cpp\n");
    return 2;
  }
  std::array<std::unique_ptr<NetLibrary>, 2> sides;
  for (size_t i = 0; i < sides.size(); ++i) {
    auto library = NetLibrary::open(argv[i + 1], 0);
    if (!library || !(*library)->api().init()) {
      std::fprintf(stderr, "%s cannot be used\n", argv[i + 1]);
      return 2;
    }
    sides[i] = std::move(*library);
  }
  const double ns = measure(sides[0]->api(), sides[1]->api(), options);
  if (ns < 0) {
    std::fprintf(stderr, "%s: it failed\n", argv[1]);
    return 2;
  }
  std::printf("%-12s %6zu connections, %zu outstanding, %zu bytes: %8.1f ns a message\n", argv[1],
              options.connections, options.outstanding, options.bytes, ns);
  return 0;
}
