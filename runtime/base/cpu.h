// Processors: which worker an actor goes to, and where workers run.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace nccl_ha {

/// What the processor counts at a steady rate, of which nothing else is known; far cheaper than any
/// clock.  Two processors of a host may differ.  0 where nothing is known to count.
inline uint64_t cpu_ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t count = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
  return 0;
#endif
}

struct WorkerInfo {
  int cpu = -1;        ///< pinned to, -1: not pinned
  int numa_node = -1;  ///< of that processor, -1: unknown
  double load = 0;     ///< sum of the weights placed there
};

/// The least loaded worker on `numa_node` (-1: any); when there is none on the node, the least
/// loaded of all.  Ties go to the lowest index.  Pure.  `workers` must not be empty.
size_t place(std::span<const WorkerInfo> workers, int numa_node);

/// "0-3,8" -> 0 1 2 3 8.  "" -> none.
Result<std::vector<int>> parse_cpu_list(std::string_view text);

/// One entry per worker: pinned round robin to `cpus` when there are any.
std::vector<WorkerInfo> plan_workers(size_t workers, std::span<const int> cpus);

/// From sysfs; -1 when unknown.
int numa_node_of_cpu(int cpu);

Result<void> pin_current_thread(int cpu);

/// Processors this process may use; none when the kernel does not say.
std::vector<int> usable_cpus();

/// Of all processors, what this process may use.
struct ProcessorShare {
  size_t allowed = 0;  ///< by its affinity; 0: unknown
  double quota = 0;    ///< by the limits of its control groups, in processors; 0: none

  /// Whole processors that work at the same time; at least 1.
  size_t usable() const;
};
/// Reads the affinity, and the quotas of control groups of version 1 and 2 under `root`, which
/// holds proc/self/cgroup and sys/fs/cgroup; what cannot be read sets no limit.
ProcessorShare processor_share(const std::string& root = "/");

}  // namespace nccl_ha
