#include "runtime/base/cpu.h"

#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
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

/// cpu.max: "max 100000", or how much of which period in microseconds.  0: no limit.
double unified_quota(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0;
  double period = 0;
  return file >> quota >> period && quota > 0 && period > 0 ? quota / period : 0;
}

/// The same in two files; -1: no limit.
double old_quota(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  return quota_file >> quota && period_file >> period && quota > 0 && period > 0 ? quota / period
                                                                                 : 0;
}

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

ProcessorShare processor_share(const std::string& root) {
  ProcessorShare share;
  share.allowed = usable_cpus().size();
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/job" in version 2, "4:cpu,cpuacct:/job" in version 1; what is above limits as well.
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",cpu,") == std::string::npos) {
      continue;
    }
    const std::string mount = root + "/sys/fs/cgroup" + (unified ? "" : "/cpu");
    std::string group = line.substr(second + 1);
    for (bool top = false; !top;) {
      top = group.empty() || group == "/";
      const std::string folder = mount + (top ? "" : group);
      const double quota = unified ? unified_quota(folder) : old_quota(folder);
      if (quota > 0 && (share.quota == 0 || quota < share.quota)) {
        share.quota = quota;
      }
      const size_t slash = group.rfind('/');
      group = slash == std::string::npos ? "" : group.substr(0, slash);
    }
  }
  return share;
}

size_t ProcessorShare::usable() const {
  const size_t by_quota = quota == 0 ? SIZE_MAX : static_cast<size_t>(quota);
  return std::max<size_t>(1, std::min(allowed == 0 ? SIZE_MAX : allowed, by_quota));
}

}  // namespace nccl_ha
