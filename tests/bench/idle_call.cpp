// What a call costs while nothing happens: test() of a receive that nobody serves, with
// HA_NCCL_USE_PROGRESS_THREAD=0, against another plugin in turn.  NCCL's proxy makes such calls all
// the time, and what they take is taken from whoever moves the data.
//
// usage: idle_call PLUGIN [PLUGIN]     (as in nccl-ha perf; a process per plugin and round)
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "runtime/base/clock.h"
#include "tools/common/net_library.h"

namespace {

using nccl_ha::tools::NetHandle;
using nccl_ha::tools::NetLibrary;

constexpr int calls = 20000;
constexpr int rounds = 5;

/// Nanoseconds per call; negative when the plugin failed.
double measure(const char* plugin) {
  auto library = NetLibrary::open(plugin, 0);
  if (!library || !(*library)->api().init()) {
    return -1;
  }
  auto& api = (*library)->api();
  NetHandle handle{};
  auto listening = api.listen(0, handle);
  if (!listening) {
    return -1;
  }
  void* out = nullptr;
  void* in = nullptr;
  while (out == nullptr || in == nullptr) {
    auto connected = out != nullptr ? nccl_ha::Result<void*>(out) : api.connect(0, handle);
    auto accepted = in != nullptr ? nccl_ha::Result<void*>(in) : api.accept(*listening);
    if (!connected || !accepted) {
      return -1;
    }
    out = *connected;
    in = *accepted;
  }
  std::vector<char> memory(4096);
  auto key = api.register_memory(in, memory.data(), memory.size());
  void* request = nullptr;
  void* data = memory.data();
  const size_t size = memory.size();
  const int tag = 0;
  while (key && request == nullptr) {
    if (api.irecv(in, 1, &data, &size, &tag, &*key, &request) !=
        nccl_ha::abi::NcclResult::success) {
      return -1;
    }
  }
  if (request == nullptr) {
    return -1;
  }
  nccl_ha::SteadyClock clock;
  int done = 0;
  int sizes[8] = {};
  for (int i = 0; i < calls; ++i) {
    static_cast<void>(api.test(request, &done, sizes));
  }
  const auto begin = clock.now();
  for (int i = 0; i < calls; ++i) {
    static_cast<void>(api.test(request, &done, sizes));
  }
  return std::chrono::duration<double, std::nano>(clock.now() - begin).count() / calls;
}

/// In a process of its own: a plugin that failed leaves nothing behind.
double measure_apart(const char* plugin) {
  int ends[2];
  if (pipe(ends) != 0) {
    return -1;
  }
  const pid_t pid = fork();
  if (pid == 0) {
    const double result = measure(plugin);
    static_cast<void>(!write(ends[1], &result, sizeof result));
    _exit(0);
  }
  close(ends[1]);
  double result = -1;
  if (read(ends[0], &result, sizeof result) != sizeof result) {
    result = -1;
  }
  close(ends[0]);
  waitpid(pid, nullptr, 0);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  setenv("HA_NCCL_USE_PROGRESS_THREAD", "0", 0);
  std::vector<std::vector<double>> results(static_cast<size_t>(argc));
  for (int round = 0; round < rounds; ++round) {
    for (int i = 1; i < argc; ++i) {
      results[static_cast<size_t>(i)].push_back(measure_apart(argv[i]));
    }
  }
  for (int i = 1; i < argc; ++i) {
    auto& all = results[static_cast<size_t>(i)];
    std::sort(all.begin(), all.end());
    std::printf("%-12s test() of an idle receive: %8.1f ns (%.1f to %.1f)\n", argv[i],
                all[all.size() / 2], all.front(), all.back());
  }
  return argc > 1 ? 0 : 2;
}
