#include "runtime/base/cpu.h"

#include <dirent.h>
#include <sched.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace nccl_ha {
namespace {

// As many as the kernel can be built for on any machine of today; cpu_set_t ends at 1024.
constexpr int cpu_max = 8192;

struct CpuSet {
  CpuSet() { CPU_ZERO_S(sizeof words, set()); }
  cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(words.data()); }
  std::array<unsigned long, cpu_max / (8 * sizeof(unsigned long))> words;
};

bool parse_number(std::string_view text, int* out) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *out);
  return error == std::errc{} && at == end && *out >= 0 && *out < cpu_max;
}

}  // namespace

size_t place(std::span<const WorkerInfo> workers, int numa_node) {
  NHA_ASSERT(!workers.empty(), "placement without workers");
  size_t best = workers.size();
  for (const bool same_node : {true, false}) {
    for (size_t i = 0; i < workers.size(); ++i) {
      if (same_node && (numa_node < 0 || workers[i].numa_node != numa_node)) {
        continue;
      }
      if (best == workers.size() || workers[i].load < workers[best].load) {
        best = i;
      }
    }
    if (best != workers.size()) {
      return best;
    }
  }
  return 0;
}

Result<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  const std::string_view whole = text;
  for (bool more = !text.empty(); more;) {
    const size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    // After a comma something has to follow: "0," is a slip, not a list.
    more = comma != std::string_view::npos;
    text = more ? text.substr(comma + 1) : std::string_view{};
    const size_t dash = part.find('-');
    int first = 0;
    int last = 0;
    const bool good = parse_number(part.substr(0, dash), &first) &&
                      (dash == std::string_view::npos ? (last = first, true)
                                                      : parse_number(part.substr(dash + 1), &last));
    if (!good || last < first) {
      return fail(Errc::invalid_argument,
                  fmt::format("processor list '{}': '{}' is no processor or range; write it as in "
                              "0-3,8",
                              whole, part));
    }
    for (int cpu = first; cpu <= last; ++cpu) {
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

std::vector<WorkerInfo> plan_workers(size_t workers, std::span<const int> cpus) {
  std::vector<WorkerInfo> plan(workers);
  for (size_t i = 0; i < workers && !cpus.empty(); ++i) {
    plan[i].cpu = cpus[i % cpus.size()];
    plan[i].numa_node = numa_node_of_cpu(plan[i].cpu);
  }
  return plan;
}

int numa_node_of_cpu(int cpu) {
  const std::string path = fmt::format("/sys/devices/system/cpu/cpu{}", cpu);
  DIR* directory = opendir(path.c_str());
  if (directory == nullptr) {
    return -1;
  }
  int node = -1;
  while (const dirent* entry = readdir(directory)) {
    if (std::strncmp(entry->d_name, "node", 4) == 0 && parse_number(entry->d_name + 4, &node)) {
      break;
    }
    node = -1;
  }
  closedir(directory);
  return node;
}

Result<void> pin_current_thread(int cpu) {
  CpuSet cpus;
  CPU_SET_S(static_cast<size_t>(cpu), sizeof cpus.words, cpus.set());
  if (sched_setaffinity(0, sizeof cpus.words, cpus.set()) != 0) {
    return fail(Errc::system,
                fmt::format("cannot pin a progress thread to processor {}; check "
                            "HA_NCCL_PROGRESS_CPUS against the processors this job may use",
                            cpu),
                errno);
  }
  return {};
}

std::vector<int> usable_cpus() {
  CpuSet cpus;
  std::vector<int> usable;
  if (sched_getaffinity(0, sizeof cpus.words, cpus.set()) == 0) {
    for (int cpu = 0; cpu < cpu_max; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), sizeof cpus.words, cpus.set())) {
        usable.push_back(cpu);
      }
    }
  }
  return usable;
}

}  // namespace nccl_ha
