// What many connections between two processes cost, most of which do nothing: the time until all
// are connected, memory, processor time and datagrams while nobody calls, and how eight that are
// busy share what there is beside the idle ones.
//
// usage: many_connections PLUGIN [PLUGIN...]     (as in nccl-ha perf; on the loopback interface;
//        for `socket` LIBNCCL may name the libnccl.so.2 that it comes from)
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "tests/rig/peers/nccl_nets.h"
#include "tools/common/net_library.h"

namespace {

using nccl_ha::Instant;
using nccl_ha::abi::NcclResult;
using nccl_ha::tools::NetApi;
using nccl_ha::tools::NetHandle;
using nccl_ha::tools::NetLibrary;

constexpr int busy_connections = 8;
constexpr int in_flight = 4;
constexpr size_t message_bytes = 64 * 1024;
constexpr double idle_seconds = 5;
constexpr double busy_seconds = 2;

/// Of one process.  Plain data, sent through a pipe.
struct Figures {
  bool good = false;
  double connect_ms = 0;
  double kib_each = 0;
  double idle_percent = 0;  ///< of a processor
  double datagrams = 0;     ///< a second while idle, of both sides
  double busy_seconds = 0;
  std::array<double, busy_connections> bytes{};
};

double seconds(nccl_ha::Duration time) { return std::chrono::duration<double>(time).count(); }

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return of(used.ru_utime) + of(used.ru_stime);
}

double resident_kib() {
  std::ifstream file("/proc/self/statm");
  double all = 0;
  double resident = 0;
  file >> all >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1024;
}

/// Datagrams sent in this network namespace so far.
double datagrams() {
  std::ifstream file("/proc/self/net/snmp");
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word != "Udp:") {
      continue;
    }
    std::vector<std::string> fields;
    while (words >> word) {
      fields.push_back(word);
    }
    if (names.empty()) {
      names = fields;
      continue;
    }
    const auto at = std::find(names.begin(), names.end(), "OutDatagrams");
    return at == names.end() ? 0 : std::stod(fields[static_cast<size_t>(at - names.begin())]);
  }
  return 0;
}

bool put(int end, const void* data, size_t bytes) {
  return write(end, data, bytes) == static_cast<ssize_t>(bytes);
}

bool get(int end, void* data, size_t bytes) {
  size_t have = 0;
  while (have < bytes) {
    const ssize_t got = read(end, static_cast<char*>(data) + have, bytes - have);
    if (got <= 0) {
      return false;
    }
    have += static_cast<size_t>(got);
  }
  return true;
}

/// Both say that they are here and wait for the other one.
bool meet(int in, int out) {
  char byte = 0;
  return put(out, &byte, 1) && get(in, &byte, 1);
}

/// One side; `sends`: it connects and sends, else it listens and receives.
class Side {
 public:
  Side(NetApi& api, bool sends, int in, int out) : api_(api), sends_(sends), in_(in), out_(out) {}

  Figures measure(size_t connections) {
    Figures figures;
    const double before = resident_kib();
    const Instant begin = clock_.now();
    if (!meet(in_, out_) || !connect_all(connections) || !meet(in_, out_)) {
      return figures;
    }
    figures.connect_ms = 1000 * seconds(clock_.now() - begin);
    figures.kib_each = (resident_kib() - before) / static_cast<double>(connections);
    const double used = processor_seconds();
    const double sent = datagrams();
    const Instant rest = clock_.now();
    poll(nullptr, 0, static_cast<int>(1000 * idle_seconds));
    figures.datagrams = (datagrams() - sent) / seconds(clock_.now() - rest);
    figures.idle_percent = 100 * (processor_seconds() - used) / seconds(clock_.now() - rest);
    // Whoever is through first keeps its connections until the other one is.
    figures.good = meet(in_, out_) && transfer(figures) && meet(in_, out_);
    return figures;
  }

 private:
  struct Request {
    size_t connection;
    size_t place;
    void* handle;
  };

  bool connect_all(size_t count) {
    std::vector<NetHandle> handles(count);
    std::vector<void*> listening(count);
    for (size_t i = 0; i < count; ++i) {
      if (sends_) {
        if (!get(in_, handles[i].data(), handles[i].size())) {
          return false;
        }
        continue;
      }
      auto made = api_.listen(0, handles[i]);
      if (!made || !put(out_, handles[i].data(), handles[i].size())) {
        return false;
      }
      listening[i] = *made;
    }
    comms_.assign(count, nullptr);
    for (size_t open = count; open != 0; sched_yield()) {
      for (size_t i = 0; i < count; ++i) {
        if (comms_[i] != nullptr) {
          continue;
        }
        auto made = sends_ ? api_.connect(0, handles[i]) : api_.accept(listening[i]);
        if (!made) {
          return false;
        }
        comms_[i] = *made;
        open -= *made != nullptr ? 1 : 0;
      }
    }
    return true;
  }

