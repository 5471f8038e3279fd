#include "tools/check/job_findings.h"

#include <fmt/format.h>

#include <algorithm>

namespace nccl_ha::tools {
namespace {

/// Less than this is not enough even for a small job's buffers.
constexpr uint64_t memlock_least = 256ULL << 20;
/// A connection takes several descriptors, and NCCL opens some for each peer.
constexpr uint64_t open_files_least = 64;
constexpr uint64_t open_files_few = 1024;
/// NCCL maps buffers between the processes of a host there, about 10 MB for each pair of them.
constexpr uint64_t shm_least = 32ULL << 20;

class JobJudge {
 public:
  JobJudge(const HostFacts& facts, const Demands& demands) : facts_(facts), demands_(demands) {}

  std::vector<Finding> run() {
    plugin();
    network();
    open_files();
    locked_memory();
    folders();
    shared_memory();
    return std::move(found_);
  }

 private:
  void add(Level level, std::string what, std::string remedy, std::vector<RailAt> rails = {}) {
    found_.push_back({level, std::move(what), std::move(remedy), std::move(rails)});
  }

  /// Where a file of NCCL's set the variable, which no shell shows.
  std::string set_in(const char* variable) const {
    const std::string file = facts_.conf.file_of(variable);
    return file.empty() ? "" : fmt::format(" (set in {})", file);
  }

  void plugin() {
    const PluginSight& plugin = facts_.plugin;
    if (!plugin.agree()) {
      // A name that leads nowhere leaves the job with NCCL's own transports.
      const bool leads_nowhere = !plugin.of_nccl && !plugin.asks_for_none();
      add(leads_nowhere || demands_.plugin ? Level::error : Level::warning,
          (plugin.of_nccl ? plugin.text() + ", not " + plugin.here->file : plugin.text()) +
              set_in("NCCL_NET_PLUGIN"),
          plugin.remedy());
    } else if (plugin.asks_for_none()) {
      const bool is_told = !plugin.asked.empty();
      add(is_told && demands_.plugin ? Level::error : Level::hint,
          is_told ? fmt::format("NCCL_NET_PLUGIN={}{}: a job does not load nccl-ha", plugin.asked,
                                set_in("NCCL_NET_PLUGIN"))
                  : "NCCL_NET_PLUGIN is not set here: a job without it does not load nccl-ha",
          plugin.remedy());
    }
  }

  void network() {
    const PluginSight& plugin = facts_.plugin;
    if (!plugin.other_network()) {
      return;
    }
    add(demands_.plugin || !plugin.asks_for_none() ? Level::error : Level::warning,
        fmt::format("NCCL_NET={}{}: NCCL uses that network and not this plugin", plugin.network,
                    set_in("NCCL_NET")),
        "unset NCCL_NET, or set NCCL_NET=HA");
  }

  void open_files() {
    if (facts_.open_files >= open_files_few) {
      return;
    }
    const bool too_few = facts_.open_files < open_files_least;
    add(too_few ? Level::error : Level::warning,
        fmt::format("this process may open {} files only (ulimit -n)", facts_.open_files),
        "raise the limit: ulimit -n, LimitNOFILE= of the service that starts jobs, --ulimit "
        "nofile= of a container",
        too_few ? std::vector<RailAt>{{0, ""}} : std::vector<RailAt>());
  }

  void locked_memory() {
    if (facts_.rdma.ports.empty() || facts_.may_lock || facts_.memlock_bytes == unlimited) {
      return;
    }
    const bool too_little = facts_.memlock_bytes < memlock_least;
    add(too_little ? Level::error : Level::warning,
        fmt::format("this process may lock {} KiB of memory only (ulimit -l); registering memory "
                    "with an RDMA device will fail",
                    facts_.memlock_bytes >> 10),
        "set memlock to unlimited: /etc/security/limits.d for logins, LimitMEMLOCK=infinity for "
        "the service that starts jobs (slurmd, kubelet), --ulimit memlock=-1 for containers",
        too_little ? std::vector<RailAt>{{0, ""}} : std::vector<RailAt>());
  }

  void folders() {
    for (const FolderFacts& one : facts_.folders) {
      if (!one.why_not.empty()) {
        add(Level::warning,
            fmt::format("{}={} cannot be written: {}", one.variable, one.path, one.why_not),
            fmt::format("make it a folder that the job's user may write to, or unset {}; jobs run "
                        "without what would be kept there",
                        one.variable));
      }
    }
  }

  void shared_memory() {
    if (facts_.shm_free_bytes < shm_least) {
      add(Level::warning,
          fmt::format("/dev/shm has {} MiB left: NCCL's buffers and this plugin's counters may not "
                      "fit",
                      facts_.shm_free_bytes >> 20),
          "--shm-size=1g for a container, `mount -o remount,size=1g /dev/shm` on a host; or remove "
          "what fills it");
    }
  }

  const HostFacts& facts_;
  const Demands& demands_;
  std::vector<Finding> found_;
};

}  // namespace

std::vector<Finding> judge_job(const HostFacts& facts, const Demands& demands) {
  return JobJudge(facts, demands).run();
}

}  // namespace nccl_ha::tools