  bool transfer(Figures& figures) {
    // Spread over all, so that idle ones lie between them.
    const size_t apart = comms_.size() / busy_connections;
    std::vector<char> memory(busy_connections * in_flight * message_bytes);
    std::array<void*, busy_connections> keys{};
    for (size_t i = 0; i < busy_connections; ++i) {
      auto key = api_.register_memory(comms_[i * apart], &memory[i * in_flight * message_bytes],
                                      in_flight * message_bytes);
      if (!key) {
        return false;
      }
      keys[i] = *key;
    }
    std::array<std::array<void*, in_flight>, busy_connections> requests{};
    const Instant begin = clock_.now();
    const auto end = begin + std::chrono::duration_cast<nccl_ha::Duration>(
                                 std::chrono::duration<double>(busy_seconds));
    // The receiver stops a little later, so that whatever was sent has somewhere to go.
    while (clock_.now() < end) {
      for (int round = 0; round < 16; ++round) {
        for (size_t i = 0; i < busy_connections; ++i) {
          for (size_t place = 0; place < in_flight; ++place) {
            if (!step(comms_[i * apart], keys[i], &memory[(i * in_flight + place) * message_bytes],
                      &requests[i][place], &figures.bytes[i])) {
              return false;
            }
          }
        }
      }
      sched_yield();
    }
    figures.busy_seconds = seconds(clock_.now() - begin);
    return true;
  }

  bool step(void* comm, void* key, void* data, void** request, double* bytes) {
    if (*request == nullptr) {
      const size_t size = message_bytes;
      const int tag = 0;
      return (sends_
                  ? api_.isend(comm, data, size, tag, key, request)
                  : api_.irecv(comm, 1, &data, &size, &tag, &key, request)) == NcclResult::success;
    }
    int done = 0;
    int sizes[8] = {};
    if (api_.test(*request, &done, sizes) != NcclResult::success) {
      return false;
    }
    if (done != 0) {
      *request = nullptr;
      *bytes += static_cast<double>(message_bytes);
    }
    return true;
  }

  NetApi& api_;
  bool sends_;
  int in_;
  int out_;
  nccl_ha::SteadyClock clock_;
  std::vector<void*> comms_;
};

Figures run_side(const char* plugin, size_t connections, bool sends, int in, int out) {
  auto library = NetLibrary::open(plugin, 0);
  if (!library) {
    std::fprintf(stderr, "%s: %s\n", plugin, library.error().message().c_str());
    return {};
  }
  if (auto begun = (*library)->api().init(); !begun) {
    std::fprintf(stderr, "%s: %s\n", plugin, begun.error().message().c_str());
    return {};
  }
  return Side((*library)->api(), sends, in, out).measure(connections);
}

bool measure(const char* plugin, size_t connections) {
  int there[2];
  int back[2];
  int result[2];
  if (pipe(there) != 0 || pipe(back) != 0 || pipe(result) != 0) {
    return false;
  }
  std::array<pid_t, 2> pids{};
  for (size_t side = 0; side < 2; ++side) {
    pids[side] = fork();
    if (pids[side] == 0) {
      const bool sends = side == 0;
      const Figures figures = sends ? run_side(plugin, connections, true, there[0], back[1])
                                    : run_side(plugin, connections, false, back[0], there[1]);
      _exit(put(result[1], &figures, sizeof figures) ? 0 : 1);
    }
  }
  close(result[1]);
  for (int end : {there[0], there[1], back[0], back[1]}) {
    close(end);
  }
  std::array<Figures, 2> figures{};
  const bool good = get(result[0], &figures[0], sizeof figures[0]) &&
                    get(result[0], &figures[1], sizeof figures[1]) && figures[0].good &&
                    figures[1].good;
  close(result[0]);
  for (const pid_t pid : pids) {
    waitpid(pid, nullptr, 0);
  }
  if (!good) {
    std::printf("%-12s %6zu failed\n", plugin, connections);
    return false;
  }
  const auto& bytes = figures[0].bytes;
  double all = 0;
  for (const double one : bytes) {
    all += one;
  }
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  std::printf("%-12s %6zu %10.0f %10.0f %10.2f %10.2f %8.0f %8.2f %8.2f\n", plugin, connections,
              std::max(figures[0].connect_ms, figures[1].connect_ms),
              std::max(figures[0].kib_each, figures[1].kib_each), figures[0].idle_percent,
              figures[1].idle_percent, figures[0].datagrams, all / figures[0].busy_seconds / 1e9,
              *least / *most);
  std::fflush(stdout);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  nccl_ha::tools::know_nets(&nccl_ha::rig::nccl_nets);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  std::printf("%-12s %6s %10s %10s %10s %10s %8s %8s %8s\n", "plugin", "conns", "connect ms",
              "KiB each", "idle % (a)", "idle % (b)", "idle p/s", "GB/s", "fairness");
  bool good = argc > 1;
  for (const size_t connections : {8UL, 64UL, 512UL}) {
    for (int i = 1; i < argc; ++i) {
      good = measure(argv[i], connections) && good;
    }
  }
  return good ? 0 : 2;
}
